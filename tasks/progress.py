"""Progress reports as log records: `say` logs one line per event, `advance` updates a progress bar."""

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from phasewise.trainer.base.wording import about

LOGGER = logging.getLogger("phasewise")
LOGGER.setLevel(logging.INFO)
PROGRESS_LOGGER = logging.getLogger("phasewise-progress")
PROGRESS_LOGGER.propagate = False
PROGRESS_LOGGER.setLevel(logging.INFO)
PARTS, SECONDS = 4, 30.0
MIN_SECONDS = 2.0  # A shorter time gives no useful estimate


@dataclass(frozen=True)
class Progress:
    """The progress of some work. `seconds_left` is a better estimate than the ratio of `done` to `total`, or infinity."""

    work: str
    done: int
    total: int
    note: str
    seconds_left: float | None = None

    @property
    def line(self) -> str:
        """The report for people."""
        return f"{self.work}: {self.done:,} of {self.total:,} {self.note}".rstrip()


@dataclass
class Milestones:
    """Select the progress reports that deserve a line: the first, each new quarter, the end, and one after half a minute of silence."""

    clock: Callable[[], float] = time.monotonic
    _reported: dict[str, tuple[int, float]] = field(default_factory=dict)
    _began: dict[str, tuple[float, int]] = field(default_factory=dict)

    def line(self, progress: Progress) -> str | None:
        """Return the report with the remaining time, or None if it is not due. A report that is due counts as printed."""
        now = self.clock()
        began, done_before = self._began.setdefault(progress.work, (now, progress.done))
        part = PARTS * progress.done // max(progress.total, 1)
        reported = self._reported.get(progress.work)
        if reported and part == reported[0] and now - reported[1] < SECONDS:
            return None
        self._reported[progress.work] = (part, now)
        new = progress.done - done_before
        if new <= 0 or progress.done >= progress.total or now - began < MIN_SECONDS:
            return progress.line
        left = (progress.total - progress.done) * (now - began) / new if progress.seconds_left is None else progress.seconds_left
        return progress.line if math.isinf(left) else f"{progress.line}, {about(left)} left"


def say(text: str, *, on_top: bool = False) -> None:
    """Log one line for people. `on_top`: the line also appears on the top flow run, which people open."""
    LOGGER.info(text, extra={"on_top": on_top})


def explain(text: str, *, on_top: bool = False) -> None:
    """Log one line of detail, which `-v` and the flow runs of `phasewise up` show. `on_top` as in `say`."""
    LOGGER.debug(text, extra={"on_top": on_top})


def advance(work: str, done: int, total: int, note: str = "", seconds_left: float | None = None) -> None:
    """Log the progress of some work, for progress bars."""
    progress = Progress(work, done, total, note, seconds_left)
    PROGRESS_LOGGER.info("%s: %d of %d %s", work, done, total, note, extra={"progress": progress})


class Meter:
    """Measure the bytes done, the speed and the remaining time. Bytes of earlier sessions count as done and not for the speed."""

    def __init__(self, sizes: Sequence[int], finished: Collection[int] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._sizes, self._finished, self._clock = sizes, frozenset(finished), clock
        self._began = clock()
        self._total = sum(sizes)
        self._before = sum(sizes[number] for number in self._finished)
        self._new = 0

    def add(self, number: int) -> tuple[str, float]:
        """Count a call as done. Return bytes and speed in words, and the remaining time, which is infinity if no bytes are new."""
        if number not in self._finished:
            self._new += self._sizes[number]
        elapsed = self._clock() - self._began
        rate = self._new / elapsed if elapsed > 0 else 0.0
        unit, name = (1e9, "GB") if self._total >= 10**9 else (1e6, "MB")
        speed = f", {rate / 1e6:,.1f} MB/s" if rate else ""
        left = (self._total - self._before - self._new) / rate if rate else math.inf
        return f"({(self._before + self._new) / unit:,.2f} of {self._total / unit:,.2f} {name}{speed})", left
