"""Puts a finished export where it is to be found, on this machine or on a store. It is there once its `phasewise.json` is."""

import shutil
from pathlib import Path

from phasewise.tasks.data.digests import KnownDigests
from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.base.storage import file_system_of, put_file

ORIGIN_NAME = "phasewise.json"
"""The file in an exported folder that says which weights it holds."""


def export_name(phase: str, weights: str, dtype: str) -> str:
    """The beginning of the name of the folder that weights are exported to in a home. Their digest follows."""
    return f"{phase}-{weights.replace(':', '-')}-{dtype}-"


def is_placed(folder: Path, digests: KnownDigests) -> bool:
    """Whether a whole export is there, as it was written."""
    try:
        files = read_sealed(folder / ORIGIN_NAME)["files"]
    except (FileNotFoundError, NotAsWritten, KeyError):
        return False
    return not digests.changed(folder, files, folder / ORIGIN_NAME)


def place(made: Path, folder: Path) -> None:
    """Copy every file, and the one that says which weights these are last. What was left there by somebody who was killed is written over.

    Args:
        made: a folder of this machine, as `tasks.report.export.export_phase` writes it.

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
