"""One holder at a time for a name, between threads, processes and machines.

A lock saves work, it guards nothing: all that is done under one is named by its content and written at once or not at all, so two holders
at a time – which no lease on an object store can rule out – cost double work and never damage.
"""

import contextlib
import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import as_path, file_system_of, locked

LEASE_VARIABLE = "PHASEWISE_LEASE_SECONDS"
LEASE_SECONDS = 30.0
BEATS_PER_LEASE = 4
POLL_SECONDS = 0.25
SECONDS, FREE = "lease_seconds", "free"

_held_by_this_process: set[str] = set()
"""Places that `held_once` holds. A flow opens other flows in its own process."""

StillHeld = Callable[[], bool]
"""Whether the lock is held by the one who took it: on an object store another may take it from a holder that showed no sign of life."""


@contextmanager
def held(place: Path, *, wait: bool = True) -> Iterator[StillHeld]:
    """Hold the lock that this file is.

    On this machine the lock goes with the process, however it ends. On an object store the file is a lease: its holder changes it every
    quarter of the lease time, from a thread. A process that waits looks at it four times a second, and takes it when it has not
    changed for the lease time by the waiting process's clock. The lease time is 30 seconds, or what `PHASEWISE_LEASE_SECONDS` says. The
    lease says its holder's: where that is longer, it is waited for.

    Without `wait` the lock is refused as soon as its holder is known to live: at once on this machine, at the next change on a store.

    Raises:
        ConfigError: another holds it, and `wait` is false.
    """
    with _held(place, wait, _sight(place)) as still_held:
        yield still_held


@contextmanager
def held_once(place: Path) -> Iterator[None]:
    """Hold the lock that this file on a store is, unless this process holds it already.

    Raises:
        ConfigError: another process holds it.
    """
    name = str(place)
    if name in _held_by_this_process:
        yield
        return
    with held(place, wait=False):
        _held_by_this_process.add(name)
        try:
            yield
        finally:
            _held_by_this_process.remove(name)


@contextmanager
def held_all(places: Collection[Path], *, wait: bool = True) -> Iterator[StillHeld]:
    """Hold all the locks, taken in the order of their names: two who want the same locks never wait for each other.

    All are looked at first: what dead holders have left on a store runs out at the same time.
    """
    in_order = sorted(set(places), key=str)
    sightings = [_sight(place) for place in in_order]
    with ExitStack() as stack:
        checks = [stack.enter_context(_held(place, wait, sighting)) for place, sighting in zip(in_order, sightings, strict=True)]
        yield lambda: all(check() for check in checks)


@contextmanager
def _held(place: Path, wait: bool, sighting: "_Sighting") -> Iterator[StillHeld]:
    store = file_system_of(place)
    with _held_here(as_path(place), wait) if store is None else _held_on_store(place, store, wait, sighting) as still_held:
        yield still_held


@contextmanager
def _held_here(place: Path, wait: bool) -> Iterator[StillHeld]:
    with locked(place, wait=wait) as is_held:
        if not is_held:
            raise _refusal(place)
        yield lambda: True


@contextmanager
def _held_on_store(place: Path, store: tuple[Any, str], wait: bool, sighting: "_Sighting") -> Iterator[StillHeld]:
    lease = _take(place, _lease_object(place, store), wait, sighting)
    keeper = threading.Thread(target=lease.keep, name=f"lease of {place}", daemon=True)
    keeper.start()
    try:
        yield lease.is_held
    finally:
        lease.ended.set()
        keeper.join()
        lease.release()


def _lease_object(place: Path, store: tuple[Any, str]) -> "_LeaseObject":
    file_system, name = store
    if "gs" not in file_system.protocol:
        raise ConfigError(f"{place}: locks are known for folders on this machine and for gs:// only. Choose another home.")
    return _LeaseObject(file_system, *name.split("/", 1))


class _Version(NamedTuple):
    """What the store counts: a generation is one holder's lease, a change of its metadata is a sign of life.

    `seconds` is its holder's lease time; 0 where it does not say. `is_free` is that its holder gave it back and could not delete it.
    """

    generation: str
    metageneration: str
    seconds: float
    is_free: bool = False


class _Sighting(NamedTuple):
    """Which version of a lease was seen first, and when by this machine's clock; None where there was none, or no store."""

    version: _Version | None
    at: float


def _sight(place: Path) -> _Sighting:
    store = file_system_of(place)
    return _Sighting(None if store is None else _lease_object(place, store).version(), time.monotonic())


