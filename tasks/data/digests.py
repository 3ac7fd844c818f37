"""What is known about the content of files: a file is read for its digest once, and again only when something of it has changed.

A file of this machine is known by its size, its times of change (`mtime` and `ctime`), its inode and its device. `ctime` is the one that
nobody can set: it moves with each write, and also when `mtime` is set back. A file of a store that gives no digest of the content is known
by what the store does give: a generation, or a strong ETag. Another path to the same file, or a copy of it, is read once more.

A clock has ticks: what is written twice within one tick may have the same time. So a file that was changed just now is read when that tick
is over, and what is read too soon after a change, or while it changes, is not kept for later commands.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import read_sealed, size_and_digest, write_sealed
from phasewise.trainer.base.storage import StoreEntry, as_path, file_system_of, store_entry

VERSION = 2
TICK_NS = 50_000_000
"""Longer than a tick of any clock that file times come from: these have 1 to 10 ms."""
COARSE_TICK_NS = 2_500_000_000
"""The same where a time is a whole second: such file systems count in seconds, or in two."""
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
Signature = list[int] | list[str]


class Content(NamedTuple):
    """A file's size in bytes, and the digest of its content with the name of its kind."""

    size_bytes: int
    digest: str


class Known(NamedTuple):
    """A content, how the file looked when it was read, and whether any later change of it would look otherwise."""

    signature: Signature
    content: Content
    is_settled: bool


class KnownDigests:
    """The contents that one command knows. Threads may ask at the same time.

    Attributes:
        home: where they are kept for later commands; None keeps them nowhere.
        reads_all: nothing that earlier commands kept is believed. What is read is kept as always.
        bytes_read: of all files together, to make their digests.
    """

    def __init__(self, home: Home | None = None, *, reads_all: bool = False, clock: Callable[[], int] = time.time_ns) -> None:
        self.home, self.reads_all, self.bytes_read = home, reads_all, 0
        self._clock = clock
        self._known = {} if reads_all or home is None else _read(home.digests)
        self._lock = Lock()
        self._one_at_a_time = defaultdict[str, Lock](Lock)
        self._to_keep: dict[str, Known] = {}

    def content(self, url: str | Path, entry: StoreEntry | None = None) -> Content:
        """The content of a file, read only where it is not known, and where no store vouches for it.

        A file of the home itself has its SHA-256 on every store, so that it has the same digest wherever the home is.

        Args:
            entry: what its store said of it in a listing just now; without it the store is asked.

        Raises:
            OSError: it cannot be read.
        """
        entry = entry or store_entry(url)
        if entry is not None and entry.digest and entry.size_bytes is not None and not self._is_of_home(url):
            return Content(entry.size_bytes, entry.digest)
        with self._one(str(url)):
            if entry is None:
                with open(as_path(url), "rb", buffering=0) as file:
                    return self._content_of_open(str(url), file)
            return self._content_on_store(str(url), [*entry.signature])

    def sha256(self, path: Path) -> str:
        """SHA-256 of a file of this machine or of the home, in hexadecimal, read only where it is not known.

        Raises:
            OSError: it cannot be read.
        """
        return self.content(path).digest.removeprefix("sha256:")

    def changed(self, folder: Path, files: Mapping[str, str], seal: Path) -> list[str]:
        """Names of the files that are missing or do not have their digests: what looks changed is read, and nothing else.

        A sealed list is written last. So a file of its folder with a later time of change was written to since, or is a copy. Who sets
        `mtime` back is noticed by `ctime`. On a store an object can only be replaced, and the sizes of token shards are compared when
        their cache is opened: nothing is looked at here unless everything is read.

        Args:
            files: name → SHA-256, as a sealed list has them.
            seal: the file with that list.
        """
        if file_system_of(folder) is not None and not self.reads_all:
            return []
        written_ns = _changed_ns(seal)
        return [name for name, digest in files.items() if not self._is_as_written(folder / name, digest, written_ns)]

    def has_changed(self, path: Path, seal: Path) -> bool:
        """Whether a file is missing, or may have been written to after another one was: by its times. On a store only if all is read."""
        if file_system_of(path) is not None:
            return self.reads_all
        return self.reads_all or not path.exists() or _changed_ns(path) > _changed_ns(seal)

    def _is_as_written(self, path: Path, digest: str, written_ns: int) -> bool:
        try:
            return (not self.reads_all and _changed_ns(path) <= written_ns) or self.sha256(path) == digest
        except FileNotFoundError:
            return False

    def forget_unsettled(self) -> None:
        """Read again, when it is next asked for, what may have changed since without looking so."""
        with self._lock:
            self._known = {url: known for url, known in self._known.items() if known.is_settled}

    def keep(self) -> None:
        """Keep what was read here for later commands, beside what others have kept meanwhile.

        A home that was opened to be read only keeps nothing, nor does one that takes nothing.
        """
        with self._lock:
            to_keep, self._to_keep = self._to_keep, {}
        if self.home is None or self.home.reads_only or not to_keep:
            return
        with suppress(OSError):  # a home of somebody else: each command reads again
            known = {**_read(self.home.digests), **to_keep}
            files = {url: [one.signature, one.content.size_bytes, one.content.digest] for url, one in sorted(known.items())}
            write_sealed(self.home.digests, {"version": VERSION, "files": files})

    def _is_of_home(self, url: str | Path) -> bool:
        return self.home is not None and as_path(url).is_relative_to(self.home.root)

    def _one(self, url: str) -> Lock:
        with self._lock:
            return self._one_at_a_time[url]

    def _content_of_open(self, url: str, file: Any) -> Content:
        """A file of this machine. It is opened even where it is known, because over a network only that asks for its present times."""
        signature = _signature(os.fstat(file.fileno()))
        if (known := self._known.get(url)) and known.signature == signature:
            return known.content
        if 0 <= (age := self._clock() - signature[3]) < TICK_NS:
            time.sleep((TICK_NS - age) / 1e9)
            signature = _signature(os.fstat(file.fileno()))
        is_settled = self._clock() - signature[3] >= (TICK_NS if signature[3] % 10**9 else COARSE_TICK_NS)
        content = self._read(file)
        return self._learn(url, Known(signature, content, is_settled and _signature(os.fstat(file.fileno())) == signature))

    def _content_on_store(self, url: str, signature: list[str]) -> Content:
        if signature and (known := self._known.get(url)) and known.signature == signature:
            return known.content
        with as_path(url).open("rb") as file:
            content = self._read(file)
        after = store_entry(url)
        return self._learn(url, Known(signature, content, bool(signature) and after is not None and [*after.signature] == signature))

    def _read(self, file: BinaryIO) -> Content:
        size, digest = size_and_digest(file)
        with self._lock:
            self.bytes_read += size
        return Content(size, f"sha256:{digest}")

    def _learn(self, url: str, known: Known) -> Content:
        with self._lock:
            self._known[url] = known
            if known.is_settled:
                self._to_keep[url] = known
        return known.content


def _changed_ns(path: Path) -> int:
    if file_system_of(path) is not None:
        return 0
    status = path.stat()
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _signature(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_dev, status.st_ino, status.st_ctime_ns, status.st_mtime_ns]


def _read(place: Path) -> dict[str, Known]:
    try:
        kept = read_sealed(place)
        if kept.get("version") != VERSION:
            return {}
        return {
            url: Known(signature, Content(int(size), digest), True)
            for url, (signature, size, digest) in kept["files"].items()
            if SHA256.fullmatch(digest)
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
