"""The work that this process keeps on a store."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phasewise.tasks.store.publisher import Kept, Publisher

_at_work: dict[Kept, Publisher] = {}


@contextmanager
def keeping(kept: Kept) -> Iterator[None]:
    """Bring here what is committed, and commit what is done within; within another of the same it changes nothing.

    Raises:
        TakenOver: another process went on with it; what was done here since is not committed.
        StorageError: the store did not take it, or lost something.
    """
    if kept in _at_work:
        yield
        return
    with Publisher(kept) as publisher:
        _at_work[kept] = publisher
        try:
            yield
        finally:
            del _at_work[kept]


def check_not_taken_over() -> None:
    """Go on only if all that this process keeps is still its own.

    Raises:
        TakenOver: it is not.
    """
    for publisher in list(_at_work.values()):
        publisher.check()


def keeper_of(folder: Path) -> Publisher | None:
    """What keeps the folder of a run on a store; None where it is in a home that is a folder."""
    return next((publisher for kept, publisher in _at_work.items() if folder.is_relative_to(kept.work)), None)
