"""What `phasewise scan` is given, as pieces of work: files, folders, globs and URLs of files, and token caches."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from phasewise.tasks.data.listing import printable
from phasewise.tasks.data.streams import open_watched, recognise
from phasewise.tasks.validation.scan_files import FilePiece, Unread, excluded, is_called_lines
from phasewise.tasks.validation.scan_plain import PEEK_BYTES, has_lines_of_json
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.storage import as_path, read_json
from phasewise.trainer.data.manifest import MANIFEST_NAME, Manifest, read_manifest

PIECE_BYTES = 32 * 2**20
LOOK_THREADS = 8


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
        unread: what is there and is not read: excluded, hidden, a pipe, a link that leads nowhere, a folder that may not be listed.
    """

    pieces: tuple[ScanPiece, ...]
    names: tuple[str, ...]
    unread: tuple[Unread, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of the files as they lie there."""
        return sum(piece.size_bytes for piece in self.pieces)


def select(
    paths: Iterable[str], *, tokenizer: Path | None = None, homes: Sequence[Path] = (), exclude: tuple[str, ...] = ()
) -> Selection:  # fmt: skip
    """The pieces of everything that the paths name, each once.

    Args:
        paths: files, folders (with all that is in them and not hidden), globs, or URLs of these.
        tokenizer: of the caches among them; else it is looked for in the home that a cache lies in, and in `homes`.
        exclude: globs over the names of files below what was given, and of members of archives.

    Raises:
        ConfigError: a path names nothing.
        DataError: a cache is damaged, or its tokenizer is not found.
    """
    files: dict[_File, None] = {}
    caches: dict[CachePiece, None] = {}
    names: dict[str, None] = {}
    unread: dict[Unread, None] = {}
    for given in paths:
        found = False
        for place in _places(given):
            found = True
            if isinstance(place, Unread):
                unread[place] = None
            elif not isinstance(place, _File):
                manifest = read_manifest(place)
                chosen = tokenizer or find_tokenizer(place, manifest, homes)
                caches |= dict.fromkeys(cache_pieces(place, manifest, chosen))
                names |= dict.fromkeys(file.name for file in manifest.sources)
            elif is_out := excluded(place.name, place.below, exclude):
                unread[is_out] = None
            else:
                files[place] = None
                names[place.below] = None
        if not found:
            raise ConfigError(f"{given} names no file, no folder with files and no token cache: give what is to be scanned.")
    with ThreadPoolExecutor(LOOK_THREADS, thread_name_prefix="look") as pool:
        of_files = pool.map(lambda file: _file_pieces(file, exclude), files)
        pieces = tuple(dict.fromkeys(piece for some in of_files for piece in some))
    return Selection((*pieces, *caches), tuple(names), tuple(unread))


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


def _places(given: str) -> Iterator["_File | Path | Unread"]:
    """The files and the folders of token caches that a path, a glob or a URL names, and what else is there."""
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


def _local(path: str) -> Iterator["_File | Path | Unread"]:
    if not os.path.isdir(path):
        if os.path.lexists(path):
            yield _local_file(path, os.path.basename(path))
        return
    entered: set[str] = set()  # links may go in circles
    closed: list[Unread] = []

    def say_closed(error: OSError) -> None:
        closed.append(Unread(printable(str(error.filename)), f"this folder cannot be listed: {error.strerror}", is_fault=True))

    for folder, folders, files in os.walk(path, followlinks=True, onerror=say_closed):
        real = os.path.realpath(folder)
        if real in entered or _is_cache(Path(folder), files):
            folders.clear()
            if real not in entered:
                yield Path(folder)
            entered.add(real)
            continue
        entered.add(real)
        for name in sorted(name for name in (*folders, *files) if name.startswith(".")):
            yield Unread(printable(os.path.join(folder, name)), "hidden: name it to have it scanned", is_fault=False)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            whole = os.path.join(folder, name)
            yield _local_file(whole, os.path.relpath(whole, path))
    yield from closed


def _local_file(path: str, below: str) -> "_File | Unread":
    """A file, or what it is that could be opened and never read to its end."""
    if os.path.isfile(path):
        return _File(printable(path), os.path.abspath(path), below, os.path.getsize(path))
    what = "a pipe, a socket or a device, and no file" if os.path.exists(path) else "a link that leads nowhere"
    return Unread(printable(path), what, is_fault=True)


def _remote(file_system: Any, path: str) -> Iterator["_File | Path | Unread"]:
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
        if any(name.startswith(folder) for folder in caches):
            continue
        url = str(file_system.unstrip_protocol(name))
        if any(part.startswith(".") for part in below.split("/")):
            yield Unread(url, "hidden: name it to have it scanned", is_fault=False)
        else:
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


def _file_pieces(file: _File, exclude: tuple[str, ...]) -> list[FilePiece]:
    """A large plain file of JSON lines by ranges of one size, so that no worker waits long for another; all else whole."""
    whole = FilePiece(file.name, file.url, file.below, file.size_bytes, exclude=exclude)
    if file.size_bytes <= PIECE_BYTES or not _has_plain_lines(file):
        return [whole]
    count = -(-file.size_bytes // PIECE_BYTES)
    cuts = [file.size_bytes * cut // count for cut in range(count + 1)]
    ranges = list(pairwise(cuts))
    return [whole._replace(size_bytes=stop - start, start=start, stop=stop) for start, stop in ranges]


def _has_plain_lines(file: _File) -> bool:
    """Whether a file is JSON lines and not packed. One that cannot be read is none: whoever reads it says why."""
    try:
        with open_watched(file.url) as opened:
            kind, stream = recognise(opened)
            return kind.nature == "text" and (is_called_lines(file.below) or has_lines_of_json(stream.read(PEEK_BYTES)))
    except (OSError, DataError):
        return False
