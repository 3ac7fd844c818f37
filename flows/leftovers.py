"""Flow runs that Prefect shows as running, and whose process is gone before it could say so.

Prefect's rows do not say who is alive; the files of `flows.presence` do.
"""

from collections.abc import Collection
from typing import Any

from flows.presence import forget_all_but, is_present
from tasks.home import Home

ALIVE = ("RUNNING", "PENDING", "CANCELLING")
PAGE = 200
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
                await _close(client, run)
                closed += run.parent_task_run_id is None
    forget_all_but({str(run.id) for run in runs}, home)
    return closed


class Sweep:
    """Looks, again and again while a server is up, for runs whose process has gone.

    Prefect's worker says of its own runs how they ended, and needs a moment for it: what is found gone twice is closed.
    """

    def __init__(self, home: Home, pools: Collection[str]) -> None:
        self._home, self._pools = home, pools
        self._gone: set[str] = set()

    async def look(self) -> None:
        """Close what was gone before, and still is shown as at work."""
        from prefect.client.orchestration import get_client

        async with get_client() as client:
            runs = await _at_work(client, self._home, self._pools)
            started = [run for run in runs if not run.state.is_pending()]
            gone = {str(run.id): run for run in started if is_present(self._home, str(run.id)) is False}
            for run_id in self._gone & gone.keys():
                await _close(client, gone.pop(run_id))
        self._gone = set(gone)


async def _at_work(client: Any, home: Home, pools: Collection[str]) -> list[Any]:
    """The runs of the pools, and those that name this home, that are shown as at work."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType(name) for name in ALIVE]))
    found: list[Any] = []
    while page := await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=states), limit=PAGE, offset=len(found)):
        found += page
    return [run for run in found if run.work_pool_name in pools or run.parameters.get("home") == str(home.root)]


async def _close(client: Any, run: Any) -> None:
    from prefect.states import Crashed

    await client.set_flow_run_state(run.id, Crashed(message=MESSAGE), force=True)
