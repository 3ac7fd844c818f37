"""Training as a Prefect task, with its progress in the UI."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE

from tasks.progress import advance
from tasks.training.launcher import train_phase
from trainer.config import RunConfig
from trainer.metrics import Row

ARTIFACT_SECONDS = 3.0
RATE_ROWS = 50


@task(task_run_name="train {run.phase}", cache_policy=NO_CACHE)
def train(run: RunConfig) -> dict[str, Any]:
    """Train one phase in a process of its own and return its result."""
    artifact = create_progress_artifact(0.0, key=f"{run.recipe}-{run.phase}-training", description=f"Training of {run.phase}")
    recent: deque[Row] = deque(maxlen=RATE_ROWS)
    reported = time.monotonic()

    def on_rows(rows: list[Row]) -> None:
        nonlocal reported
        recent.extend(rows)
        last, total = rows[-1], run.stop_step - run.start_step
        done = last["step"] - run.start_step
        advance(f"train {run.phase}", done, total, f"loss {last['loss']:.3f}  {tokens_per_second(recent):,.0f} tokens/s")
        if time.monotonic() - reported >= ARTIFACT_SECONDS or done == total:
            update_progress_artifact(artifact, 100.0 * done / total)  # pyright: ignore[reportArgumentType]  # a UUID in a flow
            reported = time.monotonic()

    return train_phase(run, on_rows)


def tokens_per_second(rows: Sequence[Row]) -> float:
    """Over these rows, which are of one process; 0 where they tell nothing."""
    seconds = rows[-1]["seconds"] - rows[0]["seconds"]
    return sum(row["tokens"] for row in list(rows)[1:]) / seconds if seconds > 0 else 0.0
