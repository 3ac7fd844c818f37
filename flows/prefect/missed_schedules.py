"""Scheduled flow runs that were due while no worker ran: the latest run of each schedule starts, earlier runs end as Missed."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

PAGE = 200
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
