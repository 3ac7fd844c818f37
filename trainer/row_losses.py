"""Loss of every row of every update, in the folder `row-losses` of a run: flat binary shards of `SHARD_STEPS` steps each.

A record has the step and the number of rows as little-endian integers of 8 and 4 bytes, then the mean loss of each row in nats per token
as float16, in the order of the batch. A row without predicted tokens has NaN. Each step has one record, also in resumed runs.
"""

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float

HEADER, DTYPE = struct.Struct("<QI"), np.dtype("<f2")
SHARD_STEPS = 1024
MAX_WAITING_SECONDS = 1.0
"""Records wait in memory for at most this time. A checkpoint writes them first, so that a resume finds every earlier step."""


def read_row_losses(folder: Path, first_step: int, last_step: int) -> dict[int, Float[np.ndarray, " b"]]:
    """Return step → losses of its rows in float32, for the steps from `first_step` to `last_step` that the folder has."""
    shards = range((first_step - 1) // SHARD_STEPS, (last_step - 1) // SHARD_STEPS + 1)
    records = (record for number in shards for record in _records(_shard(folder, number)))
    return {step: losses.astype(np.float32) for step, _, losses in records if first_step <= step <= last_step}


class RowLossesFile:
    """Append the losses of steps. The constructor drops the records after `restored_step`, because these updates run again."""

    def __init__(self, folder: Path, *, restored_step: int) -> None:
        self._folder, self._waiting, self._number, self._written_at = folder, list[bytes](), -1, time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        last = _shard(folder, (restored_step - 1) // SHARD_STEPS)
        for path in folder.glob("*.f16"):
            if path.name > last.name or not restored_step:
                path.unlink()
        if last.exists():
            os.truncate(last, max((stop for step, stop, _ in _records(last) if step <= restored_step), default=0))

    def append(self, step: int, losses: Float[np.ndarray, " b"]) -> None:
        """Add the losses of a step. Raises OSError if earlier records could not be written."""
        number = (step - 1) // SHARD_STEPS
        if number != self._number or time.monotonic() - self._written_at > MAX_WAITING_SECONDS:
            self.write()
        self._number = number
        self._waiting.append(HEADER.pack(step, len(losses)) + losses.astype(DTYPE).tobytes())

    def write(self, *, sync: bool = False) -> None:
        """Write the waiting records, with `sync` to the disk."""
        if self._waiting:
            with _shard(self._folder, self._number).open("ab") as file:
                file.write(b"".join(self._waiting))
                file.flush()
                if sync:
                    os.fsync(file.fileno())
        self._waiting.clear()
        self._written_at = time.monotonic()


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{max(number, 0):06d}.f16"


def _records(path: Path) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield step, end in the file and losses of each record, up to a truncated record."""
    content, start = path.read_bytes() if path.exists() else b"", 0
    while start + HEADER.size <= len(content):
        step, rows = HEADER.unpack_from(content, start)
        start += HEADER.size + rows * DTYPE.itemsize
        if start <= len(content):
            yield step, start, np.frombuffer(content, DTYPE, rows, start - rows * DTYPE.itemsize)
