"""Which process is at work: a file that one process of this machine holds, and that says which, in words for people.

The lock goes with the process, however it ends. What the file says counts only while it is held.
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
"""A file that somebody only looks at (`holder_of`) is held for an instant."""

_held_here: dict[Path, int] = {}
"""Place → how often this process has entered it. A flow of ours opens other flows in its own process."""


class Holder(Frozen):
    """A process that holds a file.

    Attributes:
        what: what it does, for people: `phasewise run marin-8b`.
        url: its address, if it serves something.
    """

    what: str
    pid: int
    since: str
    url: str | None = None

    def __str__(self) -> str:
        return f"{self.what} (process {self.pid}, since {self.since})"


class AlreadyHeld(ConfigError):
    """Another process is at work."""

    def __init__(self, place: Path, holder: Holder) -> None:
        super().__init__(f"{holder} is at work in {place.parent}: wait for it, stop it, or choose another home with --home.")
        self.holder = holder


@contextmanager
def holding(place: Path, what: str, *, url: str | None = None, on_wait: Callable[[Holder], None] | None = None) -> Iterator[None]:
    """Hold the file. A process that holds it already goes on.

    Args:
        what: what this process does, for those who find it held.
        url: the address of this process.
        on_wait: called once for each holder that is waited for; None does not wait.

    Raises:
        AlreadyHeld: another process holds it, and `on_wait` is None.
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
        said: Holder | None = None
        started = time.monotonic()
        while not try_lock(file):
            if time.monotonic() - started < PATIENCE_SECONDS:
                time.sleep(PATIENCE_SECONDS / 10)
                continue
            holder = _read(file)
            if on_wait is None:
                raise AlreadyHeld(place, holder)
            if holder != said:
                on_wait(holder)
                said = holder
            time.sleep(POLL_SECONDS)
        _write(file, Holder(what=what, pid=os.getpid(), since=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S"), url=url))
        _held_here[place] = 1
        try:
            yield
        finally:
            del _held_here[place]


def holder_of(place: Path) -> Holder | None:
    """The process that holds the file now, this one included; None where nobody does."""
    try:
        with open(place) as file:
            if place.resolve() not in _held_here and try_lock(file):
                return None
            return _read(file)
    except FileNotFoundError:
        return None


def _write(file: IO[str], holder: Holder) -> None:
    file.seek(0)
    file.truncate()
    json.dump(holder.model_dump(), file)
    file.flush()


def _read(file: IO[str]) -> Holder:
    """What the holder says of itself; between its taking the lock and its writing it has said nothing yet."""
    file.seek(0)
    try:
        return Holder.model_validate(json.load(file))
    except ValueError:
        return Holder(what="another process", pid=0, since="a moment ago")
