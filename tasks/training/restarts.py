"""How often a trainer is started again, and after what wait."""

import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_RESTARTS = 3
BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 2.0, 60.0
LOOK_SECONDS = 0.5


@dataclass
class Restarts:
    """Counts lives that saved nothing new: after `MAX_RESTARTS` such in a row there is no other. A checkpoint further on resets the count.

    The first life after progress follows at once. Then each wait is twice the one before.

    Attributes:
        saved_step: the newest checkpoint when the first life began.
    """

    saved_step: int | None
    without_progress: int = 0

    def allow(self, saved_step: int | None) -> bool:
        """Whether there is another life, where the last one ended with this checkpoint."""
        if saved_step is not None and (self.saved_step is None or saved_step > self.saved_step):
            self.saved_step = saved_step
            self.without_progress = 0
        self.without_progress += 1
        return self.without_progress <= MAX_RESTARTS

    @property
    def wait_seconds(self) -> float:
        """How long to wait before the life that was allowed."""
        number = self.without_progress - 1
        return 0.0 if number <= 0 else min(BACKOFF_SECONDS * 2.0 ** (number - 1), MAX_BACKOFF_SECONDS)

    def wait(self, check: Callable[[], None]) -> None:
        """Wait so long. Whatever `check` raises ends it."""
        until = time.monotonic() + self.wait_seconds
        while (left := until - time.monotonic()) > 0:
            check()
            time.sleep(min(left, LOOK_SECONDS))
