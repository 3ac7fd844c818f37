"""What of a working folder is to be kept on the store, at one moment.

Files that are written whole are read first and files that only grow last. A checkpoint is committed before its result, and rows are written
before their checkpoint: so what is kept is never a result without its checkpoint, nor a checkpoint without its rows.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from phasewise.tasks.store.head import Files, Piece
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.run_folder import CHECKPOINTS_NAME, is_kept
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, committed_files

PIECE_BYTES = 2**22
"""A file that grows is kept in pieces: only the last one is sent again."""
GROWING = (".jsonl", ".log")
TRIES = 10

Signature = tuple[int, int, int]


class Source(NamedTuple):
    """Where the bytes of a piece are: in memory, or in a file that does not change any more."""

    content: bytes | None
    path: Path | None


@dataclass(frozen=True)
class Snapshot:
    """What was there.

    Attributes:
        files: as the head names them.
        sources: digest → where its bytes are, for everything that the head needs, the files of checkpoints too.
    """

    files: Files
    sources: Mapping[str, Source]


class Changing(Exception):
    """Files were replaced while they were read, each time: there is no one moment. What works there goes on; the next look comes."""


def take_snapshot(root: Path, folders: Iterable[str]) -> Snapshot:
    """What is in these folders below `root`.

    Raises:
        Changing: they were never still for long enough.
    """
    folders = tuple(folders)
    for _ in range(TRIES):
        try:
            before = dict(_whole(root, folders))
            files: dict[str, tuple[Piece, ...]] = {}
            sources: dict[str, Source] = {}
            for name in before:
                files[name] = _add(root / name, sources)
                if is_list_of_checkpoint(name):
                    sources |= _of_checkpoint(root / name)
            for name in sorted(_growing(root, folders)):
                files[name] = _add(root / name, sources)
            if dict(_whole(root, folders)) == before:
                return Snapshot(files, sources)
        except FileNotFoundError:  # deleted meanwhile
            continue
    raise Changing


def is_list_of_checkpoint(name: str) -> bool:
    """Whether a file is the one that commits a checkpoint and names its other files."""
    parts = name.split("/")
    return len(parts) > 2 and parts[-1] == DIGESTS_NAME and parts[-3] == CHECKPOINTS_NAME


def pieces_of(content: bytes) -> list[tuple[Piece, bytes]]:
    """The content in pieces; none where it is empty."""
    cut = [content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)]
    return [(Piece(sha256=digest_of_bytes(part), size_bytes=len(part)), part) for part in cut]


def digest_of_pieces(path: Path) -> tuple[Piece, ...] | None:
    """The pieces of a file here, without their bytes; None where there is none."""
    try:
        return tuple(piece for piece, _ in pieces_of(path.read_bytes()))
    except FileNotFoundError:
        return None


def kept_names(root: Path, folders: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Every file here that belongs on the store, by its name below `root`; of a checkpoint the list of its files alone."""
    for folder in folders:
        for place, inner, names in os.walk(root / folder):
            inner[:] = sorted(name for name in inner if is_kept(name))
            if Path(place).parent.name == CHECKPOINTS_NAME:
                inner.clear()
                names = [name for name in names if name == DIGESTS_NAME]
            for name in sorted(names):
                if is_kept(name):
                    path = Path(place) / name
                    yield path.relative_to(root).as_posix(), path


def _whole(root: Path, folders: Iterable[str]) -> Iterator[tuple[str, Signature]]:
    for name, path in kept_names(root, folders):
        if not name.endswith(GROWING):
            found = path.stat()
            yield name, (found.st_size, found.st_mtime_ns, found.st_ino)


def _growing(root: Path, folders: Iterable[str]) -> Iterator[str]:
    return (name for name, _ in kept_names(root, folders) if name.endswith(GROWING))


def _add(path: Path, sources: dict[str, Source]) -> tuple[Piece, ...]:
    pieces = pieces_of(path.read_bytes())
    for piece, content in pieces:
        sources[piece.sha256] = Source(content, None)
    return tuple(piece for piece, _ in pieces)


def _of_checkpoint(listed: Path) -> dict[str, Source]:
    """The files that the list names. One that does not read names none: the checkpoint is damaged, here as there."""
    found = committed_files(listed.parent)
    if isinstance(found, str):
        return {}
    return {digest: Source(None, listed.parent / name) for name, (_, digest) in found.items()}


def digests_listed(content: bytes) -> set[str]:
    """The digests of the files that a checkpoint's list names; none where it does not read."""
    try:
        return {str(said["sha256"]) for said in json.loads(content)["files"].values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()
