"""Where a run keeps its checkpoints: known without importing Orbax."""

from pathlib import Path


def checkpoint_path(run_folder: str | Path, step: int) -> Path:
    """The checkpoint of a step."""
    return Path(run_folder) / "checkpoints" / str(step)
