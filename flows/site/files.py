"""Files of the home as they are now, read again only when they change."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.validations.verdict import Verdict, read_verdict

T = TypeVar("T")
MAX_KEPT = 4000
Signature = tuple[int, int, int, int]


def signature_of(path: Path) -> Signature | None:
    """What changes when a file does: inode, size and times of change; None where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Damaged(str):
    """Why a file that is there does not read, in words."""


class Files:
    """What was read of a home. Several threads may ask."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Path], tuple[Signature, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def json(self, path: Path) -> dict[str, Any] | Damaged | None:
        """The JSON object in the file; None where there is no file."""
        return self.read("json", path, _read_object)

    def verdict(self, path: Path) -> Verdict | Damaged | None:
        """The verdict in the file; None where there is no file."""
        return self.read("verdict", path, _read_verdict)

    def lines(self, path: Path) -> tuple[dict[str, Any], ...]:
        """The JSON objects in the file, one a line. A line that is no JSON object is left out."""
        return self.read("lines", path, _read_lines) or ()

    def read(self, kind: str, path: Path, read: Callable[[Path], T]) -> T | None:
        """What `read` makes of the file, kept until the file changes; None where there is no file."""
        now = signature_of(path)
        if now is None:
            return None
        with self._lock:
            kept = self._kept.get((kind, path))
            if kept and kept[0] == now:
                self._kept.move_to_end((kind, path))
                return cast(T, kept[1])
        try:
            value = read(path)
        except OSError:
            return None  # it went away meanwhile
        with self._lock:
            self._kept[kind, path] = (now, value)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return value


def known(value: dict[str, Any] | Damaged | None) -> dict[str, Any]:
    """What was read, or nothing."""
    return value if isinstance(value, dict) else {}


def _read_object(path: Path) -> dict[str, Any] | Damaged:
    try:
        return read_sealed(path, may_lack_seal=True)
    except NotAsWritten as error:
        return Damaged(str(error))


def _read_verdict(path: Path) -> Verdict | Damaged:
    try:
        return read_verdict(path)
    except VerdictError as error:
        return Damaged(str(error))


def _read_lines(path: Path) -> tuple[dict[str, Any], ...]:
    found: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(cast(dict[str, Any], value))
    return tuple(found)
