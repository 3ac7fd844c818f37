"""Child processes of this program: the command that starts one, its end with its parent, and the reason that one ended.

A process that must not outlive its parent watches its standard input: the parent holds the other end of the pipe. The parent may also speak
there. A byte `s` asks the process to stop, as SIGTERM does. Any other byte is a sign of life. If `PHASEWISE_PARENT_SECONDS` is set, the
parent must give one at least so often: a connection that is cut in the middle gives neither bytes nor an end.
"""

import gc
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from phasewise.trainer.process.signals import positive_seconds

LOOK_SECONDS = 0.1
STOP, ALIVE = b"s", b"."
SILENT_VARIABLE = "PHASEWISE_PARENT_SECONDS"
READ_BYTES = 2**16
_FRAME = re.compile(r"\s|Traceback \(most recent|During handling of|The above exception was|Exception ignored in|Fatal Python")
"""Lines of a log that say where, and not what."""


def python_command(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """Return the command that runs a module of this project in a Python of its own; None is the interpreter of this process.

    With `-P` the current folder is not on the module path: a user's `numbers.py` there is not imported in place of the library's.
    """
    return [python or sys.executable, "-P", "-m", module, *arguments]


def collect_rarely() -> None:
    """Collect garbage less often from now on: imports take about a tenth less time.

    For processes that order, serve and report. The trainer's and the evaluation's arrays are to be given back at once.
    """
    gc.set_threshold(100_000, 50, 50)


def wait_for_end_of_input() -> None:
    """Block until the parent's end closes, which its death does too. Unbuffered: a held buffer would break the interpreter's own end."""
    while os.read(sys.stdin.fileno(), 1):
        pass


def end_with_parent(exit_code: int, seconds_left: Callable[[], float] = lambda: 0.0) -> None:
    """End this process when its parent is gone: at once, or after the time that it has left to finish."""
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
    """Return the last informative line of a log after its first `after_bytes`, of a traceback the exception; empty if there is none."""
    with suppress(FileNotFoundError), open(log, "rb") as file:
        end = file.seek(0, 2)
        file.seek(max(after_bytes, end - READ_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        return next((line.strip()[:500] for line in reversed(lines) if line.strip() and not _FRAME.match(line)), "")
    return ""


def ending_with_reason(code: int, log: Path, after_bytes: int = 0) -> str:
    """Return how a child ended, the last line of its log, and the log's path."""
    said = last_line(log, after_bytes) or "its log says nothing"
    return f"{ending(code)}: {said} (log: {log})"
