"""`metrics.jsonl`: one JSON object per update, each step once in order, also in resumed runs.

`docs/reference/metrics.md` declares every name of a row.
"""

import errno
import hashlib
import json
import os
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from phasewise.trainer.base.storage import write_atomically

Row = dict[str, Any]
PARAM_GROUPS = ("embedding", "attention", "mlp", "norms", "lm_head")
"""Groups of weights for norms. `trainer.model.params.param_specs` assigns each weight to a group."""
SPARSE_GROUPS = ("experts", "router")  # further groups of models with experts
ALL_GROUPS = (*PARAM_GROUPS, *SPARSE_GROUPS)
OF_THE_CLOCK = frozenset({"evaluation_seconds", "data_seconds", "step_seconds", "tokens_per_second", "mfu", "seconds"})
"""Names of values that are measured in time, so two equal runs differ."""


def read_metrics(path: Path) -> list[Row]:
    """Return the complete rows, up to a truncated line."""
    if not path.exists():
        return []
    rows: list[Row] = []
    for line in path.read_bytes().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def whole_through(rows: Iterable[Row], first_step: int, left_out: Container[int] = ()) -> int:
    """Return the last step of the rows without gaps after `first_step`. `left_out`: updates without rows, counted from 0."""
    reached = first_step
    for row in rows:
        step = reached + 1
        while step - 1 in left_out:
            step += 1
        if row.get("step") != step:
            break
        reached = step
    return reached


def rows_digest(rows: Iterable[Row]) -> str:
    """Return the SHA-256 of written rows."""
    return hashlib.sha256(b"".join(_line(row) for row in rows)).hexdigest()


class MetricsFile:
    """Append rows. The constructor drops the rows after `restored_step`, because these updates run again."""

    def __init__(self, path: Path, *, restored_step: int):
        self.kept = [row for row in read_metrics(path) if row["step"] <= restored_step]
        content = b"".join(_line(row) for row in self.kept)
        write_atomically(path, content)
        self._path = path
        self._lines = hashlib.sha256(content)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # stays open for the run

    def append(self, row: Row) -> None:
        """Write a row in one call. Raises OSError if the row was not written. A partial row is removed."""
        line = _line(row)
        try:
            written = os.write(self._file.fileno(), line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        if written < len(line):
            os.ftruncate(self._file.fileno(), os.fstat(self._file.fileno()).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._lines.update(line)

    def flush(self) -> str:
        """Sync to the disk, and return the SHA-256 of all rows."""
        os.fsync(self._file.fileno())
        return self._lines.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
