"""A process that must not outlive the one that started it watches its standard input: the parent holds the other end of the pipe."""

import os
import sys
import threading
import time
from collections.abc import Callable

LOOK_SECONDS = 0.1


def wait_for_end_of_input() -> None:
    """Block until the parent's end closes, which its death does too. Unbuffered: a held buffer would break the interpreter's own end."""
    while os.read(sys.stdin.fileno(), 1):
        pass


def end_with_parent(exit_code: int, seconds_left: Callable[[], float] = lambda: 0.0) -> None:
    """End this process when its parent is gone: at once, or, while it has time left for what it was asked to finish, after that."""

    def watch() -> None:
        wait_for_end_of_input()
        while seconds_left() > 0:
            time.sleep(LOOK_SECONDS)
        os._exit(exit_code)

    threading.Thread(target=watch, daemon=True).start()
