"""Flow runs that Prefect shows as running, and whose process is gone before it could say so, or that was never asked to end.

Prefect's rows do not say who is alive; the files of `flows.presence` do.
"""

import os
import signal
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import Any

from phasewise.tasks.holder import holder_of, holding
from phasewise.tasks.home import Home

_held = ExitStack()
_present: set[str] = set()


def stay_present(home: Home, flow_run_id: str, name: str) -> None:
    """Hold the file of a flow run until this process ends, however it does; a run that it holds already is not held twice."""
    if flow_run_id not in _present:
        _held.enter_context(holding(home.presence(flow_run_id), f"flow run '{name}'"))
        _present.add(flow_run_id)


def is_present(home: Home, flow_run_id: str) -> bool | None:
    """Whether a process is at work on the flow run; None where none has ever said so in this home."""
    place = home.presence(flow_run_id)
    if not place.exists():
        return None
    return holder_of(place) is not None


FLOWS = ("train-phase", "train-recipe")
RERUN_MESSAGE = "Its process crashed: started once more by `phasewise up`. It goes on from what is saved."


class Rerun:
    """Starts what crashed since `phasewise up` came up, each run once in its life."""

    def __init__(self, home: Home, since: datetime, pools: Collection[str] = ()) -> None:
        self._home, self._since, self._pools = home, since, pools
        self._settled: set[str] = set()

    async def look(self, but: Collection[str] = ()) -> list[str]:
        """Start again what crashed and has no process any more; the names of those runs.

        Args:
            but: runs that somebody cancelled, by their ids: however their process says that it ended, they are over.
        """
        from prefect.client.orchestration import get_client

        started: list[str] = []
        async with get_client() as client:
            from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
            from prefect.client.schemas.objects import StateType
            from prefect.client.schemas.sorting import FlowRunSort

            crashed = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED])))
            ours = FlowFilter(name=FlowFilterName(any_=list(FLOWS)))
            for run in await client.read_flow_runs(flow_filter=ours, flow_run_filter=crashed, sort=FlowRunSort.START_TIME_DESC, limit=PAGE):
                if str(run.id) not in {*self._settled, *but} and await self.may_start(client, run):
                    from prefect.states import AwaitingRetry

                    await client.set_flow_run_state(run.id, AwaitingRetry(message=RERUN_MESSAGE))
                    started.append(run.name)
        return started

    async def may_start(self, client: Any, run: Any) -> bool:
        """Not what was stopped with an earlier `phasewise up`, what was started again before, or what is alive."""
        if run.deployment_id is None or run.parent_task_run_id is not None or run.state.timestamp < self._since:
            return False
        lives = is_present(self._home, str(run.id))
        if lives or (lives is None and run.work_pool_name not in self._pools):
            return False
        states = await client.read_flow_run_states(run.id)
        self._settled.add(str(run.id))
        return not any(state.message == RERUN_MESSAGE for state in states)


ALIVE = ("RUNNING", "PENDING", "CANCELLING")
PAGE = 200
UNREACHED_SECONDS = 15.0
"""Prefect's worker asks a run that was cancelled to end within a moment. One that is at work so long after was not reached."""
CANCELLED_MESSAGE = "Cancelled: its process was asked to end, and has ended."
MESSAGE = "Ended with the process that ran it, before it could say so. Start it again: it goes on from what is done."


async def close_leftovers(home: Home, pools: Collection[str]) -> int:
    """Mark the runs of this home that no process works on any more as crashed; how many of them were no subflows.

    Only for a server of our own that has just come up: then a run that no process holds has none.

    Args:
        pools: the work pools whose runs are this home's, whatever parameters they have.
    """
    from prefect.client.orchestration import get_client

    closed = 0
    async with get_client() as client:
        runs = await _at_work(client, home, pools)
        for run in runs:
            if not is_present(home, str(run.id)):
                await _close(client, run.id, is_cancelled=run.state.is_cancelling())
                closed += run.parent_task_run_id is None
    # Delete the files of flow runs that are over: of those that are not kept, and that no process is working on
    kept = {str(run.id) for run in runs}
    for place in home.presence("any").parent.glob("*.lock"):
        if place.stem not in kept and holder_of(place) is None:
            place.unlink(missing_ok=True)
    return closed


class Sweep:
    """Looks, again and again while a server is up, for runs whose process has gone, and for cancelled ones whose process goes on.

    Prefect's worker says of its own runs how they ended, and needs a moment for it: what is found gone twice is closed. It stops looking
    for cancelled runs where a server was away for too long: then the process is asked to end from here.

    Attributes:
        asked: the runs that were asked to end from here, and are not shown as cancelled yet.
    """

    def __init__(self, home: Home, pools: Collection[str]) -> None:
        self._home, self._pools = home, pools
        self._gone: set[str] = set()
        self._cancelling: dict[str, float] = {}
        self.asked: set[str] = set()

    async def look(self) -> None:
        """Close what was gone before, and still is shown as at work; end what was cancelled, and is still at work."""
        from prefect.client.orchestration import get_client

        async with get_client() as client:
            runs = await _at_work(client, self._home, self._pools)
            started = [run for run in runs if not run.state.is_pending()]
            self._ask_to_end([run for run in started if run.state.is_cancelling()])
            for run_id in [run_id for run_id in self.asked if not is_present(self._home, run_id)]:
                await _close(client, run_id, is_cancelled=True)
                self.asked.discard(run_id)
            gone = {str(run.id): run for run in started if is_present(self._home, str(run.id)) is False}
            for run_id in self._gone & gone.keys():
                await _close(client, run_id, is_cancelled=gone.pop(run_id).state.is_cancelling())
        self._gone = set(gone)

    def _ask_to_end(self, cancelling: list[Any]) -> None:
        now = time.monotonic()
        self._cancelling = {run_id: self._cancelling.get(run_id, now) for run_id in (str(run.id) for run in cancelling)}
        for run_id, since in self._cancelling.items():
            holder = holder_of(self._home.presence(run_id))
            if holder and run_id not in self.asked and now - since >= UNREACHED_SECONDS:
                self.asked.add(run_id)
                with suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGTERM)


async def _at_work(client: Any, home: Home, pools: Collection[str]) -> list[Any]:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType(name) for name in ALIVE]))
    found: list[Any] = []
    while page := await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=states), limit=PAGE, offset=len(found)):
        found += page
    return [run for run in found if run.work_pool_name in pools or run.parameters.get("home") == str(home.root)]


async def _close(client: Any, run_id: Any, *, is_cancelled: bool) -> None:
    from prefect.states import Cancelled, Crashed

    state = Cancelled(message=CANCELLED_MESSAGE) if is_cancelled else Crashed(message=MESSAGE)
    await client.set_flow_run_state(run_id, state, force=True)
