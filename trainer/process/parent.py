"""A process that must not outlive the one that started it watches its standard input: the parent holds the other end of the pipe.

The parent may also speak there. A byte `s` asks the process to stop, as SIGTERM does. Any other byte is a sign of life. Where
`PHASEWISE_PARENT_SECONDS` is set the parent must give one at least so often: a connection that is cut in the middle gives neither bytes nor
an end.
"""

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from phasewise.trainer.base.errors import ConfigError

LOOK_SECONDS = 0.1
STOP, ALIVE = b"s", b"."
SILENT_VARIABLE = "PHASEWISE_PARENT_SECONDS"


def wait_for_end_of_input() -> None:
    """Block until the parent's end closes, which its death does too. Unbuffered: a held buffer would break the interpreter's own end."""
    while os.read(sys.stdin.fileno(), 1):
        pass


def end_with_parent(exit_code: int, seconds_left: Callable[[], float] = lambda: 0.0) -> None:
    """End this process when its parent is gone: at once, or, while it has time left for what it was asked to finish, after that.

    Raises:
        ConfigError: the time in which the parent must speak is no number above 0.
    """
    limit = _silent_seconds()

    def watch() -> None:
        while said := _next_byte(limit):
            if said == STOP:
                os.kill(os.getpid(), signal.SIGTERM)
        while seconds_left() > 0:
            time.sleep(LOOK_SECONDS)
        os._exit(exit_code)

    threading.Thread(target=watch, daemon=True).start()


def _next_byte(limit: float | None) -> bytes:
    """What the parent says next; nothing where it is gone, or silent for too long."""
    place = sys.stdin.fileno()
    if limit is not None and not select.select([place], [], [], limit)[0]:
        print(
            f"trainer: the launcher gave no sign of life for {limit:g} s ({SILENT_VARIABLE}): this process ends.",
            file=sys.stderr,
            flush=True,
        )
        return b""
    return os.read(place, 1)


def _silent_seconds() -> float | None:
    text = os.environ.get(SILENT_VARIABLE)
    if not text:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise ConfigError(f"{SILENT_VARIABLE} must be a number of seconds above 0, found '{text}'. Correct it, or leave it unset.")
