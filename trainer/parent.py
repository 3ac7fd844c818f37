"""A process that must not outlive the one that started it watches its standard input: the parent holds the other end of the pipe."""

import os
import sys
import threading


def wait_for_end_of_input() -> None:
    """Block until the parent's end closes, which its death does too. Unbuffered: a held buffer would break the interpreter's own end."""
    while os.read(sys.stdin.fileno(), 1):
        pass


def end_with_parent(exit_code: int) -> None:
    """End this process, at once, when its parent is gone."""

    def watch() -> None:
        wait_for_end_of_input()
        os._exit(exit_code)

    threading.Thread(target=watch, daemon=True).start()
