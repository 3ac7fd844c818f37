"""Publish a finished export on this machine or on a store. An export is complete when its `phasewise.json` exists."""

import shutil
from pathlib import Path

from phasewise.tasks.data.digests import KnownDigests
from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.base.storage import file_system_of, put_file

ORIGIN_NAME = "phasewise.json"  # the file that describes the weights of an exported folder


def export_name(phase: str, weights: str, dtype: str) -> str:
    """Return the prefix of an export's folder name in a home, before the digest."""
    return f"{phase}-{weights.replace(':', '-')}-{dtype}-"


def is_placed(folder: Path, digests: KnownDigests) -> bool:
    """Return whether a complete and unchanged export exists."""
    try:
        files = read_sealed(folder / ORIGIN_NAME)["files"]
    except (FileNotFoundError, NotAsWritten, KeyError):
        return False
    return not digests.changed(folder, files, folder / ORIGIN_NAME)


def place(made: Path, folder: Path) -> None:
    """Move or upload every file of a local export, `phasewise.json` last, over the files of an interrupted export."""
    for path in sorted(made.iterdir(), key=lambda path: path.name == ORIGIN_NAME):
        target = folder / path.name
        if file_system_of(target) is not None:
            put_file(path, target)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
