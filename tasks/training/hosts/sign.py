"""A launcher's sign on the store, by which hosts know that somebody commits what they send.

    runs/RUN/launches/LAUNCH/launcher

Whoever is reached by ssh ends with its connection. The pods of a cluster outlive their launcher, and have nothing but the store in common
with it. The thread that gathers what hosts send replaces the object again and again. A host goes by that it changes, by the host's clock.
"""

import threading
import time
import uuid
from collections.abc import Callable

from phasewise.tasks.store.versioned import ABSENT, AnotherVersion, VersionedObject
from phasewise.tasks.training.hosts.post import Posts
from phasewise.trainer.base.errors import TakenOver

LOOKS_A_LIMIT = 8
MAX_LOOK_SECONDS = 15.0
LIMITS_WITHOUT_STORE = 12
"""So many times the limit a host goes on while the store does not answer: then nobody can know whether there is a launcher."""
Clock = Callable[[], float]


def look_seconds(limit_seconds: float) -> float:
    """How often the sign is given, and looked for."""
    return min(limit_seconds / LOOKS_A_LIMIT, MAX_LOOK_SECONDS)


class Sign:
    """The launcher's side.

    Args:
        limit_seconds: how long hosts go on without it.
    """

    def __init__(self, posts: Posts, limit_seconds: float, *, clock: Clock = time.monotonic) -> None:
        self._object, self._clock, self._every = VersionedObject.at(posts.sign), clock, look_seconds(limit_seconds)
        self._claim, self._number, self._generation = uuid.uuid4().hex, 0, ABSENT
        self._given: float | None = None

    def give(self) -> None:
        """If it is time.

        Raises:
            TakenOver: the launch is over.
        """
        now = self._clock()
        if self._given is not None and now - self._given < self._every:
            return
        self._number += 1
        content = f"{self._claim} {self._number}".encode()
        try:
            self._generation = self._object.replace(content, self._generation)
        except AnotherVersion:
            found = self._object.read()
            if found is None or not found.content.startswith(self._claim.encode()):
                raise TakenOver(f"{self._object.place} is another's, or gone: the launch is over.") from None
            self._generation = self._object.replace(content, found.generation)  # the answer to an earlier one was lost
        self._given = now


class Alone:
    """A host's side: whether it is without a launcher. Use it from one thread, or `start` one.

    Attributes:
        words: why this host must end; empty where it must not.
    """

    def __init__(self, posts: Posts, limit_seconds: float, *, clock: Clock = time.monotonic) -> None:
        self._object, self._limit, self._clock = VersionedObject.at(posts.sign), limit_seconds, clock
        self._known: str | None = None
        self._heard = self._answered = clock()
        self.words = ""
        self._thread = threading.Thread(target=self._run, name="looks for the launcher", daemon=True)

    def start(self) -> None:
        """Look from a thread, as long as this process lives."""
        self._thread.start()

    def look(self) -> str:
        """See `words`. A store that does not answer says nothing of a launcher: after that it has its whole time again."""
        try:
            found = self._object.read(self._known)
        except Exception:  # stores have error types of their own
            now = self._heard = self._clock()
            if now - self._answered > LIMITS_WITHOUT_STORE * self._limit:
                self.words = f"the store has not answered for {now - self._answered:.0f} s"
            return self.words
        now = self._answered = self._clock()
        if found is not None:
            self._known, self._heard = found.generation, now
        if now - self._heard > self._limit:
            self.words = (
                f"no launcher has given a sign at {self._object.place} for {now - self._heard:.0f} s (limit {self._limit:g} s): nobody "
                "commits what this host sends"
            )
        return self.words

    def _run(self) -> None:
        while not self.look():
            time.sleep(look_seconds(self._limit))
