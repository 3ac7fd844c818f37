"""The scan of files and caches for benchmark items, piece by piece, in this process or in workers with the same result.

Neighbouring documents are compared within a piece only.
"""

import glob
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import ValidationError

from phasewise.tasks.data.listing import printable
from phasewise.tasks.data.streams import open_watched, raise_failure, recognise
from phasewise.tasks.data.tokenizer import load_tokenizer
from phasewise.tasks.locks import held
from phasewise.tasks.progress import advance
from phasewise.tasks.validation.evidence_keys import folder_digest, index_folder
from phasewise.tasks.validation.scan_files import FilePiece, Reading, Unread, excluded, is_called_lines
from phasewise.tasks.validation.scan_texts import PEEK_BYTES, has_lines_of_json
from phasewise.trainer.base.errors import ConfigError, DataError, refused_by_system
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import NotAsWritten, code_digest, digest_of_file, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.storage import as_path, read_json
from phasewise.trainer.data.manifest import MANIFEST_NAME, Manifest, read_manifest
from phasewise.validations.evidence.leakage.detokenize import Detokenize, build_detokenizer
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.item_files import read_benchmarks
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Scan, cache_documents, merge_scans, scan_documents
from phasewise.validations.limits import LeakageLimits


def index_of_folder(folder: str, store: Path) -> Path:
    """Return the index of a file or folder of benchmarks, which is built if it is missing."""
    path = as_path(folder)
    if not path.exists():
        raise ConfigError(f"there is no {folder}: --benchmarks needs a folder with a folder for each benchmark, or one of its files.")
    try:
        return keep_index(folder_digest(path), lambda: read_benchmarks(path), store)
    except DataError as error:
        raise ConfigError(f"--benchmarks needs a folder of benchmark items: {error}") from None


