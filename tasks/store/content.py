"""The work on a recipe on a store: content under the names of its digests, and one small object, the head, that commits files.

The head names the committed files and the process that may commit. It is replaced on the store's condition that it still has the version
that was read: of two processes that replace it the store rejects one, independent of clocks. Content without a name in the head is invalid.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import Field, ValidationError

from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError, StorageError, TakenOver
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file
from phasewise.trainer.base.run_folder import CHECKPOINTS_NAME, is_kept
from phasewise.trainer.base.storage import cleaning_up, file_system_of, put_file, write_atomically
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, committed_files, digests_here, find_damage, remove_checkpoint

HEAD_NAME, OBJECTS_NAME = "head.json", "objects"
ABSENT = "0"  # the generation of a missing object
PIECE_BYTES = 2**22  # files are stored in pieces: of a growing file only the last piece is uploaded again
GROWING = (".jsonl", ".log")
TRIES = 10
THREADS = 8
READ_BYTES = 2**24
T = TypeVar("T")
WHAT_TO_DO = "Restore it from a copy, or restore the object's earlier version."
MISSING = f"{{}} is named by the head, and is not there. {WHAT_TO_DO}"


class Changing(Exception):
    """Files were replaced during each attempt to read them. The next snapshot tries again."""


class Piece(Frozen):
    """A byte range of a file, stored under the name `sha256`."""

    sha256: str
    size_bytes: int


Files = Mapping[str, tuple[Piece, ...]]  # name below the home → its pieces in order. A checkpoint is named by its list of files only.
Sources = Mapping[str, bytes | Path]  # digest → the bytes, or an immutable file that has them


class Head(Frozen):
    """The committed files."""

    format: int = 1
    number: int = 0  # a fencing number, which each holder increments
    holder: str = ""  # a unique name of the process that may commit
    commit: str = ""  # a unique name of this head
    launch: str = ""  # whose first host commits for the holder (`tasks.training.hosts`). Empty: the holder commits itself
    files: dict[str, tuple[Piece, ...]] = Field(default_factory=dict)

    def taken(self) -> "Head":
        """Return the same files under a new holder."""
        return Head(number=self.number + 1, holder=uuid.uuid4().hex, commit=uuid.uuid4().hex, files=self.files)

    def followed(self, files: Files, launch: str = "") -> "Head":
        """Return the next commit of the same holder."""
        return Head(number=self.number, holder=self.holder, commit=uuid.uuid4().hex, launch=launch, files=dict(files))


def bucket_and_name(place: Path) -> tuple[Any, str, str]:
    """Return file system, bucket and object name. Raise `ConfigError` if the store can't replace an object on condition of its version."""
    store = file_system_of(place)
    if store is None or "gs" not in store[0].protocol:
        raise ConfigError(
            f"training needs a store that replaces an object only if it is still the version that was read, found {place}: that is "
            "known for gs:// alone. Take a home on gs://, or a local folder."
        )
    bucket, name = store[1].split("/", 1)
    return store[0], bucket, name


def read_version(place: Path, known: str | None = None) -> tuple[bytes, str] | None:
    """Return content and generation of an object, without a listing, or None if it is missing, or still has the generation `known`."""
    file_system, bucket, name = bucket_and_name(place)
    while True:
        try:
            _, about = file_system.call("GET", "b/{}/o/{}", bucket, name)
            generation = str(json.loads(about)["generation"])
            if generation == known:
                return None
            _, content = file_system.call("GET", "b/{}/o/{}", bucket, name, alt="media", ifGenerationMatch=generation)
            return content, generation
        except FileNotFoundError:
            return None
        except FileExistsError:  # gcsfs's error for a failed precondition: the object was replaced between the two requests
            continue


@dataclass(frozen=True)
class HeadObject:
    """The head on the store."""

    place: Path

    def read(self) -> tuple[Head, str]:
        """Return the head and its generation, or an empty head and "0" before the first commit."""
        return self.read_changed(None) or (Head(), ABSENT)

    def read_changed(self, known: str | None) -> tuple[Head, str] | None:
        """Return the head and its generation, if the generation differs from `known`."""
        if (found := read_version(self.place, known)) is None:
            return None
        content, generation = found
        try:
            return Head.model_validate_json(content), generation
        except ValidationError as error:
            raise StorageError(
                f"{self.place}: expected the list of the committed files, found a damaged object ({error.errors()[0]['msg']}). Restore an "
                "earlier version of this object."
            ) from error

    def replace(self, head: Head, generation: str) -> str:
        """Replace the version `generation` by `head`, or raise `TakenOver`. Return the new generation."""
        content = head.model_dump_json(exclude=None if head.launch else {"launch"}).encode()  # the format before there were launches
        file_system, bucket, name = bucket_and_name(self.place)
        upload = f"{file_system._location}/upload/storage/v1/b/{quote(bucket)}/o"  # gcsfs has no public name for it
        binary = {"Content-Type": "application/octet-stream"}
        try:
            _, answer = file_system.call(
                "POST", upload, uploadType="media", name=name, ifGenerationMatch=generation, headers=binary, data=content
            )
            return str(json.loads(answer)["generation"])
        except FileExistsError:
            found = read_version(self.place)
            if found is not None and found[0] == content:  # the answer to the first request was lost, and gcsfs repeated it
                return found[1]
            raise TakenOver(
                f"{self.place} is another's: this process has number {head.number}, the store has {self.read()[0].number}. Later "
                "work of this process is not committed."
            ) from None


