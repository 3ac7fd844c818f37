"""Files of the home as they are now, read again only when they change."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from trainer.base.errors import VerdictError
from validations.verdict import Verdict, read_verdict

T = TypeVar("T")
MAX_KEPT = 4000
Signature = tuple[int, int, int]


def signature_of(path: Path) -> Signature | None:
    """What changes when a file does: inode, size and time of change; None where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


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
        value = json.loads(path.read_bytes())
    except ValueError as error:
        return Damaged(f"{path} is not JSON: {error}")
    return cast(dict[str, Any], value) if isinstance(value, dict) else Damaged(f"{path} is no JSON object")


def _read_verdict(path: Path) -> Verdict | Damaged:
    try:
        return Verdict.model_validate_json(path.read_bytes())  # in half the time of `read_verdict`, whose words are asked for below
    except ValidationError:
        pass
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
