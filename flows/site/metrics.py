"""`metrics.jsonl` as columns, read as it grows, and thinned for a picture without losing a spike."""

import math
import os
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

COLUMNS = (
    "loss", "learning_rate", "grad_norm", "update_norm", "param_norm", "tokens_per_second", "step_seconds", "tokens", "eval_loss",
    "max_violation", "skipped",
)  # fmt: skip
"""What is kept of a row, beside its step."""
PIECE_BYTES = 2**22
SAMPLED_ROWS, LONGEST_ROW_BYTES = 600, 2**18
MAX_ROWS_KEPT = 4_000_000
Points = list[tuple[float, float]]


@dataclass
class Curves:
    """The rows of a run so far.

    Attributes:
        steps: of each row.
        columns: name → a value a row; NaN where the row has none, or none that is finite.
        not_finite: updates whose loss, gradient norm or weight norm is not a finite number.
        last: the last row, whole.
        is_whole: False while rows are left to read; the columns then hold rows from all over the file, with gaps between.
        unreadable: lines that are no JSON object.
    """

    steps: np.ndarray
    columns: Mapping[str, np.ndarray]
    not_finite: int
    last: dict[str, Any]
    is_whole: bool
    unreadable: int

    def column(self, name: str) -> np.ndarray:
        """A value a row."""
        return self.columns[name]

    def has(self, name: str) -> bool:
        """Whether any row has a number of that name."""
        return bool(np.isfinite(self.columns[name]).any())


@dataclass
class _Tail:
    inode: int
    offset: int = 0
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    columns: "dict[str, array[float]]" = field(default_factory=lambda: {name: array("d") for name in COLUMNS})
    not_finite: int = 0
    unreadable: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_being_read: bool = False

    def take(self, line: bytes) -> None:
        """A whole line."""
        try:
            row = orjson.loads(line)
            step = int(row["step"])
        except (ValueError, TypeError, KeyError):
            self.unreadable += 1
            return
        self.steps.append(step)
        for name, column in self.columns.items():
            column.append(_number(row.get(name)))
        self.not_finite += any(name in row and row[name] is None for name in ("loss", "grad_norm", "param_norm"))
        self.last = cast(dict[str, Any], row)


class Metrics:
    """The metrics of a home's runs. Only what came since is read; a file that was replaced or cut is read again."""

    def __init__(self) -> None:
        self._tails: OrderedDict[Path, _Tail] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: Path, *, seconds: float = math.inf) -> Curves | None:
        """The rows of the file; None where there is no file.

        Args:
            seconds: that reading may take. What is left is read in the background, and rows from all over the file answer meanwhile.
        """
        try:
            found = path.stat()
        except OSError:
            return None
        tail = self._tail(path, found)
        try:
            is_whole = self._read_on(tail, path, time.monotonic() + seconds)
        except OSError:
            return None
        if is_whole:
            return _curves(tail, is_whole=True)
        self._go_on(tail, path)
        return _sample(path)

    def _tail(self, path: Path, found: os.stat_result) -> _Tail:
        with self._lock:
            tail = self._tails.get(path)
            if tail is None or tail.inode != found.st_ino or tail.offset > found.st_size:
                tail = self._tails[path] = _Tail(found.st_ino)
            self._tails.move_to_end(path)
            while len(self._tails) > 1 and sum(len(one.steps) for one in self._tails.values()) > MAX_ROWS_KEPT:
                self._tails.popitem(last=False)
            return tail

    def _read_on(self, tail: _Tail, path: Path, deadline: float) -> bool:
        """Read what came since, until the deadline; whether everything is read. Another thread that reads is not waited for."""
        if not tail.lock.acquire(timeout=max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))):
            return False
        try:
            with path.open("rb") as file:
                file.seek(tail.offset)
                while lines := file.readlines(PIECE_BYTES):
                    for line in lines:
                        if not line.endswith(b"\n"):
                            return True  # a row that is being written
                        tail.take(line)
                        tail.offset += len(line)
                    if time.monotonic() > deadline:
                        return file.read(1) == b""
            return True
        finally:
            tail.lock.release()

    def _go_on(self, tail: _Tail, path: Path) -> None:
        """Read the rest in a thread of its own, a piece at a time, so that others have their turn."""
        with self._lock:
            if tail.is_being_read:
                return
            tail.is_being_read = True

        def read_on() -> None:
            try:
                while not self._read_on(tail, path, time.monotonic()):
                    time.sleep(0.005)
            except OSError:
                pass
            finally:
                tail.is_being_read = False

        threading.Thread(target=read_on, daemon=True, name="read metrics").start()


