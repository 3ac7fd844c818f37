"""Tokens of shards: memory-mapped where they lie on this machine, read by range where they lie on a store."""

import mmap
import os
import resource
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fsspec import AbstractFileSystem

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.storage import file_system_of

MAX_OPEN_SHARDS = 4096
MERGE_GAP_BYTES = 2**16
"""Two ranges of a file that are closer than this are asked for as one."""
READ_AROUND_BYTES = 64 * 2**20
"""Rows of a mapped file that is larger are announced before they are read. A smaller one is soon in memory as a whole."""


class MappedShard(NamedTuple):
    """The tokens of a file that is mapped into memory."""

    file: mmap.mmap
    tokens: np.ndarray

    def announce(self, starts: Iterable[int], length: int) -> None:
        """Have the system read `length` tokens from each of these starts on, all at once, and nothing around them.

        Rows are drawn from anywhere in a file. Whoever touches one that is not in memory waits for as much as the system reads around it:
        128 KiB on most machines, 8 MiB on some, for a row of 16 KiB.
        """
        if len(self.file) <= READ_AROUND_BYTES:
            return
        for start in starts:
            first = start * self.tokens.itemsize
            of_page = first % mmap.PAGESIZE
            self.file.madvise(mmap.MADV_WILLNEED, first - of_page, of_page + length * self.tokens.itemsize)


ShardMaps = Callable[[str, np.dtype], MappedShard]


def build_maps() -> ShardMaps:
    """Maps files as they are asked for; those that were not used for longest are closed.

    No more than `MAX_OPEN_SHARDS` are open at a time, nor more than a quarter of the files that this process may open.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = MAX_OPEN_SHARDS if allowed == resource.RLIM_INFINITY else min(MAX_OPEN_SHARDS, allowed // 4)
    return lru_cache(maxsize=limit)(_map)


def _map(path: str, dtype: np.dtype) -> MappedShard:
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except FileNotFoundError:
        raise DataError(f"a shard of a cache that is being read is gone: {path}. Prepare the data again.") from None
    return MappedShard(mapped, np.frombuffer(mapped, dtype))


class TokenRange(NamedTuple):
    """Tokens of a file on a store, from number `start` of the file on, and the array that they go to."""

    file_system: AbstractFileSystem
    path: str
    dtype: np.dtype
    start: int
    target: np.ndarray

    @property
    def start_byte(self) -> int:
        """Where it starts in the file."""
        return self.start * self.dtype.itemsize

    @property
    def stop_byte(self) -> int:
        """Where it ends in the file."""
        return (self.start + len(self.target)) * self.dtype.itemsize


def fetch(ranges: Sequence[TokenRange]) -> None:
    """Fill the targets: all ranges of a store at once, neighbours as one.

    Raises:
        DataError: a file is gone, or shorter than it was.
    """
    for _, of_store in groupby(sorted(ranges, key=_by_store), key=lambda wanted: id(wanted.file_system)):
        runs = _merge(list(of_store))
        file_system = runs[0][0].file_system
        paths = [run[0].path for run in runs]
        starts, stops = [run[0].start_byte for run in runs], [max(wanted.stop_byte for wanted in run) for run in runs]
        try:
            contents = file_system.cat_ranges(paths, starts, stops, on_error="raise")
        except FileNotFoundError as error:
            raise DataError(f"a shard of a cache that is being read is gone: {error}. Prepare the data again.") from None
        for run, start, stop, content in zip(runs, starts, stops, contents, strict=True):
            if len(content) != stop - start:
                raise DataError(
                    f"{run[0].path} must have bytes {start} to {stop}, found {len(content)} of these {stop - start}: it was changed while "
                    "it was read. Prepare the data again."
                )
            for wanted in run:
                wanted.target[:] = np.frombuffer(content, wanted.dtype, len(wanted.target), wanted.start_byte - start)


def _by_store(wanted: TokenRange) -> tuple[int, str, int]:
    return id(wanted.file_system), wanted.path, wanted.start


def _merge(ranges: Sequence[TokenRange]) -> list[list[TokenRange]]:
    """Sorted ranges, in runs of neighbours within a file."""
    runs: list[list[TokenRange]] = []
    stop_byte = 0
    for wanted in ranges:
        if runs and runs[-1][0].path == wanted.path and wanted.start_byte <= stop_byte + MERGE_GAP_BYTES:
            runs[-1].append(wanted)
            stop_byte = max(stop_byte, wanted.stop_byte)
        else:
            runs.append([wanted])
            stop_byte = wanted.stop_byte
    return runs


def sizes_in_bytes(folder: Path, names: Sequence[str]) -> list[int | None]:
    """The size of each file in a folder, or None where there is none. A store is asked once, and again for what its listing lacks."""
    store = file_system_of(folder)
    if store is None:
        return [_local_size(f"{folder}/{name}") for name in names]
    file_system, path = store
    try:
        listed = {str(entry["name"]).rpartition("/")[2]: int(entry["size"] or 0) for entry in file_system.ls(path, detail=True)}
    except FileNotFoundError:
        listed = {}
    return [listed[name] if name in listed else _stored_size(file_system, f"{path}/{name}") for name in names]


def _local_size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def _stored_size(file_system: AbstractFileSystem, path: str) -> int | None:
    try:
        return int(file_system.info(path)["size"])
    except FileNotFoundError:
        return None
