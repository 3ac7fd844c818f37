"""Training as a Prefect task: its progress in the UI, and the stop if the parent flow run is suspended."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.runtime import flow_run as current
from prefect.states import Cancelled

from phasewise.tasks.progress import advance, say
from phasewise.tasks.report.task import publish_page
from phasewise.tasks.site import site_address
from phasewise.tasks.store.publisher import check_not_taken_over
from phasewise.tasks.training.attempts import PlannedSegment, SliceSegment, launch_trainer
from phasewise.tasks.training.select_launcher import select_launcher
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.base.wording import decimal
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import Row

ARTIFACT_SECONDS = 3.0
PAGE_SECONDS = 30.0
RATE_ROWS = 50
LOOK_SECONDS = 2.0
RETRY_SECONDS = 2.0
END_SECONDS = 10.0  # the time at the end of a training for requests that are still waiting
SERVER_SECONDS = 3600.0  # the time that an ended training waits for an unreachable server: the next states are written there
SUSPENDED = "Stopped with the flow run above it, which was suspended. The resumed flow run continues from the last checkpoint."


@task(task_run_name="train {run.phase}", cache_policy=NO_CACHE)
def train(run: RunConfig, planned: Sequence[PlannedSegment], forecast: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Train one phase in its own processes and return its result. `forecast` is the content of its `forecast.json`."""
    segments = [SliceSegment(one.run, select_launcher(one.run, one.slice_name), one.slice_name) for one in planned]
    key = f"{run.recipe}-{run.scale}-{run.phase}"
    bar = partial(publish_page, key=f"{key}-progress", description=f"Training of {run.phase}", on_top=True)
    bar(0.0)
    recent: deque[Row] = deque(maxlen=RATE_ROWS)
    reported = paged = time.monotonic()

    def on_rows(rows: list[Row]) -> None:
        nonlocal reported, paged
        recent.extend(rows)
        last, now = rows[-1], time.monotonic()
        total, done = run.stop_step - run.start_step, last["step"] - run.start_step
        loss = "NaN" if last["loss"] is None else f"{last['loss']:.3f}"
        seconds = recent[-1]["seconds"] - recent[0]["seconds"]  # not positive if a new process starts in between
        rate = sum(row["tokens"] for row in list(recent)[1:]) / seconds if seconds > 0 else 0.0
        advance(f"train {run.phase}", done, total, f"loss {loss}  {rate:,.0f} tokens/s")
        if now - reported >= ARTIFACT_SECONDS or done == total:
            reported = now
            requests.ask("progress", partial(bar, 100.0 * done / total))
        if now - paged >= PAGE_SECONDS or done == total:
            paged, page = now, training_markdown(run, last, rate)
            requests.ask("page", lambda: publish_page(page, key=f"{key}-training", description=f"Training of {run.phase}"))

    with get_client(sync_client=True) as client:
        with Background() as requests:
            watch = SuspensionWatch(client, requests)
            try:
                result = launch_trainer(run, on_rows, watch.look, segments=segments, forecast=forecast)
            except Pause:  # cancel the subflows: the resumed run starts new ones
                below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[watch.root]))
                for one in client.read_flow_runs(flow_run_filter=below):
                    if one.state is not None and not one.state.is_final():
                        client.set_flow_run_state(one.id, Cancelled(message=SUSPENDED), force=True)
                raise
            except PhasewiseError:
                wait_for_server(client, SERVER_SECONDS)
                raise
        wait_for_server(client, SERVER_SECONDS)
        return result


class Background:
    """A thread that makes requests to the Prefect server, in order. Of each kind only the latest request waits."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Context, Callable[[], object]]] = {}
        self._changed = threading.Condition()
        self._is_over = False
        self._is_away = False
        self._thread = threading.Thread(target=self._work, name="requests", daemon=True)

    def __enter__(self) -> "Background":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(END_SECONDS)

    def ask(self, kind: str, request: Callable[[], object]) -> None:
        """Make a request soon. It replaces a waiting request of its kind, and is repeated until the server answers."""
        with self._changed:
            self._waiting[kind] = (copy_context(), request)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if not self._waiting:
                    return
                kind = next(iter(self._waiting))
                context, request = self._waiting.pop(kind)
            try:
                context.run(request)
                if self._is_away:
                    context.run(say, "the Prefect server answers again")
                self._is_away = False
            except httpx.HTTPError as error:
                if not self._is_away:
                    context.run(say, f"the Prefect server does not answer ({type(error).__name__}): the work goes on without it")
                self._is_away = True
                with self._changed:
                    self._waiting.setdefault(kind, (context, request))
                    self._changed.wait_for(lambda: self._is_over, RETRY_SECONDS)
                    if self._is_over:
                        return


def wait_for_server(client: SyncPrefectClient, seconds: float) -> bool:
    """Wait until the Prefect server answers, and return whether it did in time."""
    deadline = time.monotonic() + seconds
    is_reported = False
    while True:
        with suppress(httpx.HTTPError):
            if client.hello().is_success:
                return True
        if time.monotonic() >= deadline:
            return False
        if not is_reported:
            say("waiting for the Prefect server to answer")
            is_reported = True
        time.sleep(RETRY_SECONDS)


@dataclass
class SuspensionWatch:
    """Check every two seconds whether the root flow run was suspended: Prefect does not stop its subflows and processes."""

    client: SyncPrefectClient
    requests: Background
    root: Any = field(default_factory=lambda: current.root_flow_run_id)  # a UUID as text
    _found: State | None = None
    _looked: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """Raise Prefect's `Pause` if the run was suspended, or `TakenOver` if another process holds the home."""

        def read() -> None:
            self._found = self.client.read_flow_run(self.root).state

        check_not_taken_over()
        if self.root is None or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        if (state := self._found) is not None and state.is_paused() and state.name == "Suspended":
            say("the flow run was suspended: the trainer saves and stops")
            raise Pause(state=state)
        self.requests.ask("state", read)


def training_markdown(run: RunConfig, last: Mapping[str, Any], rate: float) -> str:
    """Return the page of a training with its latest measures, and a link to the live page."""
    done, total = last.get("step", run.start_step) - run.start_step, run.stop_step - run.start_step
    page = site_address(run.recipe, run.scale, run.phase)
    loss = last.get("loss")
    rows = {
        "step": f"{last.get('step', run.start_step):,} of {run.stop_step:,}",
        "done": f"{100 * done / total:.0f} %",
        "loss": "NaN" if last and (loss is None or not math.isfinite(loss)) else decimal(loss, places=3),
        "learning rate": f"{last['learning_rate']:.3g}" if "learning_rate" in last else "–",
        "tokens a second": f"{rate:,.0f}" if rate else "–",
    }
    lines = [f"# Training of {run.recipe}/{run.scale}/{run.phase}", ""]
    lines += [f"[Live, with every measure]({page})", ""] if page else []
    return "\n".join([*lines, "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
