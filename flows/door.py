"""What each flow of ours is beside its work: Prefect's `@flow`, its lines in the logs of the UI, and a process that says it is alive.

Within it, and the flows that it calls, the same names resolve once.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from prefect import Flow, flow
from prefect.runtime import flow_run as current

from flows.presence import stay_present
from flows.recipes.assignments import setting
from flows.resolved import resolving_once
from flows.run_log import show_in_ui
from tasks.holder import Holder
from tasks.home import Home
from tasks.progress import say

P = ParamSpec("P")
R = TypeVar("R")


def door(*, name: str, flow_run_name: str) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """A Prefect flow over a function that has the parameters `home` and `settings`, those of `--set`."""
    show_in_ui()

    def decorate(work: Callable[P, R]) -> Flow[P, R]:
        signature = inspect.signature(work)

        @functools.wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs).arguments
            if run_id := current.id:
                home: str | None = given.get("home")
                stay_present(Home.open(home), run_id, str(current.name))
            settings: Sequence[str] = given.get("settings", ())
            with setting(settings), resolving_once():
                return work(*args, **kwargs)

        return flow(name=name, flow_run_name=flow_run_name)(run)

    return decorate


def say_waiting(holder: Holder) -> None:
    """One line about who is waited for."""
    say(f"waiting for {holder} to be done with this home")


def this_run() -> str:
    """What this process does, for those who find the home held by it."""
    name: Any = current.name
    return f"the flow run '{name}'"
