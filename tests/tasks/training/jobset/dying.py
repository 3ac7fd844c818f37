"""A launcher that dies: from one moment on it does nothing any more, and what it started goes on."""

import threading
from collections.abc import Callable
from typing import Any

from phasewise.tasks.store import keeping as keepers
from phasewise.tasks.store.keeping import keeping
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.training.jobset.launcher import JobSetLauncher
from phasewise.tasks.training.protocol import Life

PATIENCE_SECONDS = 240.0


class Watched(JobSetLauncher):
    """One whose attempts a test can get at."""

    attempt: Any = None

    def start(self, life: Life) -> Any:
        """See `JobSetLauncher`."""
        self.attempt = super().start(life)
        return self.attempt


class Dying:
    """The life of such a launcher, in a thread of its own."""

    def __init__(self, kept: Kept) -> None:
        self._kept, self._dead = kept, threading.Event()

    def die(self) -> None:
        """Called by the launcher itself, which so stands still."""
        self._dead.set()
        threading.Event().wait()

    def live(self, work: Callable[[], object], launcher: Watched) -> None:
        """Have it at work with the home on a store, until it dies."""

        def run() -> None:
            with keeping(self._kept):
                work()

        threading.Thread(target=run, daemon=True).start()
        assert self._dead.wait(PATIENCE_SECONDS), "it did not come so far"
        publisher = keepers._at_work.pop(self._kept)  # pyright: ignore[reportPrivateUsage]
        for one in (publisher, launcher.attempt):
            one._ended.set()  # pyright: ignore[reportPrivateUsage]
            one._thread.join()  # pyright: ignore[reportPrivateUsage]
        of_jobset: Any = launcher.attempt._attempt
        of_jobset._watched.close()
        for log in of_jobset._logs._pods.values():
            log._left.set()
