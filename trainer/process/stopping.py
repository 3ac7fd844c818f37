"""Being asked to stop: the state after the last update is saved first, and that may take a stated time.

`PHASEWISE_STOP_SECONDS` is that time, 30 where it is not set, as Prefect gives a run that is cancelled. Raise it for states that take
longer to write. The launcher, the worker and the trainer all go by it.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.exit_codes import ExitCode

STOP_VARIABLE = "PHASEWISE_STOP_SECONDS"
DEFAULT_STOP_SECONDS = 30.0

_deadlines: list[float] = []
"""When a process that was asked to stop must be done with saving, by its own clock; empty where nobody asked."""


def stop_seconds() -> float:
    """How long a trainer that was asked to stop may take to save.

    Raises:
        ConfigError: the variable is no number above 0.
    """
    value = os.environ.get(STOP_VARIABLE) or str(DEFAULT_STOP_SECONDS)
    with suppress(ValueError):
        if 0 < (seconds := float(value)) < math.inf:
            return seconds
    raise ConfigError(f"{STOP_VARIABLE} must be a number of seconds above 0, found '{value}'. Correct it, or leave it unset.")


def seconds_left_to_save() -> float:
    """What is left of the stop time of this process; 0 where nobody asked it to stop, and where that time is over."""
    return max(0.0, _deadlines[0] - time.monotonic()) if _deadlines else 0.0


def end_where_asked_to_stop() -> None:
    """Outside of `stop_requests`, SIGTERM and Ctrl-C end this process at once, as preempted: before its updates it has nothing to save, and
    after them everything is saved.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: os._exit(ExitCode.PREEMPTED))


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Whether this process was asked to stop since, by SIGTERM or by Ctrl-C. A second Ctrl-C interrupts it without saving."""
    limit_seconds = stop_seconds()
    interrupts = 0

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
