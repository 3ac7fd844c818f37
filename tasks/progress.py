"""What the steps say while they work: ordinary log records, which a terminal may draw as lines and bars.

`say` is for people, a line an event. `advance` is for bars; nothing prints it unless it asks for it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

LOGGER = logging.getLogger("phasewise")
LOGGER.setLevel(logging.INFO)
PROGRESS_LOGGER = logging.getLogger("phasewise-progress")
PROGRESS_LOGGER.propagate = False
PROGRESS_LOGGER.setLevel(logging.INFO)


@dataclass(frozen=True)
class Progress:
    """How far a piece of work is; `note` is what is worth seeing beside the bar."""

    work: str
    done: int
    total: int
    note: str

    @property
    def line(self) -> str:
        """The same in words."""
        return f"{self.work}: {self.done:,} of {self.total:,} {self.note}".rstrip()


class Milestones:
    """Which reports of progress are worth a line: the first, a new tenth of the work, the end, and one where half a minute has passed."""

    TENTHS, SECONDS = 10, 30.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[str, tuple[int, float]] = {}

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


def advance(work: str, done: int, total: int, note: str = "") -> None:
    """The work has come so far."""
    PROGRESS_LOGGER.info("%s: %d of %d %s", work, done, total, note, extra={"progress": Progress(work, done, total, note)})
