"""A lock that goes with the process, however it ends: `flock` on an open file.

The package filelock empties the file that it locks. Ours says who holds it.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def try_lock(file: IO[str]) -> bool:
    """Lock an open file until it is closed; False where another holds it. A file opened twice has two locks, in one process as well."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(place: Path, *, wait: bool) -> Iterator[bool]:
    """Lock the file, which is made with its folder; yields False, without `wait`, where another holds it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "a") as file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield wait or try_lock(file)
