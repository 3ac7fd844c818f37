"""Content on the store under the name of its digest: sent, brought back and checked, and deleted when no head names it any more."""

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from phasewise.tasks.progress import say
from phasewise.tasks.store.head import ABSENT, Files, Head, HeadObject, Piece, bucket_and_name
from phasewise.trainer.base.errors import StorageError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file
from phasewise.trainer.base.run_folder import CHECKPOINTS_NAME, RunFolder, is_kept
from phasewise.trainer.base.storage import cleaning_up, file_system_of, put_file, write_atomically
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, committed_files, digests_here, find_damage, has_its_files, remove_checkpoint

HEAD_NAME, OBJECTS_NAME = "head.json", "objects"
ARRIVING = ".arriving"
"""A folder here for pieces on their way."""
PIECE_BYTES = 2**22
"""A file that grows is kept in pieces: only the last one is sent again."""
GROWING = (".jsonl", ".log")
TRIES = 10
Signature = tuple[int, int, int]
THREADS = 8
READ_BYTES = 2**24
T = TypeVar("T")
WHAT_TO_DO = "Bring it back from a copy, or take the object's earlier version."


def _arriving(listed: Path) -> Path:
    return listed.parent.with_name(f".{listed.parent.name}")


def bring_uploaded(root: Path, folders: Iterable[str], store: Path, *, weights_below: str | None = "") -> int:
    """What somebody copied to the store as it lay in a home of a machine, for a store where nothing was ever committed.

    Args:
        store: the home on the store. It is listed.
        weights_below: as for `bring_here`.

    Returns:
        How many files came.
    """
    came = 0
    for folder in folders:
        found = file_system_of(store / folder)
        assert found is not None
        file_system, below = found
        names = [str(name).removeprefix(f"{below}/") for name in file_system.find(below)]
        for name in sorted(names, key=lambda name: name.endswith(DIGESTS_NAME)):  # a list of files commits a checkpoint
            parts = name.split("/")
            is_wanted = CHECKPOINTS_NAME not in parts or (weights_below is not None and f"{folder}/{name}".startswith(weights_below))
            if parts[0] in (HEAD_NAME, OBJECTS_NAME) or not all(map(is_kept, parts)) or not is_wanted:
                continue
            path = root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            file_system.get_file(f"{below}/{name}", str(path))
            came += 1
    return came


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
            for name in sorted((name for name, _ in kept_names(root, folders) if name.endswith(GROWING))):
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


