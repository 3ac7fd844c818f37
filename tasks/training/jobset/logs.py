"""What pods say, read from the cluster and written line by line into the run's folder: pods of a home on a store see no folder of ours.

The API gives a container's log from its beginning, while it is written (`follow`) or as it is. It knows no place to go on from: its
`sinceSeconds` is by the node's clock. So a log that was cut is read again from its beginning, and the lines that are here are counted off.
A node keeps some megabytes of a log and then begins a new file (KEP-2411): there the log begins with another line than before, and the
times say which lines are here.
"""

import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from phasewise.tasks.progress import say
from phasewise.tasks.training.jobset.cluster import Cluster, Missing, NotStarted, Pod, Quiet, Unreachable
from phasewise.tasks.training.jobset.endings import host_of
from phasewise.tasks.training.jobset.manifest import CONTAINER
from phasewise.tasks.training.protocol import log_of
from phasewise.trainer.base.errors import ConfigError

RETRY_SECONDS = 1.0
REST_SECONDS = 60.0
"""How long the rest of the logs is waited for when all pods have ended."""
TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class Logs:
    """Those of one JobSet.

    Args:
        folder: the run's.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._pods: dict[str, PodLog] = {}

    def follow(self, pods: Iterable[Pod]) -> None:
        """From now on, those that are not followed yet."""
        for pod in pods:
            name = str(pod["metadata"]["name"])
            if name not in self._pods:
                self._pods[name] = PodLog(self._cluster, name, log_of(self._folder, host_of(pod)))

    def finish(self) -> None:
        """All pods have ended: return when all that they said is here, or cannot be read."""
        for one in self._pods.values():
            one.end()
        until = time.monotonic() + REST_SECONDS
        for one in self._pods.values():
            one.join(max(0.0, until - time.monotonic()))


class PodLog:
    """That of one pod, which a thread reads. Where the file has a part of it already, only the rest is added."""

    def __init__(self, cluster: Cluster, pod: str, path: Path) -> None:
        self._cluster, self._pod, self._path = cluster, pod, path
        self._count = _begin(path, pod)
        self._first = self._time = b""
        self._rest = b""
        self._trouble = ""
        self._ended, self._whole, self._left = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log of {pod}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The pod has ended: it is read once more."""
        self._ended.set()

    def join(self, seconds: float) -> None:
        """Until all is here, at most so long. What is missing then is said in the file."""
        if not self._whole.wait(seconds):
            self._left.set()
            self._write(f"the rest of what {self._pod} said could not be read: {self._trouble or 'no answer'}".encode())
            self._whole.set()

    def _run(self) -> None:
        while not self._left.is_set():
            is_last = self._ended.is_set()
            try:
                self._read(follows=not is_last)
                self._trouble = ""
            except NotStarted:
                pass
            except Missing:
                self._note_gone()
                is_last = True
            except (Unreachable, ConfigError) as error:
                if not (self._trouble or self._left.is_set() or isinstance(error, Quiet)):
                    say(f"what {self._pod} says cannot be read at the moment: {error}")
                self._trouble = str(error)
            if is_last and not self._trouble:
                break
            if self._trouble:
                time.sleep(RETRY_SECONDS)
            else:
                self._ended.wait(RETRY_SECONDS)
        self._whole.set()

    def _read(self, *, follows: bool) -> None:
        """All of it, from its beginning.

        Raises:
            NotStarted, Missing, Unreachable, ConfigError: as `Cluster.log`.
        """
        known, since, place, rest = self._count, b"", 0, b""
        for piece in self._cluster.log(self._pod, CONTAINER, follows=follows):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if place == 0 and self._is_another_beginning(line):
                    known, since = 0, self._time
                self._take(line, is_here=place < known or _time_of(line) <= since)
                place += 1
                self._count = max(self._count, place)
        if rest and not follows:
            self._take(rest, is_here=place < known)
            rest = b""
        self._rest = rest if place >= known else b""

    def _is_another_beginning(self, line: bytes) -> bool:
        """Whether the node began a new file since this log was read last. Lines between may be nowhere."""
        before, self._first = self._first, line
        if not before or line == before:
            return False
        if _time_of(line) > self._time:
            self._write(f"the node has cut the log of {self._pod} here: lines may be missing".encode())
        self._count = 0
        return True

    def _take(self, line: bytes, *, is_here: bool) -> None:
        stamp = _time_of(line)
        if not stamp:  # a node answers 200 with an error's words where it has no log any more
            raise Unreachable(f"the node says of the log of {self._pod}: {line.decode(errors='replace')[:300]}")
        if self._left.is_set():
            raise Unreachable("nobody reads it any more")
        if is_here:
            return
        self._write(line[len(stamp) + 1 :])
        self._time = stamp

    def _note_gone(self) -> None:
        if self._rest:
            self._take(self._rest, is_here=False)
        if self._trouble or not self._first:
            self._write(f"{self._pod} is gone, and the last that it said may be missing: {self._trouble or 'it was never read'}".encode())
        self._trouble = ""

    def _write(self, line: bytes) -> None:
        with open(self._path, "ab", buffering=0) as file:
            file.write(line + b"\n")


def _begin(path: Path, pod: str) -> int:
    """Say in the file whose lines follow; how many of them are here already, where a launcher before began with it."""
    head = f"what {pod} says:".encode()
    said = path.read_bytes() if path.exists() else b""
    whole = said[: said.rfind(b"\n") + 1]
    lines = whole.split(b"\n")[:-1]
    if whole != said:
        with open(path, "rb+") as file:
            file.truncate(len(whole))
    if head in lines:
        return lines[::-1].index(head)
    with open(path, "ab") as file:
        file.write(head + b"\n")
    return 0


def _time_of(line: bytes) -> bytes:
    found = TIME.match(line)
    return found[0] if found else b""
