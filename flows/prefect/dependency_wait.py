"""A run of a phase whose parent is not done: it waits among Prefect's scheduled runs, without a process and without a slot.

Its state says for what, since when and why. It looks again when a verdict on what it rests on was written since, and every ten minutes, for
where its worker has no `phasewise up`, or the process that trained its parent was killed. A run that finds no slot waits alike.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.runtime import flow_run as current

from phasewise.flows.prefect.flow_decorator import Ended, set_state
from phasewise.flows.prefect.missed_schedules import LOOK_AGAIN, WAITING, due_or_waiting
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.resolved import Resolved, resolve_phase
from phasewise.flows.status.retraining import GATES, ParentNotDone, check_verdicts
from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.trainer.base.decision import decision_path
from phasewise.trainer.base.errors import PhasewiseError

FLOW = "train-phase"
LATE = "Late"
"""Prefect's name of a run that is due and for which there is no slot."""
SLACK = timedelta(seconds=2)
"""A verdict this much older than the state may have been written while the run looked."""


def or_wait(check: Callable[[Resolved, Phase], Any], resolved: Resolved, phase: Phase) -> None:
    """Check that what the phase rests on is done. A run of a deployment waits for it; any other is refused.

    Raises:
        Ended: the run waits; its process may end.
        VerdictError: as `check`.
    """
    try:
        check(resolved, phase)
    except ParentNotDone as why:
        from prefect.runtime import deployment

        if not (deployment.id is not None and current.parent_flow_run_id is None):
            raise
        say(f"{phase.name}: waits for {why.parent}: {why.why}")
        from prefect.context import FlowRunContext

        context = FlowRunContext.get()
        started = context.flow_run.start_time if context and context.flow_run else None
        raise Ended(set_state(waiting_state(phase.name, why, started or datetime.now(UTC))), why) from None


def waiting_state(phase: str, why: ParentNotDone, since: datetime) -> Any:
    """The state of a run that waits."""
    from prefect.states import Scheduled

    began = since.astimezone().strftime("%Y-%m-%d %H:%M")
    message = f"Since {began}: {phase} rests on {why.parent}, which is not done: {why.why}. It starts when that is past its gate."
    return Scheduled(name=f"{WAITING}{why.parent}", message=message, scheduled_time=datetime.now(UTC) + LOOK_AGAIN)


async def wake(home: Home) -> list[str]:
    """Have the runs of this home that wait look again, where what they wait for was judged since; the names of those that may start.

    A run whose parent is refused starts, too, and ends with the reason. One that waits for another phase by now says so.
    """
    from prefect.client.orchestration import get_client
    from prefect.states import Scheduled

    woken: list[str] = []
    async with get_client() as client:
        for run in await due_or_waiting(client, FLOW):
            answer = answer_for(home, run)
            if answer is None:
                continue
            if isinstance(answer, ParentNotDone):
                await _move(client, run, waiting_state(run.parameters["phase"], answer, run.start_time or run.expected_start_time))
                continue
            await _move(client, run, Scheduled(message=answer, scheduled_time=datetime.now(UTC)))
            woken.append(run.name)
    return woken


def wake_others(home: Home) -> None:
    """The same at the end of a phase, from its own process. A server that does not answer is no reason to fail."""
    import httpx
    from prefect.utilities.asyncutils import run_coro_as_sync

    try:
        for name in run_coro_as_sync(wake(home)) or ():
            say(f"'{name}' waited for this, and starts")
    except httpx.HTTPError as error:
        say(f"runs that wait for this phase look again within ten minutes: the Prefect server did not answer ({error})")


def answer_for(home: Home, run: Any) -> str | ParentNotDone | None:
    """Why a run may start now, or what it waits for; None where it waits as before, or is not begun and may start in its turn."""
    given = run.parameters
    begun = run.state.name.startswith(WAITING)
    if given.get("home") not in (None, str(home.root)) or not (begun or run.state.name == LATE):
        return None
    try:
        resolved, phase = resolve_phase(given["recipe"], given["phase"], given["scale"], str(home.root))
        if begun and not _judged_since(resolved, phase, run.state.timestamp):
            return None
        check_verdicts(resolved, phase)
    except ParentNotDone as why:
        return None if run.state.name == f"{WAITING}{why.parent}" and why.why in run.state.message else why
    except (PhasewiseError, KeyError) as error:
        return f"It looks again: {error}" if begun else None
    return None if not begun else f"{', '.join(one.name for one in resolved.recipe.ancestors(phase))}: done and past the gates. It starts."


def _judged_since(resolved: Resolved, phase: Phase, when: datetime) -> bool:
    run_name = resolved.recipe.run_name
    places = [resolved.home.verdict(run_name, before.name, gate) for before in resolved.recipe.ancestors(phase) for gate in GATES]
    written = [file for place in places for file in (place, decision_path(place)) if file.exists()]
    return any(file.stat().st_mtime >= (when - SLACK).timestamp() for file in written)


async def _move(client: Any, run: Any, state: Any) -> None:
    if (await client.read_flow_run(run.id)).state.id == run.state.id:
        await client.set_flow_run_state(run.id, state, force=True)
