"""Content that others send for us: hosts without our folder, each of which sends its share of a checkpoint."""

from collections.abc import Collection
from typing import Protocol


class Elsewhere(Protocol):
    """Who else sends content."""

    def sent(self) -> Collection[str]:
        """The digests of what is on the store by now, as far as is known here."""
        ...

    def needed(self) -> Collection[str]:
        """The digests of what they sent, are sending or are about to send: asked of the store, not remembered.

        Whoever is about to send something says so first. So what is seen on the store before this is asked, and is not in the answer,
        may be deleted in the version that was seen.
        """
        ...

    def ever_sent(self) -> Collection[str]:
        """All digests that were ever heard of: what no head needs in the end is deleted."""
        ...


class Nobody:
    """There is no one else."""

    def sent(self) -> Collection[str]:
        """See `Elsewhere`."""
        return ()

    needed = ever_sent = sent
