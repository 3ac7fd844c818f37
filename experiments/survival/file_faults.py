"""Faults at numbered file operations: an error, a signal or the death of the process.

After a simulated death every file operation in Python raises `Killed`, also in `finally` blocks. C++ libraries continue to write.
"""

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

Action = Literal["nothing", "kill", "call", "full", "read only"]
CHANGING = ("replace", "rename", "unlink", "rmdir", "mkdir", "write", "fsync")
FULL = ("write", "fsync", "open", "mkdir")


class Killed(BaseException):
    """A simulated SIGKILL."""


class Faults:
    """The fault at the n-th operation that changes a file under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.disarm()

    def disarm(self) -> None:
        self._action: Action = "nothing"
        self._at = self._count = 0
        self._call: Callable[[], None] | None = None
        self.is_dead = self.has_struck = False

    def arm(self, action: Action, at: int, call: Callable[[], None] | None = None) -> None:
        """Set the fault for operation number `at`. A `call` happens once, the other actions repeat."""
        self.disarm()
        self._action, self._at, self._call = action, at, call

    def strike(self, operation: str, place: Any) -> None:
        """Called before each operation."""
        if self.is_dead:
            raise Killed
        if self._action == "nothing" or not (isinstance(place, int) or str(place).startswith(self.root)):
            return
        self._count += 1
        if self._count < self._at or (self._action == "call" and self.has_struck):
            return
        self.has_struck = True
        if self._action == "kill":
            self.is_dead = True
            raise Killed
        if self._action == "call" and self._call:
            self._call()
        elif self._action == "full" and operation in FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))
        elif self._action == "read only":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(place))


@contextmanager
def installed(faults: Faults) -> Iterator[None]:
    """Patch the file operations of this process with calls of `Faults.strike`."""
    before = {name: getattr(os, name) for name in CHANGING}
    opened, removed = builtins.open, shutil.rmtree

    def asking(name: str) -> Any:
        def ask(place: Any, *arguments: Any, **named: Any) -> Any:
            faults.strike(name, place)
            return before[name](place, *arguments, **named)

        return ask

    def open_asking(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if set(mode) & set("wax+") and not isinstance(file, int):
            faults.strike("open", file)
        return opened(file, mode, *arguments, **named)

    def remove_asking(place: Any, *arguments: Any, **named: Any) -> Any:
        faults.strike("unlink", place)
        return removed(place, *arguments, **named)

    for name in CHANGING:
        setattr(os, name, asking(name))
    builtins.open = io.open = open_asking
    shutil.rmtree = remove_asking
    try:
        yield
    finally:
        for name, operation in before.items():
            setattr(os, name, operation)
        builtins.open = io.open = opened
        shutil.rmtree = removed
