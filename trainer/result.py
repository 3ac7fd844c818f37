"""`result.json`: what a phase came to, with a digest of itself, so that a damaged one is not taken for another result."""

from pathlib import Path
from typing import Any

from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.base.run_folder import RunFolder


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of a run's folder; None where there is none, or what is there is not as it was written.

    One of before has no digest, and is taken as it is. A result that is lost is written again by the trainer, from the last checkpoint.
    """
    try:
        return read_sealed(RunFolder(folder).result, may_lack_seal=True)
    except (FileNotFoundError, NotAsWritten):
        return None
