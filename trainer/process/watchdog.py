"""Ends a process in which nothing happens any more: a stalled run costs as much as one that trains, and nobody sees it."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple

from phasewise.trainer.base.exit_codes import ExitCode
from phasewise.trainer.process.stall_limits import FIELD_OF, Work

CHECKS_A_LIMIT = 4
MAX_CHECK_SECONDS = 1.0
STOPPED_SECONDS = 5.0
"""A look that comes so much too late was not the work's fault: the whole process had been stopped."""


class Doing(NamedTuple):
    """What is at work, for how many seconds without a sign of progress, and how many it may; None is as long as it takes."""

    work: Work
    seconds: float
    limit_seconds: float | None

    @property
    def is_stalled(self) -> bool:
        """Whether it has taken too long."""
        return self.limit_seconds is not None and self.seconds > self.limit_seconds

    def __str__(self) -> str:
        limit = "no limit" if self.limit_seconds is None else f"limit {self.limit_seconds:g} s"
        return f"{self.work} for {self.seconds:.{0 if self.seconds >= 10 else 1}f} s, {limit}"


class Watchdog:
    """Knows what the process is at, and calls `on_stall` once where that takes longer than its limit. Use it as a context.

    It looks from a thread: a call that holds the interpreter's lock for ever is not seen here, but by the launcher, for which the
    heartbeat then ends (`trainer.process.heartbeat`).

    Attributes:
        step: how many updates were applied when the process last said so.
    """

    def __init__(
        self,
        limits: Mapping[Work, float | None],
        on_stall: Callable[[Doing], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._on_stall, self._clock = limits, on_stall, clock
        self.step = 0
        self._work: Work = "start"
        self._beat = self._looked = self._since = clock()
        self._spent: dict[Work, float] = {}
        self._beside: dict[Work, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        shortest = min((limit for limit in limits.values() if limit is not None), default=None)
        self._every = None if shortest is None else min(shortest / CHECKS_A_LIMIT, MAX_CHECK_SECONDS)

    def __enter__(self) -> "Watchdog":
        self._beat = self._looked = self._since = self._clock()
        if self._every is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def begin(self, work: Work, step: int | None = None) -> None:
        """From now on the process is at this, after so many updates where that is said."""
        now = self._clock()
        self._spent[self._work] = self._spent.get(self._work, 0.0) + now - self._since
        self._work = work
        self.step = self.step if step is None else step
        self._beat = self._since = now

    def spent(self) -> dict[Work, float]:
        """The seconds of each work so far; together they are the time since the watchdog was entered."""
        spent = self._spent.copy()
        spent[self._work] = spent.get(self._work, 0.0) + self._clock() - self._since
        return spent

    @contextmanager
    def beside(self, work: Work) -> Iterator[None]:
        """Something that another thread does meanwhile, one of each kind at a time."""
        self._beside[work] = self._clock()
        try:
            yield
        finally:
            self._beside.pop(work, None)

    def doing(self) -> Doing:
        """What is furthest beyond its limit, or, where nothing is, what the process is at."""
        now = self._clock()
        works: list[tuple[Work, float]] = [(self._work, self._beat), *self._beside.copy().items()]
        found = [Doing(work, now - since, self._limits[work]) for work, since in works]
        return next((doing for doing in found if doing.is_stalled), found[0])

    def look(self) -> Doing | None:
        """What is stalled. Where this look comes late the process itself was stopped, and all limits begin again."""
        now, before, self._looked = self._clock(), self._looked, self._clock()
        if self._every is not None and now - before > self._every + STOPPED_SECONDS:
            self._beat = now
            self._beside = dict.fromkeys(self._beside.copy(), now)
        doing = self.doing()
        return doing if doing.is_stalled else None

    def _watch(self) -> None:
        while not self._ended.wait(self._every):
            if doing := self.look():
                self._on_stall(doing)
                return


def end_stalled(phase: str) -> Callable[[Doing], None]:
    """Say where every thread is, on standard error, and end the process at once: a process that hangs cannot be asked to stop."""

    def end(doing: Doing) -> None:
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        print(
            f"trainer: phase {phase} stalled in {doing} (execution.{FIELD_OF[doing.work]}). "
            "The stacks above say where. Start it again to go on from its last checkpoint.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(ExitCode.STALLED)

    return end