def read_head(head: HeadObject, objects: "Objects", known: Path) -> tuple[Head, str]:
    """Return the head and its generation, an empty head before the first commit, or raise StorageError if a head was deleted."""
    found, generation = head.read()
    if generation == ABSENT:
        file_system, bucket, name = bucket_and_name(objects.folder)
        options = {"prefix": f"{name.rstrip('/')}/", "maxResults": 1, "json_out": True}
        if known.exists() or file_system.call("GET", "b/{}/o", bucket, **options).get("items"):
            raise StorageError(
                f"{head.place} is missing, and its content exists: restore the deleted version of this object. To restart, delete "
                f"{objects.folder} and, on every machine that worked on it, {known}."
            )
    return found, generation


def is_list_of_checkpoint(name: str) -> bool:
    """Return whether a file is the list that commits a checkpoint and names its other files."""
    parts = name.split("/")
    return len(parts) > 2 and parts[-1] == DIGESTS_NAME and parts[-3] == CHECKPOINTS_NAME


def kept_names(root: Path, folders: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield each local file that belongs on the store, with its name below `root`. Of a checkpoint only the list of its files counts."""
    for folder in folders:
        for place, inner, names in os.walk(root / folder):
            inner[:] = sorted(name for name in inner if is_kept(name))
            if Path(place).parent.name == CHECKPOINTS_NAME:
                inner.clear()
                names = [name for name in names if name == DIGESTS_NAME]
            for name in sorted(filter(is_kept, names)):
                path = Path(place) / name
                yield path.relative_to(root).as_posix(), path


def pieces_of(content: bytes) -> list[tuple[Piece, bytes]]:
    """Return the content in pieces, or an empty list if it is empty."""
    cut = [content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)]
    return [(Piece(sha256=digest_of_bytes(part), size_bytes=len(part)), part) for part in cut]


def digest_of_pieces(path: Path) -> tuple[Piece, ...] | None:
    """Return the pieces of a local file, or None if it is missing."""
    with suppress(FileNotFoundError):
        return tuple(piece for piece, _ in pieces_of(path.read_bytes()))
    return None


def take_snapshot(root: Path, folders: Iterable[str]) -> tuple[Files, Sources]:
    """Return the files in these folders and the sources of their content, or raise Changing if they changed in each attempt."""
    folders = tuple(folders)

    def signatures() -> dict[str, tuple[int, int, int]]:
        found = {name: path.stat() for name, path in kept_names(root, folders) if not name.endswith(GROWING)}
        return {name: (about.st_size, about.st_mtime_ns, about.st_ino) for name, about in found.items()}

    for _ in range(TRIES):
        with suppress(FileNotFoundError):  # a file was deleted after the listing
            files: dict[str, tuple[Piece, ...]] = {}
            sources: dict[str, bytes | Path] = {}
            before = signatures()
            growing = (name for name, _ in kept_names(root, folders) if name.endswith(GROWING))  # listed after the others were read
            for name in chain(before, growing):
                pieces = pieces_of((root / name).read_bytes())
                files[name] = tuple(piece for piece, _ in pieces)
                sources |= {piece.sha256: content for piece, content in pieces}
                folder = (root / name).parent
                if is_list_of_checkpoint(name) and not isinstance(listed := committed_files(folder), str):
                    sources |= {digest: folder / file for file, (_, digest) in listed.items()}
            if signatures() == before:
                return files, sources
    raise Changing


@dataclass(frozen=True)
class Objects:
    """The folder of all content on the store."""

    folder: Path

    def send(self, sources: Sources) -> None:
        """Upload content, also if the object exists: the process that wrote the object may delete it."""

        def send(item: tuple[str, bytes | Path]) -> None:
            digest, source = item
            if isinstance(source, bytes):
                write_atomically(self.folder / digest, source)
                return
            try:
                put_file(source, self.folder / digest)
            except FileNotFoundError:
                if source.exists():
                    raise  # the bucket is missing
                raise Changing from None

        _each(send, sources.items())

    def bring(self, digest: str, path: Path) -> None:
        """Download an object to a local file, atomically, or raise `StorageError`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        coming = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        file_system, bucket, name = bucket_and_name(self.folder / digest)
        try:
            _, about = file_system.call("GET", "b/{}/o/{}", bucket, name)
            size = int(json.loads(about)["size"])
            with open(coming, "wb") as file:
                for start in range(0, size, READ_BYTES):  # gcsfs's `get_file` would list first
                    file.write(file_system.cat_file(f"{bucket}/{name}", start=start, end=min(start + READ_BYTES, size)))
            self._check(digest, digest_of_file(coming))
            os.replace(coming, path)
        except FileNotFoundError:
            raise StorageError(MISSING.format(self.folder / digest)) from None
        finally:
            coming.unlink(missing_ok=True)

    def bring_all(self, wanted: Mapping[Path, str]) -> None:
        """Download objects: path → digest."""
        _each(lambda item: self.bring(item[1], item[0]), wanted.items())

    def content(self, pieces: Iterable[Piece]) -> bytes:
        """Return the bytes of a small file, or raise `StorageError`."""

        def read(piece: Piece) -> bytes:
            file_system, bucket, name = bucket_and_name(self.folder / piece.sha256)
            try:
                content = file_system.cat_file(f"{bucket}/{name}")
            except FileNotFoundError:
                raise StorageError(MISSING.format(self.folder / piece.sha256)) from None
            self._check(piece.sha256, digest_of_bytes(content))
            return content

        return b"".join(_each(read, pieces))

    def _check(self, digest: str, now: str) -> None:
        if now != digest:
            raise StorageError(f"{self.folder / digest} has other bytes than were sent (SHA-256 {now[:12]}). {WHAT_TO_DO}")

    def versions(self, digests: Collection[str]) -> dict[str, str]:
        """Return the generation of each existing object."""

        def version(digest: str) -> str:
            file_system, bucket, name = bucket_and_name(self.folder / digest)
            with suppress(FileNotFoundError):
                return str(json.loads(file_system.call("GET", "b/{}/o/{}", bucket, name)[1])["generation"])
            return ""

        return {digest: found for digest, found in zip(digests, _each(version, digests), strict=True) if found}

    def delete(self, versions: Mapping[str, str]) -> None:
        """Delete these versions, if the store allows deletion. An object that was uploaded again has a newer version and remains."""

        def delete(item: tuple[str, str]) -> None:
            file_system, bucket, name = bucket_and_name(self.folder / item[0])
            with suppress(FileNotFoundError, FileExistsError):  # gcsfs's errors for a missing object and for another version
                file_system.call("DELETE", "b/{}/o/{}", bucket, name, ifGenerationMatch=item[1])

        with cleaning_up(self.folder):
            _each(delete, versions.items())

    def delete_others(self, named: Collection[str]) -> None:
        """Delete all objects but the named ones, by a listing, which may lag."""
        file_system, bucket, name = bucket_and_name(self.folder)
        with cleaning_up(self.folder):
            found = file_system.find(f"{bucket}/{name.rstrip('/')}", detail=True)
            digests = {path.rpartition("/")[2]: str(about["generation"]) for path, about in found.items()}
            self.delete({digest: version for digest, version in digests.items() if digest not in named})


def bring_here(root: Path, folders: Iterable[str], files: Files, objects: Objects, *, weights_below: str | None = "") -> int:
    """Download `files` into the folders below `root`, delete all other stored files there, and return the number of downloads.

    `weights_below`: the prefix of the checkpoints to download. None downloads no checkpoint. Other local checkpoints remain if they are the
    committed ones. Raises StorageError if a file is missing or damaged on the store. A damaged checkpoint is only left out.
    """
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
            write_atomically(path, objects.content(pieces))
            came += 1
    return came


def bring_or_leave(listed: Path, pieces: tuple[Piece, ...], objects: Objects) -> int:
    """Download a checkpoint as `bring_checkpoint`, but leave out a damaged one: the trainer resumes from the checkpoint before."""
    try:
        return bring_checkpoint(listed, pieces, objects)
    except StorageError as damage:
        for folder in (listed.parent, listed.parent.with_name(f".{listed.parent.name}")):
            shutil.rmtree(folder, ignore_errors=True)
        say(f"checkpoint {listed.parent} is left out: {damage}")
        return 0


def bring_checkpoint(listed: Path, pieces: tuple[Piece, ...], objects: Objects) -> int:
    """Download the missing files of a checkpoint with the list `listed`, and return their number."""
    folder, arrived = listed.parent, listed.parent.with_name(f".{listed.parent.name}") / listed.name
    if digest_of_pieces(listed) == tuple(pieces) and find_damage(folder) is None:
        return 0
    listed.unlink(missing_ok=True)
    content = objects.content(pieces)
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


def _each(call: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(call, items))
