"""The decorator of our flows: Prefect's `@flow` with logs, a presence file, checks of the deployment, and refusals without a traceback.

Within a flow and its subflows a recipe is resolved once. A refusal sets the flow run and its parents to Failed, with the message.

A phase whose parent is not done waits as Prefect's scheduled runs, without a process and without a slot. The state names the parent, the
reason and the start of the wait. `phasewise up` wakes the run after a new verdict on an ancestor. Without `phasewise up`, or after a kill
of the parent's process, the run looks again every ten minutes. Runs without a free slot wait alike.
"""

import copy
import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import httpx
from prefect import Flow, State, get_run_logger
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import Abort, ObjectNotFound
from prefect.logging.handlers import APILogHandler
from prefect.runtime import deployment
from prefect.runtime import flow_run as current
from prefect.states import Failed, Scheduled
from prefect.utilities.asyncutils import run_coro_as_sync
from prefect.utilities.engine import propose_state_sync

from phasewise.flows.prefect.server import TAG
from phasewise.flows.prefect.stale_runs import LOOK_AGAIN, MISSED_MESSAGE, WAITING, due_or_waiting, is_missed, missed_state, stay_present
from phasewise.flows.prefect.submission import GENERATED, check_fixed, run_name, subject_of
from phasewise.flows.recipes.assignments import setting
from phasewise.flows.recipes.phase import GATES, Phase
from phasewise.flows.resolved import Resolved, resolve_phase, resolving_once
from phasewise.flows.status.retraining import ParentNotDone, check_verdicts
from phasewise.tasks.home import Home
from phasewise.tasks.locks import Holder
from phasewise.tasks.phase_state import State as PhaseState
from phasewise.tasks.phase_state import enter_stage
from phasewise.tasks.progress import LOGGER, PROGRESS_LOGGER, Milestones, say
from phasewise.tasks.report.task import publish_page
from phasewise.tasks.site import site_address
from phasewise.trainer.base.decision import decision_path
from phasewise.trainer.base.errors import PhasewiseError, refused_by_system

P = ParamSpec("P")
R = TypeVar("R")


class RunLog(logging.Handler):
    """Sends log lines within a flow run to Prefect, and milestones of progress."""

    def __init__(self) -> None:
        super().__init__()
        self.top: UUID | None = None  # the flow run without a parent, which gets copies of the lines `on_top`
        self._api = APILogHandler()
        self._milestones = Milestones()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, if this is a flow run."""
        flow, task = FlowRunContext.get(), TaskRunContext.get()
        if flow is None and task is None:
            return
        progress = getattr(record, "progress", None)
        if progress is None:
            self._api.emit(record)
            run_id = task.task_run.flow_run_id if task else flow.flow_run.id if flow and flow.flow_run else None
            if getattr(record, "on_top", False) and self.top not in (None, run_id):
                copied = copy.copy(record)
                copied.flow_run_id = self.top
                self._api.emit(copied)
        elif line := self._milestones.line(progress):
            milestone = copy.copy(record)
            milestone.msg, milestone.args, milestone.name = line, (), LOGGER.name
            self._api.emit(milestone)


RUN_LOG = RunLog()


class Ended(Abort):
    """Ends a flow run whose state is set, without Prefect's message. `refusal`: the reason, which callers get as an exception."""

    def __init__(self, state: State, refusal: PhasewiseError) -> None:
        super().__init__(str(refusal))
        self.state = state
        self.refusal = refusal


class DoorFlow(Flow[P, R]):
    """A flow that raises its refusal to the caller, as a function does."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow."""
        try:
            return super().__call__(*args, **kwargs)
        except Ended as ended:
            raise ended.refusal from None


ARGUMENTS = {
    "recipe": "Name of a recipe, or path of a JSON recipe file. Python files run only from the command line.",
    "phase": "Name of a phase.",
    "scale": "`proxy`, `full`, or `own` for a recipe with this scale.",
    "home": "Folder of all data and results. Default: PHASEWISE_HOME.",
    "settings": "Changes of the recipe for a trial, as PHASE.FIELD=VALUE, like `--set`.",
}
"""Descriptions of arguments that many flows have. The form of a deployment shows them."""


