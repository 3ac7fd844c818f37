"""The calls that wrote the phases and schedules of a recipe file, so that `--set` changes an argument and dependent values follow.

`from_scratch(stop_step=100, learning_rate=wsd(stop_step=100, warmup=10, decay=20, peak=1e-3), …)` gives a phase with five segments of
numbers. The phase keeps the call and its arguments. A JSON file has only the values.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec

from phasewise.trainer.config import LearningRateSegment

P = ParamSpec("P")
BOUNDARIES = ("start_step", "end_step", "stop_step")  # arguments of schedules and fields of segments that are steps of the lineage


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a function for recipe files, with all arguments by name.

    All calls are equal, so that equal phases with different spellings are equal.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Schedule(tuple[LearningRateSegment, ...]):
    """Segments of the learning rate, with the call that wrote them."""

    call: Call


def call_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    """Return the call with default arguments, and with the entries of `**fields` as arguments."""
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name)
    return Call(function, arguments)


def keeps_call(function: Callable[P, tuple[LearningRateSegment, ...]]) -> Callable[P, Schedule]:
    """Decorate a function that writes a schedule."""

    @functools.wraps(function)
    def write(*args: P.args, **kwargs: P.kwargs) -> Schedule:
        schedule = Schedule(function(*args, **kwargs))
        schedule.call = call_of(write, *args, **kwargs)
        return schedule

    return write


def schedule_arguments(schedule: Any) -> Mapping[str, Any]:
    """Return the written arguments of a schedule. Segments without a call have none."""
    return schedule.call.arguments if isinstance(schedule, Schedule) else {}


def rewrite_schedule(schedule: Any, moves: Mapping[int, int], changes: Mapping[str, Any]) -> Any:
    """Return the schedule with moved boundaries (earlier step → new step), and with other arguments of its call."""
    if isinstance(schedule, Schedule):
        arguments = schedule.call.arguments
        moved = {name: moves.get(arguments[name], arguments[name]) for name in BOUNDARIES if name in arguments}
        return schedule.call.function(**{**arguments, **moved, **changes})
    return tuple(
        segment.but(**{name: moves.get(getattr(segment, name), getattr(segment, name)) for name in BOUNDARIES[:2]}) for segment in schedule
    )