def keep_index(key: str, read: Callable[[], Sequence[BenchmarkItem]], store: Path) -> Path:
    """Return the folder of the index with this key. If it is missing, one process builds it atomically."""
    folder = index_folder(key, store)
    if folder.exists():
        return folder
    with held(store / f"{folder.name}.lock"):
        if folder.exists():
            return folder
        built = LeakageIndex.build(read())
        making = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        try:
            with refused_by_system(folder):
                making.mkdir(parents=True)
                built.save(making)
                os.replace(making, folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder


@lru_cache(maxsize=2)
def open_index(folder: Path) -> LeakageIndex:
    """Return the memory-mapped index in a folder."""
    return LeakageIndex.load(folder)


PIECE_BYTES, MIN_CLUSTER_BYTES = 32 * 2**20, 128 * 2**20
LOOK_THREADS, PIECES_AT_ONCE = 8, 1024
STAGE = "leakage scan"


def open_detokenizer(path: Path) -> Detokenize:
    """Return the decoder of token ids for a tokenizer file."""
    return _detokenizer(path, digest_of_file(path))


@lru_cache(maxsize=4)
def _detokenizer(path: Path, _digest: str) -> Detokenize:
    return build_detokenizer(load_tokenizer(path))


class CachePiece(NamedTuple):
    """A shard of a token cache with its tokenizer."""

    folder: Path
    shard: int
    tokenizer: Path
    size_bytes: int


ScanPiece = FilePiece | CachePiece


class Selection(NamedTuple):
    """The pieces of a scan."""

    pieces: tuple[ScanPiece, ...]
    names: tuple[str, ...]  # the names of all files, and of the source files of caches
    unread: tuple[Unread, ...] = ()  # excluded and hidden files, pipes, broken links, folders without permission


def select(
    paths: Iterable[str], *, tokenizer: Path | None = None, homes: Sequence[Path] = (), exclude: tuple[str, ...] = ()
) -> Selection:  # fmt: skip
    """Return the pieces of these paths, without duplicates.

    `paths`: files, folders (without hidden files), globs, or URLs of these. `tokenizer`: the tokenizer of the caches. By default it is
    searched in the home of a cache, and in `homes`. `exclude`: globs over the paths of files below a given folder, and of archive members.
    Raises ConfigError or DataError if a path has no files, a cache is damaged, or its tokenizer is not found.
    """
    files: dict[FilePiece, None] = {}
    caches: dict[CachePiece, None] = {}
    names: dict[str, None] = {}
    unread: dict[Unread, None] = {}
    for given in paths:
        found = False
        for place in _places(given):
            found = True
            if isinstance(place, Unread):
                unread[place] = None
            elif not isinstance(place, FilePiece):
                manifest = read_manifest(place)
                chosen = tokenizer or find_tokenizer(place, manifest, homes)
                shards = enumerate(manifest.shards)
                caches |= dict.fromkeys(CachePiece(place, number, chosen, 2 * shard.tokens) for number, shard in shards)
                names |= dict.fromkeys(file.name for file in manifest.sources)
            elif is_out := excluded(place.name, place.below, exclude):
                unread[is_out] = None
            else:
                files[place] = None
                names[place.below] = None
        if not found:
            raise ConfigError(f"{given} has no files and no token cache: name a file, a folder, a glob or a URL to scan.")
    with ThreadPoolExecutor(LOOK_THREADS, thread_name_prefix="look") as pool:
        of_files = pool.map(lambda file: _file_pieces(file, exclude), files)
        pieces = tuple(dict.fromkeys(piece for some in of_files for piece in some))
    return Selection((*pieces, *caches), tuple(names), tuple(unread))


def find_tokenizer(folder: Path, manifest: Manifest, homes: Iterable[Path] = ()) -> Path:
    """Return the tokenizer of a cache by its digest, from the home of the cache or from `homes`."""
    roots = dict.fromkeys([*folder.parents[2:3], *homes])
    for path in (path for root in roots for path in sorted((root / "tokenizers").glob("*/tokenizer.json"))):
        if digest_of_file(path) == manifest.tokenizer_digest:
            return path
    looked = ", ".join(f"{root / 'tokenizers'}" for root in roots)
    raise DataError(
        f"the cache {folder} was made with the tokenizer {manifest.tokenizer_digest[:16]}, which is not under {looked}: "
        "name its tokenizer.json with --tokenizer, or the home that has it with --home."
    )


def _places(given: str) -> Iterator["FilePiece | Path | Unread"]:
    """Yield the files and token caches of a path, a glob or a URL, and the unread entries."""
    try:
        file_system, path = fsspec.core.url_to_fs(given)
        if isinstance(file_system, LocalFileSystem):
            for one in [given] if os.path.lexists(given) or "://" in given else sorted(glob.glob(given, recursive=True)):
                yield from _local(str(as_path(one)))
            return
        for one in [path] if not set("*?[") & set(path) else sorted(file_system.glob(path)):
            url = str(file_system.unstrip_protocol(one))
            if not file_system.isdir(one):
                if file_system.exists(one):
                    yield FilePiece(url, url, one.rsplit("/", 1)[-1], int(file_system.size(one) or 0))
                continue
            details: dict[str, dict[str, Any]] = file_system.find(one, detail=True)
            caches: list[str] = []
            for name in sorted(details):
                folder, _, last = name.rpartition("/")
                if last == MANIFEST_NAME and _is_cache(place := as_path(file_system.unstrip_protocol(folder)), (MANIFEST_NAME,)):
                    caches.append(f"{folder}/")
                    yield place
            for name, detail in sorted(details.items()):
                below = name.removeprefix(one).lstrip("/")
                if name.startswith(tuple(caches)):
                    continue
                url = str(file_system.unstrip_protocol(name))
                if any(part.startswith(".") for part in below.split("/")):
                    yield Unread(url, "hidden: name it to have it scanned", is_fault=False)
                else:
                    yield FilePiece(url, url, below, int(detail.get("size") or 0))
    except (ConfigError, DataError):
        raise
    except Exception as error:  # each file system has its own errors
        raise DataError(f"{given} cannot be listed: {type(error).__name__}: {error}") from error


def _local(path: str) -> Iterator["FilePiece | Path | Unread"]:
    if not os.path.isdir(path):
        if os.path.lexists(path):
            yield _local_file(path, os.path.basename(path))
        return
    entered: set[str] = set()  # links may be circular
    closed: list[OSError] = []
    for folder, folders, files in os.walk(path, followlinks=True, onerror=closed.append):
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
    for error in closed:
        yield Unread(printable(str(error.filename)), f"this folder cannot be listed: {error.strerror}", is_fault=True)


def _local_file(path: str, below: str) -> "FilePiece | Unread":
    """Return a file, or an `Unread` for a pipe, which has no end."""
    if os.path.isfile(path):
        return FilePiece(printable(path), os.path.abspath(path), below, os.path.getsize(path))
    what = "a pipe, a socket or a device, and no file" if os.path.exists(path) else "a link that leads nowhere"
    return Unread(printable(path), what, is_fault=True)


def _is_cache(folder: Path, names: Iterable[str]) -> bool:
    """Return whether a folder has the manifest of a token cache, because other folders have manifests as well."""
    with suppress(ValueError):
        content = read_json(folder / MANIFEST_NAME) if MANIFEST_NAME in names else None
        return isinstance(content, dict) and {"tokenizer_digest", "shards", "split"} <= set(content)
    return False


def _file_pieces(file: FilePiece, exclude: tuple[str, ...]) -> list[FilePiece]:
    """Return a large plain file of JSON lines as equal byte ranges, for balanced workers, and any other file as one piece."""
    whole, has_lines = file._replace(exclude=exclude), False
    if file.size_bytes > PIECE_BYTES:
        with suppress(OSError, DataError), open_watched(file.url) as opened:  # the reader reports the error
            kind, stream = recognise(opened)
            has_lines = kind.nature == "text" and (is_called_lines(file.below) or has_lines_of_json(stream.read(PEEK_BYTES)))
    if not has_lines:
        return [whole]
    count = -(-file.size_bytes // PIECE_BYTES)
    cuts = [file.size_bytes * cut // count for cut in range(count + 1)]
    return [whole._replace(size_bytes=stop - start, start=start, stop=stop) for start, stop in pairwise(cuts)]


class PieceScan(Frozen):
    """The result of a piece. `numbers` is its number of documents, the offset of the next piece of the file."""

    scan: Scan
    numbers: int
    unread: tuple[Unread, ...] = ()


class Scanned(NamedTuple):
    """The scan of all files under `None`, the scan of each token cache under its folder, and the unread files."""

    scans: dict[Path | None, Scan]
    unread: list[Unread]


CHANGING = ("mtime", "created", "ino", "ETag", "etag", "generation", "last_modified", "blob_id")  # with a file's bytes, on some store
KEPT = ".pieces"  # suffix of the folder beside an index, with the results of pieces until the whole scan ends


def scan_piece(piece: ScanPiece, index: Path, limits: LeakageLimits, keeps: bool = False) -> PieceScan:
    """Scan one piece for the items of an index, in a worker. `keeps`: the result is kept for an interrupted scan."""
    kept, urls = None, [piece.url] if isinstance(piece, FilePiece) else [str(piece.tokenizer)]
    if keeps:
        if isinstance(piece, CachePiece):
            urls += [f"{piece.folder}/{name}" for name in read_manifest(piece.folder).shards[piece.shard].files]
        told: list[dict[str, Any]] = []
        with suppress(Exception):  # each file system has its own errors, and the reader reports them
            told = [file_system.info(path) for file_system, path in map(fsspec.core.url_to_fs, urls)]
        marks = [{name: str(one[name]) for name in CHANGING if name in one} for one in told]
        code = code_digest("tasks/data/*.py", "tasks/validation/scan_*.py")
        name = digest_of_json([code, limits.model_dump(mode="json"), list(map(str, piece)), marks])
        kept = index.with_suffix(KEPT) / f"{name}.json" if marks and all(marks) else None
    if kept:
        with suppress(OSError, NotAsWritten, ValidationError):
            return PieceScan.model_validate(read_sealed(kept))
    if isinstance(piece, CachePiece):
        documents = cache_documents(piece.folder, open_detokenizer(piece.tokenizer), piece.shard)
        scan = scan_documents(documents, open_index(index), limits)
        found = PieceScan(scan=scan, numbers=scan.documents)
    else:
        reading = Reading(piece)
        try:
            scan = scan_documents(reading, open_index(index), limits)
        except OSError as error:
            raise_failure(piece.url, error)
        found = PieceScan(scan=scan, numbers=reading.documents, unread=tuple(reading.unread))
    if kept:
        with suppress(OSError):  # it is only scanned again
            write_sealed(kept, found.model_dump(mode="json"))
    return found


def scan_pieces(pieces: Sequence[ScanPiece], index: Path, limits: LeakageLimits, *, workers: int | None = None) -> Scanned:
    """Scan all pieces, and number the documents of each file. A large scan starts a cluster, and an interrupted one goes on."""
    scans, unread, counted = dict[Path | None, Scan](), list[Unread](), dict[str, int]()
    is_here = workers == 1 or len(pieces) == 1 or (workers is None and sum(piece.size_bytes for piece in pieces) < MIN_CLUSTER_BYTES)
    for start in range(0, len(pieces), PIECES_AT_ONCE):
        some, found = pieces[start : start + PIECES_AT_ONCE], list[PieceScan]()
        if is_here:
            for piece in some:
                found.append(scan_piece(piece, index, limits))
                advance(STAGE, start + len(found), len(pieces))
        else:
            from phasewise.tasks.data.cluster import WORKERS_VARIABLE, run_all  # a slow import

            os.environ |= {} if workers is None else {WORKERS_VARIABLE: str(workers)}
            found = run_all(STAGE, scan_piece, [(piece, index, limits, True) for piece in some])
        by_place: dict[Path | None, list[Scan]] = {}
        for piece, one in zip(some, found, strict=True):
            unread += one.unread
            if isinstance(piece, CachePiece):
                by_place.setdefault(piece.folder, []).append(one.scan)
                continue
            before = counted.get(piece.url, 0)
            counted[piece.url] = before + one.numbers
            hits = tuple(
                hit if hit.id and not before else replace(hit, document=hit.document + before, id=hit.id or f"#{hit.document + before}")
                for hit in one.scan.hits
            )
            by_place.setdefault(None, []).append(Scan(documents=one.scan.documents, bytes=one.scan.bytes, hits=hits))
        for place, new in by_place.items():
            scans[place] = merge_scans([*([scans[place]] if place in scans else []), *new])
    if not is_here:
        shutil.rmtree(index.with_suffix(KEPT), ignore_errors=True)
    return Scanned(scans, unread)
