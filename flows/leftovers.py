"""Flow runs that an earlier server left as running: their processes ended with it, and nobody was there to say so."""

from typing import Any

ALIVE = ("RUNNING", "PENDING", "CANCELLING")
MESSAGE = "Ended with the process that ran it, before it could say so. Start it again: it goes on from what is done."


async def close_leftovers(pool: str | None) -> int:
    """Mark the runs of a work pool that seem to be at work, and their subflows, as crashed; how many of the pool that were.

    Only for a server of our own, before anything is started on it: then no process of such a run is left.

    Args:
        pool: the work pool's name; None means the runs that no deployment started, those of `phasewise run`.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, WorkPoolFilter, WorkPoolFilterName

    alive = FlowRunFilter(state=_is_alive(), deployment_id=FlowRunFilterDeploymentId(is_null_=True) if pool is None else None)
    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])) if pool else None
    async with get_client() as client:
        left = await client.read_flow_runs(flow_run_filter=alive, work_pool_filter=of_pool)
        for run in left:
            await _close(client, run)
    return len(left)


async def _close(client: Any, run: Any) -> None:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
    from prefect.states import Crashed

    parent = FlowRunFilterParentFlowRunId(any_=[run.id])
    for child in await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=_is_alive(), parent_flow_run_id=parent)):
        await _close(client, child)
    await client.set_flow_run_state(run.id, Crashed(message=MESSAGE), force=True)


def _is_alive() -> Any:
    from prefect.client.schemas.filters import FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    return FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType(name) for name in ALIVE]))
