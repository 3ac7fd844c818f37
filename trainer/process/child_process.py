"""Child processes of this program: the start command, the end with the parent, and the reason of an end.

A process that must not outlive its parent watches its standard input, a pipe from the parent. A byte `s` from the parent has the effect of
SIGTERM, and any other byte is a heartbeat. If `PHASEWISE_PARENT_SECONDS` is set, the process ends after this time without a byte, because a
broken connection gives neither bytes nor an end.

At SIGTERM and Ctrl-C the trainer first saves the state after its last update, within the stop time: `PHASEWISE_STOP_SECONDS`, default 30 as
for cancelled Prefect runs. Larger states need more. The launcher, the worker and the trainer use it.
"""

import gc
import math
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
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


LOOK_SECONDS = 0.1
STOP, ALIVE = b"s", b"."
SILENT_VARIABLE = "PHASEWISE_PARENT_SECONDS"
READ_BYTES = 2**16
_FRAME = re.compile(r"\s|Traceback \(most recent|During handling of|The above exception was|Exception ignored in|Fatal Python")
"""Lines of a traceback without the reason."""


def python_command(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """Return the command that runs a module. `-P` takes the current folder off the path: a user's `numbers.py` replaces no library."""
    return [python or sys.executable, "-P", "-m", module, *arguments]


def collect_rarely() -> None:
    """Reduce garbage collection, which makes imports a tenth faster. Not for arrays, which must be freed at once."""
    gc.set_threshold(100_000, 50, 50)


def end_with_parent(exit_code: int, seconds_left: Callable[[], float] = lambda: 0.0) -> None:
    """End this process with its parent, after the time of `seconds_left`."""
    limit = positive_seconds(os.environ, SILENT_VARIABLE, None)
    standard_input = sys.stdin.fileno()

    def watch() -> None:
        while True:
            if limit is not None and not select.select([standard_input], [], [], limit)[0]:
                silent = f"trainer: the launcher gave no sign of life for {limit:g} s ({SILENT_VARIABLE}): this process ends."
                print(silent, file=sys.stderr, flush=True)
                break
            if not (said := os.read(standard_input, 1)):
                break
            if said == STOP:
                os.kill(os.getpid(), signal.SIGTERM)
        while seconds_left() > 0:
            time.sleep(LOOK_SECONDS)
        os._exit(exit_code)

    threading.Thread(target=watch, daemon=True).start()


def ending(code: int) -> str:
    """Return `ended with code 1` or `was ended by SIGKILL`."""
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"
    return f"ended with code {code}"


def last_line(log: Path, after_bytes: int = 0) -> str:
    """Return the last informative line of a log after its first `after_bytes`, such as the exception of a traceback."""
    with suppress(FileNotFoundError), open(log, "rb") as file:
        file.seek(max(after_bytes, file.seek(0, 2) - READ_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        return next((line.strip()[:500] for line in reversed(lines) if line.strip() and not _FRAME.match(line)), "")
    return ""


def ending_with_reason(code: int, log: Path, after_bytes: int = 0) -> str:
    """Return the end of a child in words, with the last line and the path of its log."""
    said = last_line(log, after_bytes) or "its log says nothing"
    return f"{ending(code)}: {said} (log: {log})"
