"""SIGTERM and Ctrl-C: the trainer first saves the state after its last update, within a stated time.

`PHASEWISE_STOP_SECONDS` is that time, 30 if it is not set, as Prefect gives a run that is cancelled. Raise it for states that take longer
to write. The launcher, the worker and the trainer all use it.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

from phasewise.trainer.base.errors import ConfigError, ExitCode

STOP_VARIABLE = "PHASEWISE_STOP_SECONDS"
DEFAULT_STOP_SECONDS = 30.0
Default = TypeVar("Default", float, None)

_deadlines: list[float] = []
"""When a process that was asked to stop must be done with saving, by its own clock; empty if it was not asked."""


def positive_seconds(environment: Mapping[str, str], name: str, default: Default) -> float | Default:
    """Return the seconds that a variable says."""
    value = environment.get(name)
    if not value:
        return default
    with suppress(ValueError):
        if 0 < (seconds := float(value)) < math.inf:
            return seconds
    raise ConfigError(f"{name} must be a number of seconds above 0, found '{value}'. Correct it, or leave it unset.")


def stop_seconds() -> float:
    """Return how long a trainer that was asked to stop may take to save."""
    return positive_seconds(os.environ, STOP_VARIABLE, DEFAULT_STOP_SECONDS)


def seconds_left_to_save() -> float:
    """Return the rest of the stop time of this process; 0 if it was not asked to stop, and if that time is over."""
    return max(0.0, _deadlines[0] - time.monotonic()) if _deadlines else 0.0


def end_where_asked_to_stop() -> None:
    """Have SIGTERM and Ctrl-C end this process at once, as preempted, outside of `stop_requests`: it has nothing to save there."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: os._exit(ExitCode.PREEMPTED))


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield whether this process was asked to stop, by SIGTERM or by Ctrl-C. A second Ctrl-C interrupts it without saving."""
    limit_seconds, interrupts = stop_seconds(), 0

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        _deadlines.append(time.monotonic() + limit_seconds)
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(_deadlines)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _deadlines.clear()