def thinned(steps: np.ndarray, values: np.ndarray, *, most: int = 240) -> list[Points]:
    """The curve in at most about twice `most` points: of every stretch its least and its greatest value, in the order of the steps.

    A run of numbers is one line; where a value is missing, the line is broken.
    """
    if not len(steps):
        return []
    stretch = max(1, math.ceil(len(steps) / most))
    lines: list[Points] = [[]]
    for start in range(0, len(steps), stretch):
        part = values[start : start + stretch]
        finite = np.flatnonzero(np.isfinite(part))
        if len(finite) < len(part) and stretch == 1 and lines[-1]:
            lines.append([])
        if not len(finite):
            if lines[-1]:
                lines.append([])
            continue
        least, greatest = finite[np.argmin(part[finite])], finite[np.argmax(part[finite])]
        for place in dict.fromkeys(sorted((int(least), int(greatest)))):
            lines[-1].append((float(steps[start + place]), float(part[place])))
    return [line for line in lines if line]


def points_of(curves: Curves, name: str) -> Points:
    """The rows that have a number of that name: for what is measured now and then."""
    column = curves.column(name)
    return [(float(curves.steps[row]), float(column[row])) for row in np.flatnonzero(np.isfinite(column))]


def recent(curves: Curves, name: str, *, rows: int = 50) -> float | None:
    """The median of the last rows; None where none has a number."""
    part = curves.column(name)[-rows:]
    part = part[np.isfinite(part)]
    return float(np.median(part)) if len(part) else None


def _curves(tail: _Tail, *, is_whole: bool) -> Curves:
    with tail.lock:
        columns = {name: np.array(column) for name, column in tail.columns.items()}
        return Curves(np.array(tail.steps), columns, tail.not_finite, tail.last, is_whole, tail.unreadable)


def _sample(path: Path) -> Curves:
    """Rows from all over a file that is not read to its end yet, the last one among them."""
    tail = _Tail(0)
    size = path.stat().st_size
    with path.open("rb") as file:
        for line in _sampled_lines(file, size):
            tail.take(line)
    order = np.argsort(np.array(tail.steps), kind="stable") if tail.steps else np.array([], dtype=int)
    columns = {name: np.array(column)[order] for name, column in tail.columns.items()}
    return Curves(np.array(tail.steps)[order], columns, tail.not_finite, tail.last, False, 0)


def _sampled_lines(file: Any, size: int) -> Sequence[bytes]:
    places = [size * number // SAMPLED_ROWS for number in range(SAMPLED_ROWS)]
    found: dict[int, bytes] = {}
    for place in places:
        file.seek(place)
        if place:
            file.readline(LONGEST_ROW_BYTES)
        begin = file.tell()
        line = file.readline(LONGEST_ROW_BYTES)
        if line.endswith(b"\n"):
            found[begin] = line
    file.seek(max(0, size - LONGEST_ROW_BYTES))
    ends = [line for line in file.read().splitlines(keepends=True)[1 if size > LONGEST_ROW_BYTES else 0 :] if line.endswith(b"\n")]
    return [*(line for _, line in sorted(found.items())), *ends[-1:]]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
