"""What `phasewise scan` is given, as pieces of work: files, folders, globs and URLs of files, and token caches."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tasks.data.formats.streams import is_packed
from tasks.validation.scan_files import FilePiece, format_of
from trainer.data.manifest import MANIFEST_NAME, Manifest, read_manifest
from trainer.errors import ConfigError, DataError
from trainer.storage import as_path, digest_of_file, read_json

PIECE_BYTES = 32 * 2**20


class CachePiece(NamedTuple):
    """One shard of a token cache, and the tokenizer that made it."""

    folder: Path
    shard: int
    tokenizer: Path
    size_bytes: int


ScanPiece = FilePiece | CachePiece


@dataclass(frozen=True)
class Selection:
    """What is to be scanned, in order.

    Attributes:
        names: of all files, below what was given; of caches the files that they were made of.
    """

    pieces: tuple[ScanPiece, ...]
    names: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Of the files as they lie there."""
        return sum(piece.size_bytes for piece in self.pieces)


def select(paths: Iterable[str], *, tokenizer: Path | None = None, homes: Sequence[Path] = ()) -> Selection:
    """The pieces of everything that the paths name, each once.

    Args:
        paths: files, folders (with all that is in them and not hidden), globs, or URLs of these.
        tokenizer: of the caches among them; else it is looked for in the home that a cache lies in, and in `homes`.

    Raises:
        ConfigError: a path names nothing.
        DataError: a cache is damaged, or its tokenizer is not found.
    """
    pieces: dict[ScanPiece, None] = {}
    names: dict[str, None] = {}
    for given in paths:
        found = False
        for place in _places(given):
            found = True
            if isinstance(place, _File):
                pieces |= dict.fromkeys(_file_pieces(place))
                names[place.below] = None
            else:
                manifest = read_manifest(place)
                chosen = tokenizer or find_tokenizer(place, manifest, homes)
                pieces |= dict.fromkeys(cache_pieces(place, manifest, chosen))
                names |= dict.fromkeys(file.name for file in manifest.sources)
        if not found:
            raise ConfigError(f"{given} names no file, no folder with files and no token cache: give what is to be scanned.")
    return Selection(tuple(pieces), tuple(names))


def cache_pieces(folder: Path, manifest: Manifest, tokenizer: Path) -> list[CachePiece]:
    """The shards of a cache."""
    return [CachePiece(folder, number, tokenizer, 2 * shard.tokens) for number, shard in enumerate(manifest.shards)]


def find_tokenizer(folder: Path, manifest: Manifest, homes: Iterable[Path] = ()) -> Path:
    """The tokenizer that made a cache, by its digest, among those of the home that it lies in and of `homes`.

    Raises:
        DataError: none of them is it.
    """
    roots = dict.fromkeys([*folder.parents[2:3], *homes])
    for path in (path for root in roots for path in sorted((root / "tokenizers").glob("*/tokenizer.json"))):
        if digest_of_file(path) == manifest.tokenizer_digest:
            return path
    looked = ", ".join(f"{root / 'tokenizers'}" for root in roots)
    raise DataError(
        f"the cache {folder} was made with the tokenizer {manifest.tokenizer_digest[:16]}, which is not under {looked}: "
        "name its tokenizer.json with --tokenizer, or the home that has it with --home."
    )


class _File(NamedTuple):
    """A file: its name for people, its URL, its name below what was given, its size."""

    name: str
    url: str
    below: str
    size_bytes: int


def _places(given: str) -> Iterator["_File | Path"]:
    """The files and the folders of token caches that a path, a glob or a URL names."""
    try:
        file_system, path = fsspec.core.url_to_fs(given)
        if isinstance(file_system, LocalFileSystem):
            for one in [given] if os.path.lexists(given) or "://" in given else sorted(glob.glob(given, recursive=True)):
                yield from _local(str(as_path(one)))
            return
        for one in [path] if not set("*?[") & set(path) else sorted(file_system.glob(path)):
            yield from _remote(file_system, one)
    except (ConfigError, DataError):
        raise
    except Exception as error:  # each file system has errors of its own
        raise DataError(f"{given} cannot be listed: {type(error).__name__}: {error}") from error


def _local(path: str) -> Iterator["_File | Path"]:
    if os.path.isfile(path):
        yield _File(path, os.path.abspath(path), os.path.basename(path), os.path.getsize(path))
        return
    entered: set[str] = set()  # links may go in circles
    for folder, folders, files in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered or _is_cache(Path(folder), files):
            folders.clear()
            if real not in entered:
                yield Path(folder)
            entered.add(real)
            continue
        entered.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            whole = os.path.join(folder, name)
            if os.path.isfile(whole):
                yield _File(whole, os.path.abspath(whole), os.path.relpath(whole, path), os.path.getsize(whole))


def _remote(file_system: Any, path: str) -> Iterator["_File | Path"]:
    url = str(file_system.unstrip_protocol(path))
    if not file_system.isdir(path):
        if file_system.exists(path):
            yield _File(url, url, path.rsplit("/", 1)[-1], int(file_system.size(path) or 0))
        return
    details: dict[str, dict[str, Any]] = file_system.find(path, detail=True)
    folders = (name.rpartition("/")[0] for name in sorted(details) if name.endswith(f"/{MANIFEST_NAME}"))
    caches = {f"{name}/": place for name in folders if _is_cache(place := as_path(file_system.unstrip_protocol(name)), (MANIFEST_NAME,))}
    yield from caches.values()
    for name, detail in sorted(details.items()):
        below = name.removeprefix(path).lstrip("/")
        if not any(name.startswith(folder) for folder in caches) and not any(part.startswith(".") for part in below.split("/")):
            url = str(file_system.unstrip_protocol(name))
            yield _File(url, url, below, int(detail.get("size") or 0))


def _is_cache(folder: Path, names: Iterable[str]) -> bool:
    """Whether a folder has the manifest of a token cache: other folders have manifests, too."""
    if MANIFEST_NAME not in names:
        return False
    try:
        content = read_json(folder / MANIFEST_NAME)
    except ValueError:
        return False
    return isinstance(content, dict) and {"tokenizer_digest", "shards", "split"} <= set(content)


def _file_pieces(file: _File) -> Iterator[FilePiece]:
    """A plain file of JSON lines by ranges, all else whole. A `.json` file too large to be held is read as lines."""
    kind = format_of(file.name)
    if kind != "jsonl" or is_packed(file.name):
        yield FilePiece(file.name, file.url, kind, file.size_bytes)
        return
    for start in range(0, max(1, file.size_bytes), PIECE_BYTES):
        stop = min(start + PIECE_BYTES, file.size_bytes)
        yield FilePiece(file.name, file.url, kind, stop - start, start, stop)
