"""What each flow of ours is beside its work: Prefect's `@flow`, its lines in the logs of the UI, and a process that says it is alive.

Within it, and the flows that it calls, the same names resolve once. A refusal ends the run as Failed with its words, and no traceback: in
the run that refuses, and in those above it.
"""

import copy
import functools
import inspect
import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from prefect import Flow, State, get_run_logger
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import Abort
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run as current

from phasewise.flows.prefect.deployment_params import check_run_is_of_its_deployment
from phasewise.flows.prefect.missed_schedules import end_if_missed
from phasewise.flows.prefect.stale_runs import stay_present
from phasewise.flows.recipes.assignments import setting
from phasewise.flows.resolved import resolving_once
from phasewise.tasks.holder import Holder
from phasewise.tasks.home import Home
from phasewise.tasks.progress import LOGGER, PROGRESS_LOGGER, Milestones, say
from phasewise.trainer.base.errors import PhasewiseError, refused_by_system


class RunLog(logging.Handler):
    """Hands what is said within a flow run to Prefect; of the progress of work only the milestones."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._api = APILogHandler()
        self._milestones = Milestones()

    def emit(self, record: logging.LogRecord) -> None:
        """A line of the run that this is said in; nothing outside of one."""
        if FlowRunContext.get() is None and TaskRunContext.get() is None:
            return
        progress = getattr(record, "progress", None)
        if progress is None:
            self._api.emit(record)
        elif words := self._milestones.line(progress):
            line = copy.copy(record)
            line.msg = words
            line.args = ()
            line.name = LOGGER.name
            self._api.emit(line)


FILE = re.compile(r"^(?:.*/)?([^/]+)\.json(?=/|$)")
P = ParamSpec("P")
R = TypeVar("R")


class Ended(Abort):
    """Ends a flow run in a state that is set already, without Prefect's own words and traceback.

    Attributes:
        state: the state.
        refusal: why, for whoever called the flow.
    """

    def __init__(self, state: State, refusal: PhasewiseError) -> None:
        super().__init__(str(refusal))
        self.state = state
        self.refusal = refusal


class DoorFlow(Flow[P, R]):
    """A flow that its caller gets the refusal of, as from a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow, and raise its refusal."""
        try:
            return super().__call__(*args, **kwargs)
        except Ended as ended:
            raise ended.refusal from None


def door(*, name: str, flow_run_name: str) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """A Prefect flow over a function that has the parameters `home` and `settings`, those of `--set`."""
    for logger in (LOGGER, PROGRESS_LOGGER):
        if not any(isinstance(handler, RunLog) for handler in logger.handlers):
            logger.addHandler(RunLog())

    def decorate(work: Callable[P, R]) -> Flow[P, R]:
        signature = inspect.signature(work)

        @functools.wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            try:
                if run_id := current.id:
                    home: str | None = given.get("home")
                    end_if_missed()
                    check_run_is_of_its_deployment(given)
                    stay_present(Home.open(home), run_id, str(current.name))
                settings: Sequence[str] = given.get("settings", ())
                with refused_by_system(given.get("home") or os.environ.get("PHASEWISE_HOME")), setting(settings), resolving_once():
                    return work(*args, **kwargs)
            except PhasewiseError as refusal:
                if current.id is None:
                    raise
                # The run of this moment, set to Failed in the words of the refusal
                from prefect.states import Failed

                get_run_logger().error(str(refusal))
                raise Ended(set_state(Failed(message=str(refusal))), refusal) from None

        return DoorFlow(run, name=name, flow_run_name=functools.partial(_name_of_run, flow_run_name))

    return decorate


def _name_of_run(template: str) -> str:
    given = dict(current.parameters)
    home: str | None = given.get("home")
    given["recipe"] = FILE.sub(r"\1", str(given.get("recipe")))
    name = template.format(**given)
    if run_id := current.id:
        with suppress(PhasewiseError, OSError):  # a home that cannot be used: the run itself says so
            stay_present(Home.at(home), run_id, name)
    return name


def say_waiting(holder: Holder) -> None:
    """One line about who is waited for."""
    say(f"waiting for {holder} to be done with this home")


def this_run() -> str:
    """What this process does, for those who find the home held by it."""
    name: Any = current.name
    return f"the flow run '{name}'"


def set_state(state: State) -> State:
    """Put the run of this moment in a state; the state that Prefect took.

    Raises:
        Abort: Prefect refuses: somebody cancelled the run.
    """
    from uuid import UUID

    from prefect.client.orchestration import get_client
    from prefect.utilities.engine import propose_state_sync

    with get_client(sync_client=True) as client:
        return propose_state_sync(client, state, flow_run_id=UUID(str(current.id)))
