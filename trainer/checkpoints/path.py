"""Where a run keeps its checkpoints: known without importing Orbax."""

from pathlib import Path

from trainer.base.storage import as_path


def checkpoint_path(run_folder: str | Path, step: int) -> Path:
    """The checkpoint of a step."""
    return as_path(run_folder) / "checkpoints" / str(step)