@dataclass(frozen=True)
class _LeaseObject:
    """The object on the store, through gcsfs: every request names the version that it is about, and the store refuses it for another."""

    file_system: Any
    bucket: str
    name: str

    def create(self) -> str | None:
        """Its generation, or None where there is one already."""
        content = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "token": uuid.uuid4().hex}).encode()
        path = f"{self.bucket}/{self.name}"
        try:
            return self.file_system.pipe_file(path, content, mode="create", metadata=_said())["generation"]
        except FileExistsError:
            pass
        try:  # where the answer to our request was lost and gcsfs asked again, it is ours
            version = self.version()
            found = self.file_system.cat_file(path)
        except FileNotFoundError:
            return None
        return version.generation if version and found == content else None

    def version(self) -> _Version | None:
        """The version now; None where there is no lease."""
        try:
            _, content = self._call("GET")
        except FileNotFoundError:
            return None
        found = json.loads(content)
        said = found.get("metadata") or {}
        return _Version(found["generation"], found["metageneration"], _seconds_said(said), said.get(FREE) == FREE)

    def beat(self, generation: str, number: int) -> None:
        """Change the metadata of the holder's own lease."""
        self._call("PATCH", ifGenerationMatch=generation, json={"metadata": {"beat": str(number), **_said()}})

    def give_back(self, generation: str) -> None:
        """Delete the holder's own lease; where the store forbids that, write into its metadata that it is free."""
        try:
            self.delete(generation)
        except Exception:  # whatever the store says
            self._call("PATCH", ifGenerationMatch=generation, json={"metadata": {**_said(), FREE: FREE}})

    def claim(self, found: _Version) -> str | None:
        """Its generation, where this process is the one that took a lease which has ended and cannot be deleted."""
        conditions = {"ifGenerationMatch": found.generation, "ifMetagenerationMatch": found.metageneration}
        try:
            self._call("PATCH", **conditions, json={"metadata": {"beat": uuid.uuid4().hex, **_said()}})
        except (FileNotFoundError, FileExistsError):
            return None
        return found.generation

    def delete(self, generation: str, metageneration: str | None = None) -> None:
        """Remove it, if it is this one."""
        conditions = {} if metageneration is None else {"ifMetagenerationMatch": metageneration}
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # gcsfs's words for gone, and for another version
            self._call("DELETE", ifGenerationMatch=generation, **conditions)

    def _call(self, method: str, **options: Any) -> Any:
        return self.file_system.call(method, "b/{}/o/{}", self.bucket, self.name, **options)


@dataclass
class _Lease:
    """A lease that was taken: kept by a thread until it ends or another takes it."""

    object: _LeaseObject
    generation: str
    beaten: float
    """When the last sign of life was sent, by this machine's clock."""
    ended: threading.Event = field(default_factory=threading.Event)
    taken: threading.Event = field(default_factory=threading.Event)

    def keep(self) -> None:
        """Show signs of life until the lease ends; a store that does not answer is asked again at the next one."""
        number = 0
        while not self.ended.wait(_lease_seconds() / BEATS_PER_LEASE):
            number += 1
            now = time.monotonic()
            try:
                self.object.beat(self.generation, number)
                self.beaten = now
            except (FileNotFoundError, FileExistsError):
                return self.taken.set()
            except Exception:  # whatever the network did: `is_held` tells when it lasts
                continue
        return None

    def is_held(self) -> bool:
        """Whether nobody can have taken it."""
        return not self.taken.is_set() and time.monotonic() - self.beaten < _lease_seconds()

    def release(self) -> None:
        """Let the next one in; if the store does not answer, he comes in when the lease has run out."""
        with contextlib.suppress(Exception):
            self.object.give_back(self.generation)


def _take(place: Path, lease: _LeaseObject, wait: bool, sighting: _Sighting) -> _Lease:
    """Create the lease as soon as there is none or the one that is there has run out."""
    lease_seconds = _lease_seconds()  # before anything is taken: what it refuses must not come up in the keeper's thread
    seen, since = sighting
    while True:
        found = lease.version()
        now = time.monotonic()
        if found is None:
            if (generation := lease.create()) is not None:
                return _Lease(lease, generation, now)
        elif found != seen and not found.is_free:
            if seen is not None and not wait:
                raise _refusal(place)
            seen, since = found, now
        elif found.is_free or now - since >= max(lease_seconds, found.seconds):
            try:
                lease.delete(found.generation, found.metageneration)
            except Exception:  # a store that forbids it: the lease is taken as it lies there
                if (generation := lease.claim(found)) is not None:
                    return _Lease(lease, generation, now)
        else:
            time.sleep(POLL_SECONDS)


def _lease_seconds() -> float:
    """The lease time.

    Raises:
        ConfigError: the variable is no number above 0.
    """
    value = os.environ.get(LEASE_VARIABLE) or str(LEASE_SECONDS)
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(value)) < math.inf:
            return seconds
    raise ConfigError(f"{LEASE_VARIABLE} must be a number of seconds above 0, found '{value}'. Correct it, or leave it unset.")


def _said() -> dict[str, str]:
    """What a lease says of its holder: how long he may show no sign of life, and that it is not free."""
    return {SECONDS: f"{_lease_seconds():g}", FREE: "no"}


def _seconds_said(metadata: Any) -> float:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        seconds = float(metadata[SECONDS])
        return seconds if 0 < seconds < math.inf else 0.0
    return 0.0


def _refusal(place: Path) -> ConfigError:
    return ConfigError(f"another run is at work in {place.parent}: wait for it, or choose another home with --home.")
