"""Checkpoints and metrics belong together: a state without the rows of its updates would be judged by half of its training."""

import sys
from pathlib import Path

import jax

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.run_folder import METRICS_NAME, RunFolder
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.state import read_about
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import Row, read_metrics, rows_digest, whole_through
from phasewise.trainer.passed_over import PassedOver


def newest_with_its_rows(run: RunConfig, checkpoints: Checkpoints, step: int, passed_over: PassedOver) -> int:
    """The newest checkpoint, up to `step`, whose updates all have their rows in the metrics, as they were when it was saved.

    Of several processes none looks: they might not see the same.

    Raises:
        CheckpointError: there is none.
    """
    if jax.process_count() > 1:
        return step
    path = RunFolder.at(run.output).metrics
    rows = read_metrics(path)
    found: int | None = step
    while found is not None and not _has_rows(run, checkpoints.folder / str(found), found, rows, passed_over):
        found = checkpoints.latest_step(at_most=found - 1)
    if found == step:
        return step
    if found is None:
        raise CheckpointError(
            f"{path} must hold the row of each step up to {step}, where the last checkpoint is, as it was written; rows are missing, or "
            f"are others, and there is no checkpoint that has its rows. Bring the file back from a copy, or move {run.output} away to "
            "start the phase from its beginning."
        )
    print(
        f"trainer: {path} lacks rows of the steps up to {step}, or has others than were written; the checkpoint of step {found} is gone "
        "back to, and the updates after it are done again",
        file=sys.stderr,
        flush=True,
    )
    return found


def _has_rows(run: RunConfig, checkpoint: Path, step: int, rows: list[Row], passed_over: PassedOver) -> bool:
    reached = whole_through(rows, run.start_step, passed_over)
    if any(update not in passed_over for update in range(reached, step)):
        return False
    said = read_about(checkpoint).get("rows")
    return said is None or said == rows_digest(row for row in rows if row["step"] <= step)


def check_rows(run: RunConfig, passed_over: PassedOver) -> None:
    """Refuse to sum up a run whose metrics were damaged while it trained."""
    reached = whole_through(read_metrics(RunFolder.at(run.output).metrics), run.start_step, passed_over)
    if reached != run.stop_step:
        raise CheckpointError(
            f"{run.output}/{METRICS_NAME} must hold the row of each step up to {run.stop_step}, and that of step {reached + 1} is missing "
            "or does not read. Start the run again: it goes back to a checkpoint that has its rows."
        )
