"""Runs of a schedule that were due while nobody could start them: the last of them runs, and the others say that they were missed."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

PAGE = 200
WAITING = "Waiting for "
"""How the state of a run that waits for a phase begins."""
LOOK_AGAIN = timedelta(minutes=10)
"""How far ahead such a run is scheduled."""


async def close_missed() -> int:
    """Close every run of a schedule that is due or waits, where a later one of the same schedule is due, too; how many."""
    from prefect.client.orchestration import get_client

    async with get_client() as client:
        missed = earlier_of(await outstanding(client))
        for run in missed:
            now = (await client.read_flow_run(run.id)).state
            if now and now.is_scheduled():  # nobody took it meanwhile
                await client.set_flow_run_state(run.id, missed_state(), force=True)
    return len(missed)


def end_if_missed() -> None:
    """End the run of this moment, if a schedule made it, and a later run of the same schedule is due.

    Raises:
        Ended: it was.
    """
    from prefect.context import FlowRunContext
    from prefect.utilities.asyncutils import run_coro_as_sync

    from phasewise.flows.prefect.flow_decorator import Ended, set_state
    from phasewise.trainer.base.errors import PhasewiseError

    context = FlowRunContext.get()
    run: Any = context.flow_run if context else None
    if run is None or not run.auto_scheduled:
        return
    later = run_coro_as_sync(_later_than(run))
    if later:
        raise Ended(set_state(missed_state()), PhasewiseError(MESSAGE))


MESSAGE = "Missed: a later run of the same schedule is due, too, and that one runs."


def missed_state() -> Any:
    """How such a run ends."""
    from prefect.states import Cancelled

    return Cancelled(name="Missed", message=MESSAGE)


async def outstanding(client: Any) -> list[Any]:
    """The runs of schedules that should have begun, and those of schedules that wait for a phase."""
    return [run for run in await due_or_waiting(client) if run.auto_scheduled]


async def due_or_waiting(client: Any, flow: str | None = None) -> list[Any]:
    """The runs that should have begun, and those that wait for a phase; of one flow, if it is named."""
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
    """All but the last of each schedule's."""
    by_schedule: dict[Any, list[Any]] = {}
    for run in runs:
        by_schedule.setdefault(_schedule_of(run), []).append(run)
    return [run for found in by_schedule.values() for run in sorted(found, key=lambda run: run.expected_start_time)[:-1]]


def _schedule_of(run: Any) -> Any:
    return (run.deployment_id, run.created_by.id if run.created_by else None)


async def _later_than(run: Any) -> bool:
    from prefect.client.orchestration import get_client

    async with get_client() as client:
        others = await outstanding(client)
    return any(_schedule_of(other) == _schedule_of(run) and other.expected_start_time > run.expected_start_time for other in others)
