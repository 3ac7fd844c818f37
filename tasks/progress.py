"""What the steps say while they work: ordinary log records, which a terminal may draw as lines and bars.

`say` is for people, a line an event. `advance` is for bars; nothing prints it unless it asks for it.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from phasewise.trainer.base.wording import about

LOGGER = logging.getLogger("phasewise")
LOGGER.setLevel(logging.INFO)
PROGRESS_LOGGER = logging.getLogger("phasewise-progress")
PROGRESS_LOGGER.propagate = False
PROGRESS_LOGGER.setLevel(logging.INFO)


@dataclass(frozen=True)
class Progress:
    """How far a piece of work is; `note` is what is worth seeing beside the bar.

    Attributes:
        seconds_left: where it is known by more than how many are done; infinity where that says nothing yet.
    """

    work: str
    done: int
    total: int
    note: str
    seconds_left: float | None = None

    @property
    def line(self) -> str:
        """The same in words."""
        return f"{self.work}: {self.done:,} of {self.total:,} {self.note}".rstrip()


class Milestones:
    """Which reports of progress are worth a line: the first, a new tenth of the work, the end, and one where half a minute has passed."""

    TENTHS, SECONDS = 10, 30.0
    MIN_SECONDS = 2.0
    """What a shorter time says of the rest is no more than noise."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[str, tuple[int, float]] = {}
        self._began: dict[str, tuple[float, int]] = {}

    def line(self, progress: Progress) -> str | None:
        """The report in words, with the time that is left; None where it is not due."""
        now = self._clock()
        began, before = self._began.setdefault(progress.work, (now, progress.done))
        if not self.is_one(progress):
            return None
        new = progress.done - before
        if new <= 0 or progress.done >= progress.total or now - began < self.MIN_SECONDS:
            return progress.line
        left = (progress.total - progress.done) * (now - began) / new if progress.seconds_left is None else progress.seconds_left
        return progress.line if math.isinf(left) else f"{progress.line}, {about(left)} left"

    def is_one(self, progress: Progress) -> bool:
        """Whether this report is due; each that is due counts as said."""
        tenth = self.TENTHS * progress.done // max(progress.total, 1)
        now = self._clock()
        before = self._said.get(progress.work)
        if before and tenth == before[0] and now - before[1] < self.SECONDS:
            return False
        self._said[progress.work] = (tenth, now)
        return True


def say(text: str) -> None:
    """One line about what is happening."""
    LOGGER.info(text)


class Meter:
    """How many bytes of a piece of work are done, how fast, and how long the rest will take.

    What was finished before counts as done, and says nothing of the speed: a build that goes on after days knows what is left of it.
    """

    def __init__(self, sizes: Sequence[int], finished: Collection[int] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._sizes, self._finished, self._clock = sizes, frozenset(finished), clock
        self._began = clock()
        self._total = sum(sizes)
        self._before = sum(sizes[number] for number in self._finished)
        self._new = 0

    def add(self, number: int) -> None:
        """The call of this number is done."""
        if number not in self._finished:
            self._new += self._sizes[number]

    @property
    def seconds_left(self) -> float:
        """As fast as it went; infinity where nothing went."""
        elapsed = self._clock() - self._began
        return (self._total - self._before - self._new) * elapsed / self._new if self._new and elapsed > 0 else math.inf

    @property
    def note(self) -> str:
        """Bytes done of bytes listed, and the rate."""
        elapsed = self._clock() - self._began
        rate = f", {self._new / elapsed / 1e6:,.1f} MB/s" if self._new and elapsed > 0 else ""
        return f"({_amount(self._before + self._new, self._total)}{rate})"


def _amount(done: int, total: int) -> str:
    unit, name = (1e9, "GB") if total >= 10**9 else (1e6, "MB")
    return f"{done / unit:,.2f} of {total / unit:,.2f} {name}"


def advance(work: str, done: int, total: int, note: str = "", seconds_left: float | None = None) -> None:
    """The work has come so far."""
    progress = Progress(work, done, total, note, seconds_left)
    PROGRESS_LOGGER.info("%s: %d of %d %s", work, done, total, note, extra={"progress": progress})
