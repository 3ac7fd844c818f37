"""Content on the store under the name of its digest: uploaded, downloaded and checked, and deleted when no head names it any more."""

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from phasewise.tasks.progress import say
from phasewise.tasks.store.head import ABSENT, Files, Head, HeadObject, Piece, bucket_and_name
from phasewise.trainer.base.errors import StorageError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file
from phasewise.trainer.base.run_folder import CHECKPOINTS_NAME, is_kept
from phasewise.trainer.base.storage import cleaning_up, put_file, write_atomically
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, committed_files, digests_here, find_damage, remove_checkpoint

HEAD_NAME, OBJECTS_NAME = "head.json", "objects"
ARRIVING = ".arriving"
"""A folder here for pieces on their way."""
PIECE_BYTES = 2**22
"""A file that grows is kept in pieces: only the last one is uploaded again."""
GROWING = (".jsonl", ".log")
TRIES = 10
THREADS = 8
READ_BYTES = 2**24
T = TypeVar("T")
WHAT_TO_DO = "Bring it back from a copy, or take the object's earlier version."


class Source(NamedTuple):
    """Where the bytes of a piece are: in memory, or in a file that does not change any more."""

    content: bytes | None
    path: Path | None


class Snapshot(NamedTuple):
    """What was there: files as the head names them, and digest → where the bytes are, for all that the head needs."""

    files: Files
    sources: Mapping[str, Source]


class Changing(Exception):
    """Files were replaced while they were read, each time: there is no one moment. What works there goes on; the next look comes."""


def take_snapshot(root: Path, folders: Iterable[str]) -> Snapshot:
    """Return what is in these folders below `root`.

    Raises:
        Changing: they were never still for long enough.
    """
    folders = tuple(folders)

    def signatures() -> dict[str, tuple[int, int, int]]:
        found = {name: path.stat() for name, path in kept_names(root, folders) if not name.endswith(GROWING)}
        return {name: (about.st_size, about.st_mtime_ns, about.st_ino) for name, about in found.items()}

    for _ in range(TRIES):
        with suppress(FileNotFoundError):  # deleted meanwhile
            files: dict[str, tuple[Piece, ...]] = {}
            sources: dict[str, Source] = {}
            before = signatures()
            growing = (name for name, _ in kept_names(root, folders) if name.endswith(GROWING))  # looked for when all else is read
            for name in chain(before, growing):
                pieces = pieces_of((root / name).read_bytes())
                files[name] = tuple(piece for piece, _ in pieces)
                sources |= {piece.sha256: Source(content, None) for piece, content in pieces}
                folder = (root / name).parent
                if is_list_of_checkpoint(name) and not isinstance(listed := committed_files(folder), str):
                    sources |= {digest: Source(None, folder / file) for file, (_, digest) in listed.items()}
            if signatures() == before:
                return Snapshot(files, sources)
    raise Changing


def is_list_of_checkpoint(name: str) -> bool:
    """Return whether a file is the one that commits a checkpoint and names its other files."""
    parts = name.split("/")
    return len(parts) > 2 and parts[-1] == DIGESTS_NAME and parts[-3] == CHECKPOINTS_NAME


def pieces_of(content: bytes) -> list[tuple[Piece, bytes]]:
    """Return the content in pieces; none if it is empty."""
    cut = [content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)]
    return [(Piece(sha256=digest_of_bytes(part), size_bytes=len(part)), part) for part in cut]


def digest_of_pieces(path: Path) -> tuple[Piece, ...] | None:
    """Return the pieces of a file here, without their bytes; None if there is none."""
    with suppress(FileNotFoundError):
        return tuple(piece for piece, _ in pieces_of(path.read_bytes()))
    return None


