"""Flow runs that Prefect shows as active and whose process died, flow runs that ignored their cancellation, and restarts after a crash.

Prefect does not record which process is alive. Each flow run of this package holds a lock file in the home, its presence file.
"""

import os
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from phasewise.tasks.home import Home
from phasewise.tasks.locks import holder_of, holding

FLOWS = ("train-phase", "train-recipe")  # flows that are restarted after a crash
ACTIVE = ("RUNNING", "PENDING", "CANCELLING")
PAGE = 200
UNREACHED_SECONDS = 15.0
"""Prefect's worker stops a cancelled flow run within seconds. After this time the cancellation did not reach the worker."""
RERUN_MESSAGE = "Its process crashed. `phasewise up` started it once more. It resumes from saved work."
CANCELLED_MESSAGE = "Cancelled: its process got SIGTERM and ended."
CRASHED_MESSAGE = "Its process ended without a report. Start the run again: it resumes from saved work."
_held = ExitStack()
_present: set[str] = set()


def stay_present(home: Home, flow_run_id: str, name: str) -> None:
    """Hold the presence file of a flow run until this process ends. Later calls have no effect."""
    if flow_run_id not in _present:
        _held.enter_context(holding(home.presence(flow_run_id), f"flow run '{name}'"))
        _present.add(flow_run_id)


def is_present(home: Home, flow_run_id: str) -> bool | None:
    """Return whether the process of a flow run is alive, or None without a presence file in this home."""
    path = home.presence(flow_run_id)
    return holder_of(path) is not None if path.exists() else None


@dataclass
class Rerun:
    """Restarts flow runs that crash after the start of `phasewise up`, each of them once."""

    home: Home
    since: datetime
    pools: Collection[str] = ()
    _settled: set[str] = field(default_factory=set)

    async def look(self, but: Collection[str] = ()) -> list[str]:
        """Restart crashed flow runs without a process and return their names. `but`: ids of cancelled flow runs. They stay stopped."""
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.filters import FlowFilter, FlowFilterName
        from prefect.client.schemas.sorting import FlowRunSort
        from prefect.states import AwaitingRetry

        restarted: list[str] = []
        ours = FlowFilter(name=FlowFilterName(any_=list(FLOWS)))
        async with get_client() as client:
            for run in await client.read_flow_runs(
                flow_filter=ours, flow_run_filter=_in_states("CRASHED"), sort=FlowRunSort.START_TIME_DESC, limit=PAGE
            ):
                if str(run.id) not in {*self._settled, *but} and await self.may_start(client, run):
                    await client.set_flow_run_state(run.id, AwaitingRetry(message=RERUN_MESSAGE))
                    restarted.append(run.name)
        return restarted

    async def may_start(self, client: Any, run: Any) -> bool:
        """Return False for subflows, for crashes before this `phasewise up`, for live processes, and after an earlier restart."""
        if run.deployment_id is None or run.parent_task_run_id is not None or run.state.timestamp < self.since:
            return False
        lives = is_present(self.home, str(run.id))
        if lives or (lives is None and run.work_pool_name not in self.pools):
            return False
        states = await client.read_flow_run_states(run.id)
        self._settled.add(str(run.id))
        return not any(state.message == RERUN_MESSAGE for state in states)


async def close_leftovers(home: Home, pools: Collection[str]) -> int:
    """Mark active flow runs of this home without a process as crashed, and return their number without subflows.

    Call it only after the start of the home's own server: then a flow run without a holder has no process. `pools`: work pools of this
    home. All their flow runs count.
    """
    from prefect.client.orchestration import get_client

    closed = 0
    async with get_client() as client:
        runs = await _active_runs(client, home, pools)
        for run in runs:
            if not is_present(home, str(run.id)):
                await _close(client, run.id, is_cancelled=run.state.is_cancelling())
                closed += run.parent_task_run_id is None
    kept = {str(run.id) for run in runs}
    for path in home.presence("any").parent.glob("*.lock"):
        if path.stem not in kept and holder_of(path) is None:
            path.unlink(missing_ok=True)
    return closed


