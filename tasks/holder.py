"""The owner of a lock on this machine: a locked file that names the process which holds the lock.

The lock ends with its process. The content of the file is valid only while the file is locked.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import try_lock

POLL_SECONDS = 0.25
PATIENCE_SECONDS = 0.5
"""`holder_of` locks a file for a moment, which is not a conflict."""

_held_here: dict[Path, int] = {}
"""Lock → how often this process has entered it. A flow opens other flows in its own process."""


class Holder(Frozen):
    """A process that holds a lock.

    Attributes:
        what: its work, for people: `phasewise run marin-8b`.
        url: its address, if it is a server.
    """

    what: str
    pid: int
    since: str
    url: str | None = None

    def __str__(self) -> str:
        return f"{self.what} (process {self.pid}, since {self.since})"


class AlreadyHeld(ConfigError):
    """Another process holds the lock."""

    def __init__(self, place: Path, holder: Holder) -> None:
        super().__init__(f"{holder} is at work in {place.parent}: wait for it, stop it, or choose another home with --home.")
        self.holder = holder


@contextmanager
def holding(place: Path, what: str, *, url: str | None = None, on_wait: Callable[[Holder], None] | None = None) -> Iterator[None]:
    """Hold the lock at `place`, unless this process holds the lock already.

    Args:
        what: the work of this process, for other processes.
        url: the address of this process.
        on_wait: called once per holder before waiting. By default the call does not wait.

    Raises:
        AlreadyHeld: another process holds the lock, and `on_wait` is None.
    """
    place = place.resolve()
    if place in _held_here:
        _held_here[place] += 1
        try:
            yield
        finally:
            _held_here[place] -= 1
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "a+") as file:
        reported: Holder | None = None
        started = time.monotonic()
        while not try_lock(file):
            if time.monotonic() - started < PATIENCE_SECONDS:
                time.sleep(PATIENCE_SECONDS / 10)
                continue
            holder = _read(file)
            if on_wait is None:
                raise AlreadyHeld(place, holder)
            if holder != reported:
                on_wait(holder)
                reported = holder
            time.sleep(POLL_SECONDS)
        since = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        file.seek(0)
        file.truncate()
        json.dump(Holder(what=what, pid=os.getpid(), since=since, url=url).model_dump(), file)
        file.flush()
        _held_here[place] = 1
        try:
            yield
        finally:
            del _held_here[place]


def holder_of(place: Path) -> Holder | None:
    """Return the process that holds the lock, which may be this process, or None if the lock is free."""
    try:
        with open(place) as file:
            if place.resolve() not in _held_here and try_lock(file):
                return None
            return _read(file)
    except FileNotFoundError:
        return None


def _read(file: IO[str]) -> Holder:
    file.seek(0)
    try:
        return Holder.model_validate(json.load(file))
    except ValueError:  # the process has the lock and has not written its name yet
        return Holder(what="another process", pid=0, since="a moment ago")
