"""Ends a process in which nothing happens any more: a stalled run costs as much as one that trains, and nobody sees it."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from trainer.base.exit_codes import ExitCode

CHECKS_A_LIMIT = 4


class Watchdog:
    """Calls `on_stall` once where `beat` was not called for `limit_seconds`. Use it as a context; None never does.

    It runs in a thread: a call that holds the interpreter's lock for ever is not seen.
    """

    def __init__(
        self, limit_seconds: float | None, on_stall: Callable[[float], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._on_stall, self._clock = limit_seconds, on_stall, clock
        self._beat = clock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self.beat()
        if self._limit is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def beat(self) -> None:
        """Something happened."""
        self._beat = self._clock()

    def is_stalled(self) -> bool:
        """Whether nothing happened for too long."""
        return self._limit is not None and self._clock() - self._beat > self._limit

    def _watch(self) -> None:
        assert self._limit is not None
        while not self._ended.wait(self._limit / CHECKS_A_LIMIT):
            if self.is_stalled():
                self._on_stall(self._limit)
                return


def end_stalled(phase: str) -> Callable[[float], None]:
    """Say where every thread is, on standard error, and end the process at once: a process that hangs cannot be asked to stop."""

    def end(limit_seconds: float) -> None:
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        print(
            f"trainer: phase {phase} stalled: no update for {limit_seconds:g} seconds (execution.stall_seconds). "
            "The stacks above say where. Start it again to go on from its last checkpoint.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(ExitCode.STALLED)

    return end
