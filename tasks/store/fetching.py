"""A working folder brought to what the head says."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from tasks.progress import say
from tasks.store.head import Files, Piece
from tasks.store.objects import Objects
from tasks.store.snapshot import digest_of_pieces, is_list_of_checkpoint, kept_names
from trainer.base.errors import StorageError
from trainer.base.run_folder import CHECKPOINTS_NAME, is_kept
from trainer.base.storage import file_system_of, write_atomically
from trainer.checkpoints.files import DIGESTS_NAME, committed_files, find_damage, remove_checkpoint

HEAD_NAME, OBJECTS_NAME = "head.json", "objects"
ARRIVING = ".arriving"
"""A folder here for pieces on their way."""


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
            write_atomically(path, _content(root / ARRIVING, pieces, objects))
            came += 1
    shutil.rmtree(root / ARRIVING, ignore_errors=True)
    return came


def _bring_or_leave(listed: Path, pieces: tuple[Piece, ...], objects: Objects) -> int:
    """A checkpoint that is damaged there is left out: the trainer goes on from the one before, as where one is damaged here."""
    try:
        return _bring_checkpoint(listed, pieces, objects)
    except StorageError as damage:
        shutil.rmtree(listed.parent, ignore_errors=True)
        shutil.rmtree(_arriving(listed), ignore_errors=True)
        say(f"checkpoint {listed.parent} is left out: {damage}")
        return 0


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


def _bring_checkpoint(listed: Path, pieces: tuple[Piece, ...], objects: Objects) -> int:
    """The list of its files comes last: cut short, it is a checkpoint that was never committed."""
    folder = listed.parent
    if digest_of_pieces(listed) == tuple(pieces) and find_damage(folder) is None:
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    arrived = _arriving(listed) / listed.name
    content = _content(arrived.parent, pieces, objects)
    write_atomically(arrived, content)
    wanted = committed_files(arrived.parent)
    if isinstance(wanted, str):
        raise StorageError(f"{listed} {wanted}, also on the store. Bring back an earlier version of the head.")
    objects.bring_all({folder / name: digest for name, (_, digest) in wanted.items()})
    write_atomically(listed, content)
    shutil.rmtree(arrived.parent)
    return len(wanted) + 1


def _content(arriving: Path, pieces: Iterable[Piece], objects: Objects) -> bytes:
    """The bytes of a file that is not large, from its pieces."""
    wanted: Mapping[Path, str] = {arriving / piece.sha256: piece.sha256 for piece in pieces}
    objects.bring_all(wanted)
    return b"".join((arriving / piece.sha256).read_bytes() for piece in pieces)
