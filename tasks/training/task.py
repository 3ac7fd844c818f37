"""Training as a Prefect task, with its progress in the UI, and stopped where the run above it is suspended."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import httpx
from prefect import task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.exceptions import Pause
from prefect.runtime import flow_run as current
from prefect.states import Cancelled

from tasks.progress import advance, say
from tasks.training.launcher import launch_trainer
from trainer.config import RunConfig
from trainer.metrics import Row

ARTIFACT_SECONDS = 3.0
RATE_ROWS = 50
LOOK_SECONDS = 2.0
SUSPENDED = "Stopped with the flow run above it, which was suspended. Resumed, that goes on from what is saved."


@task(task_run_name="train {run.phase}", cache_policy=NO_CACHE)
def train(run: RunConfig) -> dict[str, Any]:
    """Train one phase in a process of its own and return its result."""
    artifact = create_progress_artifact(0.0, key=f"{run.recipe}-{run.phase}-training", description=f"Training of {run.phase}")
    recent: deque[Row] = deque(maxlen=RATE_ROWS)
    reported = time.monotonic()

    def on_rows(rows: list[Row]) -> None:
        nonlocal reported
        recent.extend(rows)
        last = rows[-1]
        total = run.stop_step - run.start_step
        done = last["step"] - run.start_step
        loss = "no number" if last["loss"] is None else f"{last['loss']:.3f}"
        advance(f"train {run.phase}", done, total, f"loss {loss}  {tokens_per_second(recent):,.0f} tokens/s")
        if time.monotonic() - reported >= ARTIFACT_SECONDS or done == total:
            update_progress_artifact(artifact, 100.0 * done / total)  # pyright: ignore[reportArgumentType]  # a UUID in a flow
            reported = time.monotonic()

    with get_client(sync_client=True) as client:
        watch = SuspensionWatch(client)
        try:
            return launch_trainer(run, on_rows, watch.look)
        except Pause:
            watch.end_subflows()
            raise


class SuspensionWatch:
    """Looks every two seconds whether the run above was suspended.

    Prefect suspends runs of a deployment, and leaves their subflows and what they have begun at work.
    """

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client
        self._root = current.root_flow_run_id
        self._looked = time.monotonic()

    def look(self) -> None:
        """Raise what Prefect ends a suspended run by, where it is suspended."""
        if self._root is None or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            state = self._client.read_flow_run(self._root).state  # pyright: ignore[reportArgumentType]  # a UUID as text
        except httpx.HTTPError:  # a busy server: the next look comes soon
            return
        if state is not None and state.is_paused() and state.name == "Suspended":
            say("the flow run was suspended: the trainer saves and stops")
            raise Pause(state=state)

    def end_subflows(self) -> None:
        """What runs below the suspended run ends here; once it is resumed, it begins new ones."""
        below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[self._root]))  # pyright: ignore[reportArgumentType]
        for run in self._client.read_flow_runs(flow_run_filter=below):
            if run.state is not None and not run.state.is_final():
                self._client.set_flow_run_state(run.id, Cancelled(message=SUSPENDED), force=True)


def tokens_per_second(rows: Sequence[Row]) -> float:
    """Over these rows, which are of one process; 0 where they tell nothing."""
    seconds = rows[-1]["seconds"] - rows[0]["seconds"]
    return sum(row["tokens"] for row in list(rows)[1:]) / seconds if seconds > 0 else 0.0
