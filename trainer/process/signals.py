"""SIGTERM and Ctrl-C: the trainer first saves the state after its last update, within the stop time.

The stop time is `PHASEWISE_STOP_SECONDS`, default 30 as for cancelled Prefect runs. Larger states need more. The launcher, the worker and
the trainer use it.
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

_deadlines: list[float] = []  # the times by which this process must have saved, one per signal


def positive_seconds(environment: Mapping[str, str], name: str, default: Default) -> float | Default:
    """Return the seconds of an environment variable."""
    value = environment.get(name)
    if not value:
        return default
    with suppress(ValueError):
        if 0 < (seconds := float(value)) < math.inf:
            return seconds
    raise ConfigError(f"{name} must be a number of seconds above 0, found '{value}'. Correct it, or leave it unset.")


def stop_seconds() -> float:
    """Return the stop time."""
    return positive_seconds(os.environ, STOP_VARIABLE, DEFAULT_STOP_SECONDS)


def seconds_left_to_save() -> float:
    """Return the remaining stop time of this process, or 0 without a signal."""
    return max(0.0, _deadlines[0] - time.monotonic()) if _deadlines else 0.0


def end_where_asked_to_stop() -> None:
    """Make SIGTERM and Ctrl-C end this process at once, as preempted. Outside of `stop_requests` there is nothing to save."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: os._exit(ExitCode.PREEMPTED))


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM or Ctrl-C came. A second Ctrl-C interrupts without saving."""
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
