"""`metrics.jsonl`: one JSON object an update, in order, each step once, however often the run was stopped."""

import json
import os
from pathlib import Path
from typing import Any

from trainer.storage import write_atomically

Row = dict[str, Any]
"""step (updates applied), loss (nats a token, before the update), log_z_squared, grad_norm (before clipping), update_norm, param_norm,
learning_rate, z_loss, tokens (of this update's batch), seconds (since this process began to train). What is not finite is null."""


def read_metrics(path: Path) -> list[Row]:
    """All whole rows; a line that a kill cut short is left out."""
    if not path.exists():
        return []
    rows: list[Row] = []
    for line in path.read_bytes().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


class MetricsFile:
    """Appends rows. Opening it forgets the rows after `restored_step`: they will be trained, and written, again."""

    def __init__(self, path: Path, *, restored_step: int):
        kept = [row for row in read_metrics(path) if row["step"] <= restored_step]
        write_atomically(path, b"".join(_line(row) for row in kept))
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # stays open for the run

    def append(self, row: Row) -> None:
        """One write call a row."""
        os.write(self._file.fileno(), _line(row))

    def close(self) -> None:
        """No more rows."""
        self._file.close()


def _line(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
