"""`metrics.jsonl` as columns, read incrementally."""

import math
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

COLUMNS = (
    "loss", "learning_rate", "grad_norm", "update_norm", "param_norm", "tokens_per_second", "step_seconds", "tokens", "eval_loss",
    "max_violation", "skipped",
)  # fmt: skip
"""Columns of a row, without its step."""
READ_BYTES = 2**22
SAMPLED_ROWS, LONGEST_ROW_BYTES = 600, 2**18
MAX_ROWS_KEPT = 4_000_000


@dataclass
class Curves:
    """The current rows of a run.

    Attributes:
        columns: name → a value per row, NaN if missing or not finite.
        not_finite: number of updates whose loss, gradient norm or weight norm is not finite.
        is_whole: False before all rows are read. The columns then have a sample of rows.
        unreadable: number of lines that are not JSON objects.
    """

    steps: np.ndarray
    columns: Mapping[str, np.ndarray]
    not_finite: int
    last: dict[str, Any]
    is_whole: bool
    unreadable: int

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return the rows with a finite value in the column."""
        column = self.columns[name]
        return [(float(self.steps[row]), float(column[row])) for row in np.flatnonzero(np.isfinite(column))]

    def recent(self, name: str, *, rows: int = 50) -> float | None:
        """Return the median of the last rows, or None without a finite value."""
        part = self.columns[name][-rows:]
        part = part[np.isfinite(part)]
        return float(np.median(part)) if len(part) else None


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
        try:
            row = orjson.loads(line)
            step = int(row["step"])
        except (ValueError, TypeError, KeyError):
            self.unreadable += 1
            return
        self.steps.append(step)
        for name, column in self.columns.items():
            value = row.get(name)
            column.append(float(value) if isinstance(value, int | float) else math.nan)
        self.not_finite += any(name in row and row[name] is None for name in ("loss", "grad_norm", "param_norm"))
        self.last = cast(dict[str, Any], row)

    def curves(self, *, is_whole: bool) -> Curves:
        steps = np.array(self.steps)
        order = slice(None) if is_whole else np.argsort(steps, kind="stable")
        columns = {name: np.array(column)[order] for name, column in self.columns.items()}
        return Curves(steps[order], columns, self.not_finite, self.last, is_whole, self.unreadable if is_whole else 0)


@dataclass
class Metrics:
    """The metrics of a home's runs. Reads only new rows, and restarts if a file was replaced or truncated."""

    _tails: OrderedDict[Path, _Tail] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, path: Path, *, seconds: float = math.inf) -> Curves | None:
        """Return the rows of a file, or None if it is missing.

        `seconds`: limit of the reading time. After it, return a sample, and read the rest in the background.
        """
        try:
            found = path.stat()
            with self._lock:
                tail = self._tails.get(path)
                if tail is None or tail.inode != found.st_ino or tail.offset > found.st_size:
                    tail = self._tails[path] = _Tail(found.st_ino)
                self._tails.move_to_end(path)
                while len(self._tails) > 1 and sum(len(one.steps) for one in self._tails.values()) > MAX_ROWS_KEPT:
                    self._tails.popitem(last=False)
            if self._read_new(tail, path, time.monotonic() + seconds):
                with tail.lock:
                    return tail.curves(is_whole=True)
        except OSError:
            return None
        with self._lock:
            if not tail.is_being_read:
                tail.is_being_read = True
                threading.Thread(target=self._read_rest, args=(tail, path), daemon=True, name="read metrics").start()
        # Rows from evenly spaced positions, and the last row
        rows: dict[int, bytes] = {}
        with path.open("rb") as file:
            size = path.stat().st_size
            for place in (size * number // SAMPLED_ROWS for number in range(SAMPLED_ROWS)):
                file.seek(place)
                if place:
                    file.readline(LONGEST_ROW_BYTES)
                begin = file.tell()
                line = file.readline(LONGEST_ROW_BYTES)
                if line.endswith(b"\n"):
                    rows[begin] = line
            file.seek(max(0, size - LONGEST_ROW_BYTES))
            ends = [line for line in file.read().splitlines(keepends=True)[int(size > LONGEST_ROW_BYTES) :] if line.endswith(b"\n")]
        sample = _Tail(0)
        for line in (*(line for _, line in sorted(rows.items())), *ends[-1:]):
            sample.take(line)
        return sample.curves(is_whole=False)

    def _read_new(self, tail: _Tail, path: Path, deadline: float) -> bool:
        """Read new rows until the deadline, also the time to get the lock. Return whether all rows were read."""
        if not tail.lock.acquire(timeout=max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))):
            return False
        try:
            with path.open("rb") as file:
                file.seek(tail.offset)
                while lines := file.readlines(READ_BYTES):
                    for line in lines:
                        if not line.endswith(b"\n"):
                            return True  # an incomplete row
                        tail.take(line)
                        tail.offset += len(line)
                    if time.monotonic() > deadline:
                        return file.read(1) == b""
            return True
        finally:
            tail.lock.release()

    def _read_rest(self, tail: _Tail, path: Path) -> None:
        """Read the rest in parts: other threads need the lock in between."""
        try:
            while not self._read_new(tail, path, time.monotonic()):
                time.sleep(0.005)
        except OSError:
            pass
        finally:
            tail.is_being_read = False
