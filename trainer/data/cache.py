"""Reading a token cache, on this machine or on a store: rows by number, documents one after the other."""

import mmap
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem
from jaxtyping import Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.storage import as_path, file_system_of
from phasewise.trainer.data.manifest import SPAN_BYTES, Manifest, read_manifest, read_spans

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


DOCUMENTS_AT_ONCE = 1024

TOKENS_AT_ONCE = 2**20

INDEX_BUFFER_BYTES = 2**20


class Document(NamedTuple):
    """One document of a cache: its content digest, the file it came from, and its token ids with the begin and end tokens."""

    id: str
    source_file: str
    tokens: np.ndarray


@dataclass(frozen=True)
class TokenCache:
    """A component's tokens, concatenated over its shards in order. Files are opened when something is read from them."""

    folder: Path
    manifest: Manifest
    starts: np.ndarray
    """Token offset at which each shard starts, and the total at the end."""
    maps: ShardMaps

    @classmethod
    def open(cls, folder: str | Path, maps: ShardMaps | None = None) -> "TokenCache":
        """The cache in a folder. Caches that are given the same `maps` share its bound on open files.

        Raises:
            DataError: the manifest is missing or contradicts itself, or a file of a shard is missing or has another length than it says.
        """
        folder = as_path(folder)
        manifest = read_manifest(folder)
        starts = np.cumsum([0, *(shard.tokens for shard in manifest.shards)])
        if starts[-1] != manifest.tokens:
            raise DataError(
                f"{folder}: the manifest says {manifest.tokens} tokens, and its shards have {starts[-1]}. Prepare the data again."
            )
        expected_bytes = {f"{shard.name}.bin": shard.tokens * np.dtype(manifest.dtype).itemsize for shard in manifest.shards}
        expected_bytes |= {f"{shard.name}.spans": shard.spans * SPAN_BYTES for shard in manifest.shards if shard.spans is not None}
        names = list(expected_bytes)
        for name, expected, found in zip(names, expected_bytes.values(), sizes_in_bytes(folder, names), strict=True):
            if found != expected:
                raise DataError(
                    f"{folder / name}: the manifest says {expected} bytes, found {found}. Delete {folder} and prepare the data again."
                )
        return cls(folder, manifest, starts, maps or build_maps())

    def num_rows(self, seq_len: int) -> int:
        """Whole rows of `seq_len` tokens; the tail that doesn't fill one is not used."""
        return self.manifest.tokens // seq_len

    def rows(self, numbers: np.ndarray, seq_len: int) -> Int[np.ndarray, "b t"]:
        """Rows by number: row n is tokens `[n · seq_len, (n + 1) · seq_len)` of the concatenation, as int32."""
        rows = np.empty((len(numbers), seq_len), np.int32)
        fetch(self.read_rows(numbers, rows, np.arange(len(numbers))))
        return rows

    def read_rows(self, numbers: np.ndarray, out: Int[np.ndarray, "b t"], places: np.ndarray) -> list[TokenRange]:
        """Fill `out[places]` with rows by number, and return what is still to be fetched: everything, where the cache is on a store."""
        seq_len = out.shape[1]
        offsets = np.asarray(numbers, np.int64) * seq_len
        shards = np.searchsorted(self.starts, offsets, side="right") - 1
        for shard in np.unique(shards).tolist() if self.is_local else ():
            self._map(shard).announce((offsets[shards == shard] - self.starts[shard]).tolist(), seq_len)
        if self.is_local and len(self.manifest.shards) == 1:
            out[places] = self._map(0).tokens[: self.num_rows(seq_len) * seq_len].reshape(-1, seq_len)[numbers]
            return []
        pieces = zip(places.tolist(), shards.tolist(), (offsets - self.starts[shards]).tolist(), strict=True)
        return [wanted for place, shard, start in pieces for wanted in self._read(shard, start, out[place])]

    def read_piece(self, first: int, out: Int[np.ndarray, " n"]) -> list[TokenRange]:
        """Fill `out` with tokens from number `first` of the concatenation on, and return what is still to be fetched."""
        shard = int(np.searchsorted(self.starts, first, side="right")) - 1
        start = first - int(self.starts[shard])
        if self.is_local:
            self._map(shard).announce([start], len(out))
        return self._read(shard, start, out)

    def spans(self) -> Int[np.ndarray, "n 2"] | None:
        """The runs of tokens that count, `[start, stop)` in numbers of the whole cache, ascending and apart; None where every token counts.

        Raises:
            DataError: a file of spans is missing, is not the one that was written, or holds none.
        """
        if not self.manifest.has_spans:
            return None
        shards = zip(self.manifest.shards, self.starts[:-1], strict=True)
        return np.concatenate([read_spans(self.folder, shard) + start for shard, start in shards])

    def documents(self, shard_numbers: Iterable[int] | None = None) -> Iterator[Document]:
        """Every document of these shards, or of all, in order, with its tokens. Neither an index nor a shard is ever held whole."""
        for number in range(len(self.manifest.shards)) if shard_numbers is None else shard_numbers:
            shard = self.manifest.shards[number]
            with (self.folder / f"{shard.name}.parquet").open("rb") as file:
                index = pq.ParquetFile(file, buffer_size=INDEX_BUFFER_BYTES, pre_buffer=False)
                for batch in index.iter_batches(DOCUMENTS_AT_ONCE, columns=["id", "source_file", "offset", "length"]):
                    yield from self._documents(number, batch.to_pylist())

    def _documents(self, shard: int, rows: list[dict[str, Any]]) -> Iterator[Document]:
        first = 0
        while first < len(rows):
            begin, after = rows[first]["offset"], first + 1
            while after < len(rows) and rows[after]["offset"] + rows[after]["length"] - begin <= TOKENS_AT_ONCE:
                after += 1
            tokens = self._tokens(shard, begin, rows[after - 1]["offset"] + rows[after - 1]["length"])
            for row in rows[first:after]:
                yield Document(row["id"], row["source_file"], tokens[row["offset"] - begin : row["offset"] - begin + row["length"]])
            first = after

    def _tokens(self, shard: int, begin: int, end: int) -> np.ndarray:
        if self.is_local and end > begin:
            return self._map(shard).tokens[begin:end]
        tokens = np.empty(end - begin, self._dtype)
        fetch([self._range(shard, begin, tokens)] if end > begin else [])
        return tokens

    def _read(self, shard: int, start: int, target: np.ndarray) -> list[TokenRange]:
        ranges: list[TokenRange] = []
        filled = 0
        while filled < len(target):
            count = min(len(target) - filled, self.manifest.shards[shard].tokens - start)
            piece = target[filled : filled + count]
            if self.is_local and count:
                piece[:] = self._map(shard).tokens[start : start + count]
            elif count:
                ranges.append(self._range(shard, start, piece))
            filled, shard, start = filled + count, shard + 1, 0
        return ranges

    def _map(self, shard: int) -> MappedShard:
        return self.maps(self._files[shard], self._dtype)

    def _range(self, shard: int, start: int, target: np.ndarray) -> TokenRange:
        assert self._store
        return TokenRange(self._store[0], f"{self._store[1]}/{self.manifest.shards[shard].name}.bin", self._dtype, start, target)

    @cached_property
    def _store(self) -> tuple[AbstractFileSystem, str] | None:
        return file_system_of(self.folder)

    @cached_property
    def is_local(self) -> bool:
        """Whether its files are on this machine."""
        return self._store is None

    @cached_property
    def _files(self) -> tuple[str, ...]:
        return tuple(f"{self.folder}/{shard.name}.bin" for shard in self.manifest.shards)

    @cached_property
    def _dtype(self) -> np.dtype:
        return np.dtype(self.manifest.dtype).newbyteorder("<")


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