@dataclass
class Sweep:
    """Closes flow runs whose process died, and stops cancelled flow runs that Prefect's worker did not stop.

    Prefect's worker reports the end of its flow runs after a moment: a flow run is closed when two consecutive looks find no process. The
    worker misses cancellations while the server is down: then the process gets SIGTERM from here. `asked`: ids of flow runs that got
    SIGTERM from here and are not closed yet.
    """

    home: Home
    pools: Collection[str]
    asked: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)
    _cancelling: dict[str, float] = field(default_factory=dict)

    async def look(self) -> None:
        """Close and stop flow runs as described above."""
        from prefect.client.orchestration import get_client

        async with get_client() as client:
            runs = [run for run in await _active_runs(client, self.home, self.pools) if not run.state.is_pending()]
            now = time.monotonic()
            cancelling = [str(run.id) for run in runs if run.state.is_cancelling()]
            self._cancelling = {run_id: self._cancelling.get(run_id, now) for run_id in cancelling}
            for run_id, since in self._cancelling.items():
                holder = holder_of(self.home.presence(run_id))
                if holder and run_id not in self.asked and now - since >= UNREACHED_SECONDS:
                    self.asked.add(run_id)
                    with suppress(ProcessLookupError):
                        os.kill(holder.pid, signal.SIGTERM)
            for run_id in [run_id for run_id in self.asked if not is_present(self.home, run_id)]:
                await _close(client, run_id, is_cancelled=True)
                self.asked.discard(run_id)
            gone = {str(run.id): run for run in runs if is_present(self.home, str(run.id)) is False}
            for run_id in self._gone & gone.keys():
                await _close(client, run_id, is_cancelled=gone.pop(run_id).state.is_cancelling())
        self._gone = set(gone)


def _in_states(*types: str) -> Any:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType(name) for name in types])))


async def _active_runs(client: Any, home: Home, pools: Collection[str]) -> list[Any]:
    found: list[Any] = []
    while page := await client.read_flow_runs(flow_run_filter=_in_states(*ACTIVE), limit=PAGE, offset=len(found)):
        found += page
    return [run for run in found if run.work_pool_name in pools or run.parameters.get("home") == str(home.root)]


async def _close(client: Any, run_id: Any, *, is_cancelled: bool) -> None:
    from prefect.states import Cancelled, Crashed

    state = Cancelled(message=CANCELLED_MESSAGE) if is_cancelled else Crashed(message=CRASHED_MESSAGE)
    await client.set_flow_run_state(run_id, state, force=True)


WAITING = "Waiting for "  # prefix of the state of flow runs that wait for a phase
LOOK_AGAIN = timedelta(minutes=10)  # time until such a flow run is scheduled again
MISSED_MESSAGE = "Missed: a later run of the same schedule is due and starts instead."


async def close_missed() -> int:
    """End all due or waiting runs of a schedule except the latest, and return the number of ended runs."""
    from prefect.client.orchestration import get_client

    async with get_client() as client:
        missed = earlier_of(run for run in await due_or_waiting(client) if run.auto_scheduled)
        for run in missed:
            current = (await client.read_flow_run(run.id)).state
            if current and current.is_scheduled():  # no worker took it meanwhile
                await client.set_flow_run_state(run.id, missed_state(), force=True)
    return len(missed)


async def is_missed(run: Any) -> bool:
    """Return whether a later run of the same schedule is due."""
    from prefect.client.orchestration import get_client

    if not run.auto_scheduled:
        return False
    async with get_client() as client:
        others = [other for other in await due_or_waiting(client) if other.auto_scheduled]
    return any(_schedule_of(other) == _schedule_of(run) and other.expected_start_time > run.expected_start_time for other in others)


def missed_state() -> Any:
    """Return the final state of a missed run."""
    from prefect.states import Cancelled

    return Cancelled(name="Missed", message=MISSED_MESSAGE)


async def due_or_waiting(client: Any, flow: str | None = None) -> list[Any]:
    """Return flow runs, optionally of one flow, that are due or wait for a phase."""
    from prefect.client.schemas.filters import (
        FlowFilter,
        FlowFilterName,
        FlowRunFilter,
        FlowRunFilterNextScheduledStartTime,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    now = datetime.now(UTC)
    soon: Any = now + LOOK_AGAIN
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
    wanted = FlowRunFilter(state=state, next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(before_=soon))
    of_flow = FlowFilter(name=FlowFilterName(any_=[flow])) if flow else None
    found: list[Any] = []
    while page := await client.read_flow_runs(flow_filter=of_flow, flow_run_filter=wanted, limit=PAGE, offset=len(found)):
        found += page
    return [run for run in found if run.state.name.startswith(WAITING) or run.next_scheduled_start_time <= now]


def earlier_of(runs: Iterable[Any]) -> list[Any]:
    """Return all runs except the latest of each schedule."""
    by_schedule: dict[Any, list[Any]] = {}
    for run in runs:
        by_schedule.setdefault(_schedule_of(run), []).append(run)
    return [run for found in by_schedule.values() for run in sorted(found, key=lambda run: run.expected_start_time)[:-1]]


def _schedule_of(run: Any) -> Any:
    return (run.deployment_id, run.created_by.id if run.created_by else None)
