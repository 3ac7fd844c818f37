"""Child processes: the command that starts one, and the reason that one ended."""

import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

READ_BYTES = 2**16
_FRAME = re.compile(r"\s|Traceback \(most recent|During handling of|The above exception was|Exception ignored in|Fatal Python")
"""Lines of a log that say where, and not what."""


def python_command(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """The command that runs a module of this project in a Python of its own.

    With `-P` the current folder is not on the module path: a user's `numbers.py` there is not imported in place of the library's.

    Args:
        python: the interpreter; None is that of this process.
    """
    return [python or sys.executable, "-P", "-m", module, *arguments]


def ending(code: int) -> str:
    """`ended with code 1`, `was ended by SIGKILL`."""
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"
    return f"ended with code {code}"


def last_line(log: Path, after_bytes: int = 0) -> str:
    """The last line of a log that says something, of those after its first `after_bytes`; empty if there is none.

    Of a Python traceback that is the exception.
    """
    with suppress(FileNotFoundError), open(log, "rb") as file:
        end = file.seek(0, 2)
        file.seek(max(after_bytes, end - READ_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        return next((line.strip()[:500] for line in reversed(lines) if line.strip() and not _FRAME.match(line)), "")
    return ""


def ending_with_reason(code: int, log: Path, after_bytes: int = 0) -> str:
    """How a child ended, the last line of its log, and the log's path."""
    said = last_line(log, after_bytes) or "its log says nothing"
    return f"{ending(code)}: {said} (log: {log})"
