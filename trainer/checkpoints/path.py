"""Where a run keeps its checkpoints: known without importing Orbax."""

from pathlib import Path

from phasewise.trainer.base.run_folder import RunFolder


def checkpoint_path(run_folder: str | Path, step: int) -> Path:
    """The checkpoint of a step."""
    return RunFolder.at(run_folder).checkpoint(step)
