"""Digests of files: the content of a file is read once, and again only after a change.

A local file is identified by its size, `mtime`, `ctime`, inode and device. No program can set `ctime`: each write moves it, also a reset of
`mtime`. A store's file is identified by its generation or strong ETag, unless the store reports a content digest. A second path to a file
is read separately.

Clocks have ticks, so two writes within a tick may have the same time. A file that changed just now is read after the tick, and a digest
that was read too early, or during a change, is not kept for later commands.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import read_sealed, size_and_digest, write_sealed
from phasewise.trainer.base.storage import StoreEntry, as_path, file_system_of, store_entry

VERSION = 2
TICK_NS = 50_000_000  # more than the tick of any file system clock, which is 1 to 10 ms
COARSE_TICK_NS = 2_500_000_000  # the same for file systems with times in seconds
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


class Content(NamedTuple):
    """The size and the digest of a file. The digest includes the name of its algorithm."""

    size_bytes: int
    digest: str


class Known(NamedTuple):
    """A content, the file's signature at the time of reading, and whether later changes would change the signature."""

    signature: list[int] | list[str]
    content: Content
    is_settled: bool


class KnownDigests:
    """The digests known to a command, safe for threads. `home` keeps the digests. `reads_all` ignores digests of earlier commands."""

    def __init__(self, home: Home | None = None, *, reads_all: bool = False, clock: Callable[[], int] = time.time_ns) -> None:
        self.home, self.reads_all, self.bytes_read = home, reads_all, 0
        self._clock = clock
        self._known = {} if reads_all or home is None else _read_kept(home.digests)
        self._lock = Lock()
        self._one_at_a_time = defaultdict[str, Lock](Lock)
        self._to_keep: dict[str, Known] = {}

    def content(self, url: str | Path, entry: StoreEntry | None = None) -> Content:
        """The content of a file. Files of the home have SHA-256 on every store. `entry`: metadata of a new listing, None requests it."""
        entry = entry or store_entry(url)
        if (
            entry is not None
            and entry.digest
            and entry.size_bytes is not None
            and not (self.home is not None and as_path(url).is_relative_to(self.home.root))
        ):
            return Content(entry.size_bytes, entry.digest)
        with self._lock:
            lock = self._one_at_a_time[str(url)]
        with lock:
            before = self._known.get(str(url))
            if entry is None:
                known = self._read_local(str(url))
            elif before is not None and entry.signature and before.signature == [*entry.signature]:
                known = before
            else:
                with as_path(url).open("rb") as file:
                    size, digest = size_and_digest(file)
                after = store_entry(url)
                is_settled = bool(entry.signature) and after is not None and [*after.signature] == [*entry.signature]
                known = Known([*entry.signature], Content(size, f"sha256:{digest}"), is_settled)
            with self._lock:
                if known is not before:
                    self.bytes_read += known.content.size_bytes
                    self._known[str(url)] = known
                    if known.is_settled:
                        self._to_keep[str(url)] = known
            return known.content

    def sha256(self, path: Path) -> str:
        """SHA-256 of a local file or a file of the home, in hexadecimal. Raises OSError if the file is unreadable."""
        return self.content(path).digest.removeprefix("sha256:")

    def changed(self, folder: Path, files: Mapping[str, str], seal: Path) -> list[str]:
        """The names of missing files and of files with other digests.

        The sealed list `files` (name → SHA-256, in the file `seal`) is written last, so only a file with a later time is read. On a store,
        whose objects are replaced as a whole, files are read only with `reads_all`.
        """
        if file_system_of(folder) is not None and not self.reads_all:
            return []
        written_ns = _changed_ns(seal)
        found: list[str] = []
        for name, digest in files.items():
            path = folder / name
            try:
                is_unchanged = (not self.reads_all and _changed_ns(path) <= written_ns) or self.sha256(path) == digest
            except FileNotFoundError:
                is_unchanged = False
            if not is_unchanged:
                found.append(name)
        return found

    def forget_unsettled(self) -> None:
        """Forget digests of files with possible changes under an equal signature."""
        with self._lock:
            self._known = {url: known for url, known in self._known.items() if known.is_settled}

    def keep(self) -> None:
        """Write the new digests to a writable home and preserve the digests of parallel commands."""
        with self._lock:
            to_keep, self._to_keep = self._to_keep, {}
        if self.home is None or self.home.reads_only or not to_keep:
            return
        with suppress(OSError):  # a home of another user: each command reads again
            known = {**_read_kept(self.home.digests), **to_keep}
            files = {url: [one.signature, one.content.size_bytes, one.content.digest] for url, one in sorted(known.items())}
            write_sealed(self.home.digests, {"version": VERSION, "files": files})

    def _read_local(self, url: str) -> Known:
        with open(as_path(url), "rb", buffering=0) as file:  # on a network file system only opening updates the times

            def signature() -> list[int]:
                status = os.fstat(file.fileno())
                return [status.st_size, status.st_dev, status.st_ino, status.st_ctime_ns, status.st_mtime_ns]

            before = signature()
            if (known := self._known.get(url)) and known.signature == before:
                return known
            if 0 <= (age := self._clock() - before[3]) < TICK_NS:
                time.sleep((TICK_NS - age) / 1e9)
                before = signature()
            is_settled = self._clock() - before[3] >= (TICK_NS if before[3] % 10**9 else COARSE_TICK_NS)
            size, digest = size_and_digest(file)
            return Known(before, Content(size, f"sha256:{digest}"), is_settled and signature() == before)


def _changed_ns(path: Path) -> int:
    if file_system_of(path) is not None:
        return 0
    status = path.stat()
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _read_kept(path: Path) -> dict[str, Known]:
    try:
        kept = read_sealed(path)
        if kept.get("version") != VERSION:
            return {}
        return {
            url: Known(signature, Content(int(size), digest), True)
            for url, (signature, size, digest) in kept["files"].items()
            if SHA256.fullmatch(digest)
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