@dataclass(frozen=True)
class Objects:
    """The folder of them.

    Attributes:
        folder: its URL.
    """

    folder: Path

    def are_there(self) -> bool:
        """Whether there is any. The store is asked for a listing, of one."""
        file_system, bucket, name = bucket_and_name(self.folder)
        found = file_system.call("GET", "b/{}/o", bucket, prefix=f"{name.rstrip('/')}/", maxResults=1, json_out=True)
        return bool(found.get("items"))

    def send(self, sources: Mapping[str, Source]) -> None:
        """Send each, also where an object of that name is there: it may be deleted by the one who left it.

        Raises:
            OSError: the store did not take one.
            Changing: a file is not there any more.
        """
        _each(self._send, sources.items())

    def bring(self, digest: str, path: Path) -> None:
        """Write one to a file of this machine, which appears whole.

        Raises:
            StorageError: it is missing, or has other bytes than its name says.
        """
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
        """Path here → digest of what shall be there.

        Raises:
            StorageError: as `bring`.
        """
        _each(lambda item: self.bring(item[1], item[0]), wanted.items())

    def content(self, digest: str) -> bytes:
        """The bytes of a small one.

        Raises:
            StorageError: as `bring`.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.bring(digest, path := Path(folder) / digest)
            return path.read_bytes()

    def versions(self, digests: Collection[str]) -> dict[str, str]:
        """The generation of each that is there."""
        found = _each(lambda digest: (digest, self._version(digest)), digests)
        return {digest: version for digest, version in found if version}

    def delete(self, versions: Mapping[str, str]) -> None:
        """Delete these versions, if the store allows it. One that was sent again since has another, and is left."""

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

    def _send(self, item: tuple[str, Source]) -> None:
        digest, source = item
        if source.content is not None:
            write_atomically(self.folder / digest, source.content)
        elif source.path is not None:
            try:
                put_file(source.path, self.folder / digest)
            except FileNotFoundError:
                if source.path.exists():
                    raise  # there is no such bucket
                raise Changing from None

    def _version(self, digest: str) -> str | None:
        file_system, bucket, name = bucket_and_name(self.folder / digest)
        try:
            _, about = file_system.call("GET", "b/{}/o/{}", bucket, name)
        except FileNotFoundError:
            return None
        return str(json.loads(about)["generation"])


def read_head(head: HeadObject, objects: Objects, known: Path) -> tuple[Head, str]:
    """The head and its generation; an empty one where nothing was ever committed.

    Args:
        known: the file here that names the commits made from here.

    Raises:
        StorageError: it is not there, and was there before: what is here would be taken for what nobody committed, and be deleted.
    """
    found, generation = head.read()
    if generation == ABSENT and (known.exists() or objects.are_there()):
        raise StorageError(
            f"{head.place} is not there, and content that it named is: bring back the version of this object that was deleted. To begin "
            f"anew, delete what is below {objects.folder} and, on every machine that worked on it, {known}."
        )
    return found, generation


def bring_here(root: Path, folders: Iterable[str], files: Files, objects: Objects, *, weights_below: str | None = "") -> int:
    """Make the folders below `root` what the head says; what else belongs on the store and is here is deleted. Nothing is listed there.

    Args:
        weights_below: of checkpoints those whose names begin so are wanted; None is none. Of the others, those that are here stay if they
            are what the head says.

    Returns:
        How many files came.

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
                came += _bring_or_leave(path, pieces, objects)
            elif path.exists() and digest_of_pieces(path) != tuple(pieces):
                remove_checkpoint(path.parent)
        elif digest_of_pieces(path) != tuple(pieces):
            write_atomically(path, content_of(root / ARRIVING, pieces, objects))
            came += 1
    shutil.rmtree(root / ARRIVING, ignore_errors=True)
    return came


def _bring_or_leave(listed: Path, pieces: tuple[Piece, ...], objects: Objects) -> int:
    """A checkpoint that is damaged there is left out: the trainer goes on from the one before, as where one is damaged here."""
    try:
        return bring_checkpoint(listed, pieces, objects)
    except StorageError as damage:
        shutil.rmtree(listed.parent, ignore_errors=True)
        shutil.rmtree(_arriving(listed), ignore_errors=True)
        say(f"checkpoint {listed.parent} is left out: {damage}")
        return 0


def settle_checkpoints(root: Path, folders: Iterable[str], files: Files, objects: Objects) -> None:
    """Have no checkpoint here of which files are not here, as where other hosts wrote and sent them: bring those that the head names.

    One that it does not name is deleted, and the result that may rest on it.
    """
    for name, listed in list(kept_names(root, folders)):
        if not is_list_of_checkpoint(name) or has_its_files(listed.parent):
            continue
        pieces = files.get(name)
        if pieces is not None and digest_of_pieces(listed) == tuple(pieces):
            _bring_or_leave(listed, tuple(pieces), objects)
        else:
            remove_checkpoint(listed.parent)
            RunFolder.of_checkpoint(listed.parent).result.unlink(missing_ok=True)


def bring_checkpoint(listed: Path, pieces: tuple[Piece, ...], objects: Objects) -> int:
    """The files of a checkpoint that are not here. Their list comes last: cut short, it is a checkpoint that was never committed.

    Raises:
        StorageError: one is missing there, or damaged.
    """
    folder = listed.parent
    if digest_of_pieces(listed) == tuple(pieces) and find_damage(folder) is None:
        return 0
    listed.unlink(missing_ok=True)
    arrived = _arriving(listed) / listed.name
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
    """The bytes of a file that is not large, from its pieces, which wait in the folder `arriving`."""
    wanted: Mapping[Path, str] = {arriving / piece.sha256: piece.sha256 for piece in pieces}
    objects.bring_all(wanted)
    return b"".join((arriving / piece.sha256).read_bytes() for piece in pieces)


def _each(what: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(what, items))
