"""A working folder brought to what the head says."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from phasewise.tasks.progress import say
from phasewise.tasks.store.head import Files, Head, HeadObject, Piece
from phasewise.tasks.store.objects import Objects
from phasewise.tasks.store.snapshot import digest_of_pieces, is_list_of_checkpoint, kept_names
from phasewise.tasks.store.versioned import ABSENT
from phasewise.trainer.base.errors import StorageError
from phasewise.trainer.base.run_folder import CHECKPOINTS_NAME, RunFolder, is_kept
from phasewise.trainer.base.storage import file_system_of, write_atomically
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, committed_files, digests_here, find_damage, has_its_files, remove_checkpoint

HEAD_NAME, OBJECTS_NAME = "head.json", "objects"
ARRIVING = ".arriving"
"""A folder here for pieces on their way."""


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


def _arriving(listed: Path) -> Path:
    """Where the list of a checkpoint waits until its files are here."""
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
