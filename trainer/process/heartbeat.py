"""The heartbeat of a run: a small file that says, each second, the current work of the trainer.

It comes from its own thread: if the disk hangs, the watchdog must not hang with it. A reader checks that the file changes, by the reader's
own clock. The time in the file is for people.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json, write_atomically
from phasewise.trainer.process.watchdog import Doing, Work

HEARTBEAT_SECONDS = 1.0


class Heartbeat:
    """Writes the file each second while it is a context.

    Args:
        doing: the current work, and how many updates are applied.
        check: called before each beat; it ends the process itself if it must.
        spent: the seconds of each work so far. The last beat, at the end, has all of them.
    """

    def __init__(
        self,
        folder: Path,
        doing: Callable[[], tuple[Doing, int]],
        *,
        token: int = 0,
        check: Callable[[], None] = lambda: None,
        spent: Callable[[], Mapping[Work, float]] = dict,
    ) -> None:
        self._path, self._doing, self._token, self._check, self._spent = RunFolder(folder).heartbeat, doing, token, check, spent
        self._beats = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(HEARTBEAT_SECONDS)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            self._check()
            self._write()
            is_over = self._ended.wait(HEARTBEAT_SECONDS)
        self._write()

    def _write(self) -> None:
        self._beats += 1
        doing, step = self._doing()
        said = {
            "beat": self._beats,
            "pid": os.getpid(),
            "token": self._token,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "step": step,
            "work": doing.work,
            "seconds": round(doing.seconds, 1),
            "limit_seconds": doing.limit_seconds,
            "peak_memory_bytes": peak_memory_bytes(),
            "spent": {work: round(seconds, 3) for work, seconds in self._spent().items()},
        }
        try:
            write_atomically(self._path, json.dumps(said).encode())
        except OSError:  # as on a full disk: at least the file's time changes
            with suppress(OSError):
                os.utime(self._path)


def peak_memory_bytes() -> int | None:
    """Return the most that this process held; None if the system does not say. `ru_maxrss` would begin with its parent's memory."""
    with suppress(OSError, IndexError, ValueError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return None


def signature(folder: Path) -> tuple[int, int] | None:
    """Return what changes with every beat; None if there was none."""
    try:
        found = RunFolder(folder).heartbeat.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def read_heartbeat(folder: Path) -> dict[str, Any]:
    """Return the last beat; nothing if there was none, or it does not read."""
    with suppress(OSError, ValueError):
        said = read_json(RunFolder(folder).heartbeat)
        if isinstance(said, dict):
            return said
    return {}