def door(*, name: str) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Make a flow of a function with the parameters `home` and `settings` (of `--set`)."""
    for logger in (LOGGER, PROGRESS_LOGGER):
        logger.addHandler(RUN_LOG)  # a second time has no effect

    def decorate(work: Callable[P, R]) -> Flow[P, R]:
        signature = inspect.signature(work)
        about, _, own = (inspect.getdoc(work) or "").partition("\n\nArgs:\n")
        shared = "".join(
            f"    {one}: {text}\n" for one, text in ARGUMENTS.items() if one in signature.parameters and f"    {one}: " not in own
        )
        work.__doc__ = f"{about}\n\nArgs:\n{shared}{own}"

        @functools.wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            try:
                if run_id := current.id:
                    _check_run(given)
                    stay_present(Home.open(given.get("home")), run_id, str(current.name))
                    if not current.parent_flow_run_id:
                        RUN_LOG.top, subject = UUID(run_id), subject_of(given)
                        if page := site_address(*subject):  # first in the log and the artifacts
                            say(f"page: {page}")
                            about, key = f"{'/'.join(subject)} on the page", f"{subject[0]}-{subject[1]}-page".lower()
                            publish_page(f"[{page}]({page})", key=key, description=about)
                settings: Sequence[str] = given.get("settings", ())
                with refused_by_system(given.get("home") or os.environ.get("PHASEWISE_HOME")), setting(settings), resolving_once():
                    return work(*args, **kwargs)
            except PhasewiseError as refusal:
                if current.id is None:
                    raise
                get_run_logger().error(str(refusal))
                raise Ended(set_state(Failed(message=str(refusal))), refusal) from None

        def named() -> str:
            given, text = dict(current.parameters), str(current.name)
            if GENERATED.fullmatch(text):  # a subflow, or a run of a server without our check
                text = run_name(work.__name__, given)
            if run_id := current.id:
                with suppress(PhasewiseError, OSError):  # the flow itself reports an unusable home
                    stay_present(Home.at(given.get("home")), run_id, text)
            return text

        return DoorFlow(run, name=name, flow_run_name=named)

    return decorate


def _check_run(given: Mapping[str, Any]) -> None:
    """End the current run if it is missed, and refuse it if its recipe, phase or scale differ from its deployment's.

    Prefect lets API clients and schedules replace parameters, so a run could show one name and train another phase.
    """
    context = FlowRunContext.get()
    if context and context.flow_run and run_coro_as_sync(is_missed(context.flow_run)):
        raise Ended(set_state(missed_state()), PhasewiseError(MISSED_MESSAGE))
    if not deployment.id or current.parent_flow_run_id:
        return
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment(UUID(str(deployment.id)))
        except ObjectNotFound:  # it was removed after the run was created
            return
    if TAG in found.tags:
        check_fixed(found.name, found.parameters, given)


def say_waiting(holder: Holder) -> None:
    """Log the process that holds the home."""
    say(f"waiting for {holder} to be done with this home")


def this_run() -> str:
    """Describe this flow run to other processes that find the home in use."""
    name: Any = current.name
    return f"the flow run '{name}'"


def at_stage(resolved: Resolved, phase: Phase, state: PhaseState, *, why: str = "") -> None:
    """Write the stage of a phase with the id of this flow run, and with the time of submission if it is no subflow."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    submitted = run.expected_start_time if run and run.parent_task_run_id is None else None
    name, flow_run = resolved.recipe.run_name, str(current.id or "")
    enter_stage(resolved.home, name, phase.name, state, why=why, flow_run=flow_run, submitted=submitted)


def set_state(state: State) -> State:
    """Set the state of the flow run and return the accepted state. Raises Abort if Prefect rejected the state of a cancelled run."""
    with get_client(sync_client=True) as client:
        return propose_state_sync(client, state, flow_run_id=UUID(str(current.id)))


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
