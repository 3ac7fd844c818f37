"""Locks between threads, processes and machines: one holder of a name at a time.

`holding` locks a file on this machine that names the holder. `held` also takes a lease on an object store.

A lock saves double work and guards no data: each result under a lock is named by its content and written atomically. Two holders at a
time, which a lease on an object store can't exclude, cost double work and cause no damage.
"""

import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import as_path, file_system_of, is_locked, locked, try_lock
from phasewise.trainer.process.child_process import positive_seconds

LEASE_VARIABLE = "PHASEWISE_LEASE_SECONDS"
LEASE_SECONDS = 30.0
BEATS_PER_LEASE = 4
POLL_SECONDS = 0.25
SECONDS, FREE = "lease_seconds", "free"
AT_WORK = "another run is at work in {}: wait for it, or choose another home with --home."
GONE_OR_CHANGED = (FileNotFoundError, FileExistsError)
"""gcsfs raises these if an object is missing, or has another version than the request names."""

PROCESS = uuid.uuid4().hex
"""The name of this process in its locks. Process numbers repeat between containers and over time."""

_held_here: set[str] = set()  # the locks of `holding` in this process. A flow opens other flows in its own process.

StillHeld = Callable[[], bool]
"""Return whether the lock is still held: on an object store another process may take the lock of a holder without heartbeat."""


class Holder(Frozen):
    """A process that holds a lock: its work (`phasewise run marin-8b`), and its address if it is a server.

    `queues`: the stage files of a run's phases, relative to the home. The phases are queued before the first stage is written.
    """

    what: str
    pid: int
    since: str
    url: str | None = None
    process: str = ""
    queues: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.what} (process {self.pid}, since {self.since})"


class AlreadyHeld(ConfigError):
    """Another process holds the lock."""

    def __init__(self, place: Path, holder: Holder) -> None:
        super().__init__(f"{holder} is at work in {place.parent}: wait for it, stop it, or choose another home with --home.")
        self.holder = holder


@contextmanager
def holding(
    place: Path, what: str, *, url: str | None = None, queues: tuple[str, ...] = (), on_wait: Callable[[Holder], None] | None = None
) -> Iterator[None]:
    """Hold the lock at `place`, unless this process holds it already. `what`, `url` and `queues` describe it to others, as in `Holder`.

    `on_wait` is called once per other holder before waiting. Without `on_wait` a held lock raises `AlreadyHeld`. A lock on a store has no
    description, and a held one raises `ConfigError`.
    """
    is_local = file_system_of(place) is None
    place = place.resolve() if is_local else place
    if str(place) in _held_here:
        yield
        return
    with ExitStack() as stack:
        if is_local:
            place.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(place, "a+"))
            reported: Holder | None = None
            while not try_lock(file):
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
            json.dump(Holder(what=what, pid=os.getpid(), since=since, url=url, process=PROCESS, queues=queues).model_dump(), file)
            file.flush()
        else:
            stack.enter_context(held(place, wait=False))
        _held_here.add(str(place))
        try:
            yield
        finally:
            _held_here.remove(str(place))


def holder_of(place: Path) -> Holder | None:
    """Return the process that holds the lock, which may be this process, or None if the lock is free."""
    if not is_locked(place):
        return None
    with open(place) as file:
        return _read(file)


def lease_holder(place: Path) -> str | None:
    """Return the `PROCESS` with the lease on a store, or None if the lease is free or expired by the store's clock."""
    lease = _Lease.at(place)
    found = lease.version() if lease else None
    if lease is None or found is None or found.is_free:
        return None
    with suppress(FileNotFoundError):
        headers, content = lease.call("GET")
        age = parsedate_to_datetime(headers["Date"]) - datetime.fromisoformat(json.loads(content)["updated"])
        if age.total_seconds() <= max(found.seconds, _lease_seconds()):
            return json.loads(lease.file_system.cat_file(f"{lease.bucket}/{lease.name}")).get("process", "")
    return None


def _read(file: IO[str]) -> Holder:
    file.seek(0)
    try:
        return Holder.model_validate(json.load(file))
    except ValueError:  # the process has the lock and has not written its name yet
        return Holder(what="another process", pid=0, since="a moment ago")


@contextmanager
def held(place: Path, *, wait: bool = True) -> Iterator[StillHeld]:
    """Hold the lock at `place`.

    A local lock ends with its process. On an object store the lock is a lease: a thread of the holder changes the object four times per
    lease time. A waiting process takes the lease if the object didn't change for the lease time by the waiting process's clock. The lease
    time is `PHASEWISE_LEASE_SECONDS`, default 30. The lease names its holder's lease time, and the longer of the two counts.

    Without `wait` a ConfigError refuses the lock as soon as its holder is known to live: if local at once, on a store at the next change.
    """
    with held_all([place], wait=wait) as still_held:
        yield still_held


@contextmanager
def held_all(places: Collection[Path], *, wait: bool = True) -> Iterator[StillHeld]:
    """Hold all locks, in the order of names, as no two processes may wait for each other. Leases of dead holders expire together."""
    leases = [(place, _Lease.at(place)) for place in sorted(set(places), key=str)]
    seen = [(lease.version() if lease else None, time.monotonic()) for _, lease in leases]
    with ExitStack() as stack:
        for (place, lease), (version, since) in zip(leases, seen, strict=True):
            if lease is not None:
                lease.take(version, since, wait=wait)
                stack.enter_context(lease.renewed())
            elif not stack.enter_context(locked(as_path(place), wait=wait)):
                raise ConfigError(AT_WORK.format(place.parent))
        held = [lease for _, lease in leases if lease is not None]
        yield lambda: all(not one.lost.is_set() and time.monotonic() - one.beaten < _lease_seconds() for one in held)


