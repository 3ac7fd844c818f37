"""The evaluation that stands beside a checkpoint. Importing this module is cheap: nothing is measured here."""

from pathlib import Path
from typing import Any

from trainer.config import RunConfig
from trainer.storage import read_json


def evaluation_path(run: RunConfig) -> Path:
    """Where the evaluation of a phase's last checkpoint is kept."""
    return Path(run.output) / "evaluation.json"


def finished_evaluation(run: RunConfig, params_digest: str) -> dict[str, Any] | None:
    """The evaluation of exactly these weights, if there is one."""
    path = evaluation_path(run)
    if not path.exists():
        return None
    evaluation = read_json(path)
    return evaluation if evaluation.get("params_digest") == params_digest else None
