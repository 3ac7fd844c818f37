"""Flow runs of a phase whose parent is not done. They wait as Prefect's scheduled runs, without a process and without a slot.

The state names the parent, the reason and the start of the wait. `phasewise up` wakes the run after a new verdict on an ancestor. Without
`phasewise up`, or after a kill of the parent's process, the run looks again every ten minutes. Runs without a free slot wait alike.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.runtime import deployment
from prefect.runtime import flow_run as current
from prefect.states import Scheduled
from prefect.utilities.asyncutils import run_coro_as_sync

from phasewise.flows.prefect.flow_decorator import Ended, at_stage, set_state
from phasewise.flows.prefect.missed_schedules import LOOK_AGAIN, WAITING, due_or_waiting
from phasewise.flows.recipes.phase import GATES, Phase
from phasewise.flows.resolved import Resolved, resolve_phase
from phasewise.flows.status.retraining import ParentNotDone, check_verdicts
from phasewise.tasks.home import Home
from phasewise.tasks.phase_state import State as PhaseState
from phasewise.tasks.progress import say
from phasewise.trainer.base.decision import decision_path
from phasewise.trainer.base.errors import PhasewiseError

FLOW = "train-phase"
LATE = "Late"  # Prefect's state of a due run without a free slot
SLACK = timedelta(seconds=2)  # a verdict may be this much older than the state: it was written while the run looked


def or_wait(check: Callable[[Resolved, Phase], Any], resolved: Resolved, phase: Phase) -> None:
    """Check the parent. If the parent is not done, a run of a deployment waits (Ended). Raises VerdictError for other callers."""
    try:
        check(resolved, phase)
    except ParentNotDone as why:
        if deployment.id is None or current.parent_flow_run_id is not None:
            raise
        say(f"{phase.name}: waits for {why.parent}: {why.why}")
        at_stage(resolved, phase, PhaseState.WAITS_FOR_PARENT, why=why.why)
        context = FlowRunContext.get()
        started = context.flow_run.start_time if context and context.flow_run else None
        raise Ended(set_state(waiting_state(phase.name, why, started or datetime.now(UTC))), why) from None


def waiting_state(phase: str, why: ParentNotDone, since: datetime) -> Any:
    """Return the state of a waiting run."""
    began = since.astimezone().strftime("%Y-%m-%d %H:%M")
    message = f"Since {began}: {phase} rests on {why.parent}, which is not done: {why.why}. It starts when that is past its gate."
    return Scheduled(name=f"{WAITING}{why.parent}", message=message, scheduled_time=datetime.now(UTC) + LOOK_AGAIN)


async def wake(home: Home) -> list[str]:
    """Start waiting runs whose parent got a verdict, also a refusal, and return their names. Update the reason of runs still waiting."""
    woken: list[str] = []
    async with get_client() as client:
        for run in await due_or_waiting(client, FLOW):
            answer = answer_for(home, run)
            if answer is None:
                continue
            if isinstance(answer, ParentNotDone):
                state = waiting_state(run.parameters["phase"], answer, run.start_time or run.expected_start_time)
            else:
                state = Scheduled(message=answer, scheduled_time=datetime.now(UTC))
                woken.append(run.name)
            if (await client.read_flow_run(run.id)).state.id == run.state.id:  # pyright: ignore[reportOptionalMemberAccess]  # runs have one
                await client.set_flow_run_state(run.id, state, force=True)
    return woken


def wake_others(home: Home) -> None:
    """Wake waiting runs at the end of a phase. Without an answer of the server, log it and return."""
    try:
        for name in run_coro_as_sync(wake(home)) or ():
            say(f"'{name}' waited for this, and starts")
    except httpx.HTTPError as error:
        say(f"runs that wait for this phase look again within ten minutes: the Prefect server did not answer ({error})")


def answer_for(home: Home, run: Any) -> str | ParentNotDone | None:
    """Return the reason that a run may start, a new reason to wait, or None for no change."""
    given = run.parameters
    waits = run.state.name.startswith(WAITING)
    if given.get("home") not in (None, str(home.root)) or not (waits or run.state.name == LATE):
        return None
    try:
        resolved, phase = resolve_phase(given["recipe"], given["phase"], given["scale"], str(home.root))
        ancestors = list(resolved.recipe.ancestors(phase))
        if waits:
            run_name, since = resolved.recipe.run_name, (run.state.timestamp - SLACK).timestamp()
            verdicts = [resolved.home.verdict(run_name, one.name, gate) for one in ancestors for gate in GATES]
            written = [path for verdict in verdicts for path in (verdict, decision_path(verdict)) if path.exists()]
            if not any(path.stat().st_mtime >= since for path in written):
                return None
        check_verdicts(resolved, phase)
    except ParentNotDone as why:
        return None if run.state.name == f"{WAITING}{why.parent}" and why.why in run.state.message else why
    except (PhasewiseError, KeyError) as error:
        return f"It looks again: {error}" if waits else None
    return f"{', '.join(one.name for one in ancestors)}: done and past the gates. It starts." if waits else None
