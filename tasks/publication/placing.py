"""Puts a finished export where it is to be found, on this machine or on a store. It is there once its `phasewise.json` is."""

import shutil
from pathlib import Path

from tasks.publication.exported_weights import ORIGIN_NAME
from trainer.base.storage import file_system_of, put_file


def is_placed(folder: Path) -> bool:
    """Whether a whole export is there."""
    return (folder / ORIGIN_NAME).exists()


def place(made: Path, folder: Path) -> None:
    """Copy every file, and the one that says which weights these are last. What was left there by somebody who was killed is written over.

    Args:
        made: a folder of this machine, as `tasks.publication.export.export_phase` writes it.

    Raises:
        OSError: there is no room, or the store did not take a file, also when asked again.
    """
    for path in sorted(made.iterdir(), key=lambda path: path.name == ORIGIN_NAME):
        target = folder / path.name
        if file_system_of(target) is not None:
            put_file(path, target)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