def kept_names(root: Path, folders: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield every file here that belongs on the store, by its name below `root`; of a checkpoint only the list of its files."""
    for folder in folders:
        for place, inner, names in os.walk(root / folder):
            inner[:] = sorted(name for name in inner if is_kept(name))
            if Path(place).parent.name == CHECKPOINTS_NAME:
                inner.clear()
                names = [name for name in names if name == DIGESTS_NAME]
            for name in sorted(filter(is_kept, names)):
                path = Path(place) / name
                yield path.relative_to(root).as_posix(), path


@dataclass(frozen=True)
class Objects:
    """The folder of all content, at its URL."""

    folder: Path

    def send(self, sources: Mapping[str, Source]) -> None:
        """Upload each, also if an object of that name is there: it may be deleted by the one who left it."""

        def send(item: tuple[str, Source]) -> None:
            digest, (content, path) = item
            if content is not None:
                write_atomically(self.folder / digest, content)
            elif path is not None:
                try:
                    put_file(path, self.folder / digest)
                except FileNotFoundError:
                    if path.exists():
                        raise  # there is no such bucket
                    raise Changing from None

        _each(send, sources.items())

    def bring(self, digest: str, path: Path) -> None:
        """Download one to a file of this machine, which appears whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        coming = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        file_system, bucket, name = bucket_and_name(self.folder / digest)
        try:
            _, about = file_system.call("GET", "b/{}/o/{}", bucket, name)
            with open(coming, "wb") as file:
                for start in range(0, size := int(json.loads(about)["size"]), READ_BYTES):  # gcsfs's own `get_file` asks a listing first
                    file.write(file_system.cat_file(f"{bucket}/{name}", start=start, end=min(start + READ_BYTES, size)))
            if (now := digest_of_file(coming)) != digest:
                raise StorageError(f"{self.folder / digest} has other bytes than were sent (SHA-256 {now[:12]}). {WHAT_TO_DO}")
            os.replace(coming, path)
        except FileNotFoundError:
            raise StorageError(f"{self.folder / digest} is named by the head, and is not there. {WHAT_TO_DO}") from None
        finally:
            coming.unlink(missing_ok=True)

    def bring_all(self, wanted: Mapping[Path, str]) -> None:
        """Download each to its path here."""
        _each(lambda item: self.bring(item[1], item[0]), wanted.items())

    def content(self, digest: str) -> bytes:
        """Return the bytes of a small one."""
        with tempfile.TemporaryDirectory() as folder:
            self.bring(digest, path := Path(folder) / digest)
            return path.read_bytes()

    def versions(self, digests: Collection[str]) -> dict[str, str]:
        """Return the generation of each that is there."""

        def version(digest: str) -> str:
            file_system, bucket, name = bucket_and_name(self.folder / digest)
            with suppress(FileNotFoundError):
                return str(json.loads(file_system.call("GET", "b/{}/o/{}", bucket, name)[1])["generation"])
            return ""

        return {digest: found for digest, found in zip(digests, _each(version, digests), strict=True) if found}

    def delete(self, versions: Mapping[str, str]) -> None:
        """Delete these versions, if the store allows it. One that was uploaded again since has another, and is left."""

        def delete(item: tuple[str, str]) -> None:
            file_system, bucket, name = bucket_and_name(self.folder / item[0])
            with suppress(FileNotFoundError, FileExistsError):  # gcsfs's words for gone, and for another version
                file_system.call("DELETE", "b/{}/o/{}", bucket, name, ifGenerationMatch=item[1])

        with cleaning_up(self.folder):
            _each(delete, versions.items())

    def delete_others(self, named: Collection[str]) -> None:
        """Delete all but these, by a listing, which may lag."""
        file_system, bucket, name = bucket_and_name(self.folder)
        with cleaning_up(self.folder):
            found = file_system.find(f"{bucket}/{name.rstrip('/')}", detail=True)
            digests = {path.rpartition("/")[2]: str(about["generation"]) for path, about in found.items()}
            self.delete({digest: version for digest, version in digests.items() if digest not in named})


def read_head(head: HeadObject, objects: Objects, known: Path) -> tuple[Head, str]:
    """Return the head and its generation; an empty one if nothing was ever committed.

    Args:
        known: the file here that names the commits made from here.

    Raises:
        StorageError: it is missing, and was there before: what is here would be taken for what nobody committed, and be deleted.
    """
    found, generation = head.read()
    if generation == ABSENT:
        file_system, bucket, name = bucket_and_name(objects.folder)
        if known.exists() or file_system.call("GET", "b/{}/o", bucket, prefix=f"{name.rstrip('/')}/", maxResults=1, json_out=True).get(
            "items"
        ):
            raise StorageError(
                f"{head.place} is not there, and content that it named is: bring back the version of this object that was deleted. To "
                f"begin anew, delete what is below {objects.folder} and, on every machine that worked on it, {known}."
            )
    return found, generation


def bring_here(root: Path, folders: Iterable[str], files: Files, objects: Objects, *, weights_below: str | None = "") -> int:
    """Make the folders below `root` what the head says; what else belongs on the store and is here is deleted. Return how many files came.

    Args:
        weights_below: of checkpoints those whose names begin so are wanted; None is none. Of the others, those that are here stay if they
            are what the head says.

    Raises:
        StorageError: a file that the head names is missing, or has other bytes; not of a checkpoint, which is left out.
    """
    shutil.rmtree(root / ARRIVING, ignore_errors=True)
    here = dict(kept_names(root, tuple(folders)))
    for name in here.keys() - files.keys():
        if is_list_of_checkpoint(name):
            remove_checkpoint(here[name].parent)
        else:
            here[name].unlink()
    came = 0
    for name, pieces in files.items():
        path = root / name
        if is_list_of_checkpoint(name):
            if weights_below is not None and name.startswith(weights_below):
                came += bring_or_leave(path, pieces, objects)
            elif path.exists() and digest_of_pieces(path) != tuple(pieces):
                remove_checkpoint(path.parent)
        elif digest_of_pieces(path) != tuple(pieces):
            write_atomically(path, content_of(root / ARRIVING, pieces, objects))
            came += 1
    shutil.rmtree(root / ARRIVING, ignore_errors=True)
    return came


def bring_or_leave(listed: Path, pieces: tuple[Piece, ...], objects: Objects) -> int:
    """Leave out a checkpoint that is damaged there: the trainer resumes from the one before, as if it were damaged here."""
    try:
        return bring_checkpoint(listed, pieces, objects)
    except StorageError as damage:
        for folder in (listed.parent, listed.parent.with_name(f".{listed.parent.name}")):
            shutil.rmtree(folder, ignore_errors=True)
        say(f"checkpoint {listed.parent} is left out: {damage}")
        return 0


def bring_checkpoint(listed: Path, pieces: tuple[Piece, ...], objects: Objects) -> int:
    """Download the files of a checkpoint that are not here, and return how many came."""
    folder, arrived = listed.parent, listed.parent.with_name(f".{listed.parent.name}") / listed.name
    if digest_of_pieces(listed) == tuple(pieces) and find_damage(folder) is None:
        return 0
    listed.unlink(missing_ok=True)
    content = content_of(arrived.parent, pieces, objects)
    write_atomically(arrived, content)
    wanted = committed_files(arrived.parent)
    if isinstance(wanted, str):
        raise StorageError(f"{listed} {wanted}, also on the store. Bring back an earlier version of the head.")
    here = digests_here(folder) if folder.exists() else {}
    for name in here.keys() - wanted.keys():
        (folder / name).unlink()
    missing = {folder / name: said[1] for name, said in wanted.items() if here.get(name) != said}
    objects.bring_all(missing)
    write_atomically(listed, content)
    shutil.rmtree(arrived.parent)
    return len(missing) + 1


def content_of(arriving: Path, pieces: Iterable[Piece], objects: Objects) -> bytes:
    """Return the bytes of a file that is not large, from its pieces, which wait in the folder `arriving`."""
    wanted = {arriving / piece.sha256: piece.sha256 for piece in pieces}
    objects.bring_all(wanted)
    return b"".join(path.read_bytes() for path in wanted)


def _each(what: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(what, items))
