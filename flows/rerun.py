"""A training that crashed is started once more by a running `phasewise up`.

Prefect's automations for this go by heartbeats, and have taken live runs for dead (its issues 16459 and 18653): the second start would
train beside the first. Here the process itself is asked for, by the file that it holds as long as it lives.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from phasewise.flows.presence import is_present
from phasewise.tasks.home import Home

FLOWS = ("train-phase", "train-recipe")
PAGE = 200
MESSAGE = "Its process crashed: started once more by `phasewise up`. It goes on from what is saved."


class Rerun:
    """Starts what crashed since `phasewise up` came up, each run once in its life."""

    def __init__(self, home: Home, since: datetime, pools: Collection[str] = ()) -> None:
        """What is looked at.

        Args:
            pools: work pools that nobody else serves. A run of theirs may crash before its process holds a file; others without one are
                of another home.
        """
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
            for run in await _crashed(client):
                if str(run.id) not in {*self._settled, *but} and await self.may_start(client, run):
                    await _start(client, run)
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
        return not any(state.message == MESSAGE for state in states)


async def _crashed(client: Any) -> list[Any]:
    """The latest runs of our training flows that are shown as crashed."""
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    crashed = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED])))
    ours = FlowFilter(name=FlowFilterName(any_=list(FLOWS)))
    return await client.read_flow_runs(flow_filter=ours, flow_run_filter=crashed, sort=FlowRunSort.START_TIME_DESC, limit=PAGE)


async def _start(client: Any, run: Any) -> None:
    """As the UI's Retry does it: the same run with the same parameters."""
    from prefect.states import AwaitingRetry

    await client.set_flow_run_state(run.id, AwaitingRetry(message=MESSAGE))
