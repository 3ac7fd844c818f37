"""A trainer that gives no sign of life: its watchdog cannot end it, because it stands still as a whole."""

import time
from collections.abc import Callable
from pathlib import Path

from phasewise.trainer.process.heartbeat import read_heartbeat, signature

SILENT_SECONDS = 60.0


class Silence:
    """Whether the heartbeat of a trainer ended, by this process's clock: a clock that jumps changes nothing.

    Before its first beat the trainer imports and opens its data; there is no limit for that here. It dies with its launcher, and people see
    that it says nothing.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._seen = self._first = signature(folder)
        self._since = clock()

    def look(self) -> str | None:
        """What is said of a trainer that is silent for too long; None where it is not."""
        now, seen = self._clock(), signature(self._folder)
        if seen != self._seen:
            self._seen, self._since = seen, now
        if self._seen == self._first or now - self._since <= SILENT_SECONDS:
            return None
        work = read_heartbeat(self._folder).get("work", "nothing")
        return f"gave no sign of life for {now - self._since:.0f} s (limit {SILENT_SECONDS:g} s); it was last seen at: {work}"