class _Version(NamedTuple):
    """One version of a lease object. The store counts a generation per holder and a metageneration per heartbeat."""

    generation: str
    metageneration: str
    seconds: float  # the lease time of the holder, or 0 if unknown
    is_free: bool  # the holder returned the lease and could not delete it


@dataclass
class _Lease:
    """A lease object on Google Cloud Storage. Each request names the version that it changes, and the store rejects any other version."""

    place: Path
    file_system: Any
    bucket: str
    name: str
    generation: str = ""  # the generation of this process's lease
    beaten: float = 0.0  # when the last heartbeat was sent, by this machine's clock
    ended: threading.Event = field(default_factory=threading.Event)
    lost: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def at(cls, place: Path) -> "_Lease | None":
        store = file_system_of(place)
        if store is None:
            return None
        file_system, name = store
        if "gs" not in file_system.protocol:
            raise ConfigError(f"{place}: locks are known for folders on this machine and for gs:// only. Choose another home.")
        bucket, _, name = name.partition("/")
        return cls(place, file_system, bucket, name)

    def version(self) -> _Version | None:
        """Return the current version, or None if there is no lease."""
        try:
            _, content = self.call("GET")
        except FileNotFoundError:
            return None
        found = json.loads(content)
        metadata = found.get("metadata") or {}
        try:
            seconds = float(metadata[SECONDS])
        except (ValueError, TypeError, KeyError):
            seconds = 0.0
        if not 0 < seconds < math.inf:
            seconds = 0.0
        return _Version(found["generation"], found["metageneration"], seconds, metadata.get(FREE) == FREE)

    def take(self, seen: _Version | None, since: float, *, wait: bool) -> None:
        """Take the lease as soon as there is none, or the existing lease is free or expired."""
        lease_seconds = _lease_seconds()  # an invalid value must not be found later, in the thread of the heartbeats
        while True:
            found, now = self.version(), time.monotonic()
            if found is None:
                self.generation = self.create() or ""
            elif found != seen and not found.is_free:
                if seen is not None and not wait:
                    raise ConfigError(AT_WORK.format(self.place.parent))
                seen, since = found, now
            elif found.is_free or now - since >= max(lease_seconds, found.seconds):
                versions = {"ifGenerationMatch": found.generation, "ifMetagenerationMatch": found.metageneration}
                try:
                    self.call("DELETE", **versions)
                except GONE_OR_CHANGED:
                    pass
                except Exception:  # the store forbids deletion: take over the existing object, unless another process is faster
                    with suppress(*GONE_OR_CHANGED):
                        self.call("PATCH", **versions, json={"metadata": {"beat": uuid.uuid4().hex, **_metadata()}})
                        self.generation = found.generation
            else:
                time.sleep(POLL_SECONDS)
            if self.generation:
                self.beaten = now
                return

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Send heartbeats within the context. At its end delete the lease, or mark it as free if the store forbids deletion."""
        thread = threading.Thread(target=self._send_heartbeats, name=f"lease of {self.place}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.ended.set()
            thread.join()
            with suppress(Exception):  # if the store doesn't answer, the lease expires
                try:
                    self.call("DELETE", ifGenerationMatch=self.generation)
                except GONE_OR_CHANGED:
                    pass
                except Exception:
                    self.call("PATCH", ifGenerationMatch=self.generation, json={"metadata": _metadata(FREE)})

    def create(self) -> str | None:
        """Create the lease and return its generation, or None if there is one already."""
        content = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "token": uuid.uuid4().hex, "process": PROCESS}).encode()
        path = f"{self.bucket}/{self.name}"
        try:
            return self.file_system.pipe_file(path, content, mode="create", metadata=_metadata())["generation"]
        except FileExistsError:
            pass
        try:  # if the answer was lost and gcsfs repeated the request, the existing object is this process's own
            version = self.version()
            found = self.file_system.cat_file(path)
        except FileNotFoundError:
            return None
        return version.generation if version and found == content else None

    def _send_heartbeats(self) -> None:
        number = 0
        while not self.ended.wait(_lease_seconds() / BEATS_PER_LEASE):
            number += 1
            now = time.monotonic()
            try:
                self.call("PATCH", ifGenerationMatch=self.generation, json={"metadata": {"beat": str(number), **_metadata()}})
                self.beaten = now
            except GONE_OR_CHANGED:
                self.lost.set()
                return
            except Exception:  # a network fault: `beaten` shows one that lasts
                continue

    def call(self, method: str, **options: Any) -> Any:
        return self.file_system.call(method, "b/{}/o/{}", self.bucket, self.name, **options)


def _metadata(free: str = "no") -> dict[str, str]:
    return {SECONDS: f"{_lease_seconds():g}", FREE: free}


def _lease_seconds() -> float:
    return positive_seconds(os.environ, LEASE_VARIABLE, LEASE_SECONDS)
