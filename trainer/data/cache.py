"""Reading a token cache, from this machine or from a store: rows by number, documents in order."""

import mmap
import os
import resource
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem
from jaxtyping import Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import check_file
from phasewise.trainer.base.storage import as_path, file_system_of
from phasewise.trainer.data.manifest import SPAN, SPAN_BYTES, Manifest, read_manifest

MAX_OPEN_SHARDS = 4096
MERGE_GAP_BYTES = 2**16  # two byte ranges of a file with a smaller gap are requested as one
READ_AROUND_BYTES = 64 * 2**20
"""Rows of a larger mapped file are announced before they are read. A smaller file is soon in memory as a whole."""
DOCUMENTS_AT_ONCE = 1024
TOKENS_AT_ONCE = 2**20
INDEX_BUFFER_BYTES = 2**20


class MappedShard(NamedTuple):
    """The tokens of a file that is mapped into memory."""

    file: mmap.mmap
    tokens: np.ndarray

    def announce(self, starts: Iterable[int], length: int) -> None:
        """Have the system read `length` tokens from each of these starts on, in parallel, without read-ahead.

        Rows come from anywhere in a file. An access to a row that is not in memory waits for the system's read-ahead: 128 KiB on most
        machines, 8 MiB on some, for a row of 16 KiB.
        """
        if len(self.file) <= READ_AROUND_BYTES:
            return
        for start in starts:
            first = start * self.tokens.itemsize
            of_page = first % mmap.PAGESIZE
            self.file.madvise(mmap.MADV_WILLNEED, first - of_page, of_page + length * self.tokens.itemsize)


ShardMaps = Callable[[str, np.dtype], MappedShard]


class TokenRange(NamedTuple):
    """Tokens of a file on a store, from token number `start` of the file on, and the array to fill with them."""

    file_system: AbstractFileSystem
    path: str
    dtype: np.dtype
    start: int
    target: np.ndarray


class Document(NamedTuple):
    """One document of a cache: its content digest, its source file, and its token ids with BOS and EOS."""

    id: str
    source_file: str
    tokens: np.ndarray


@dataclass(frozen=True)
class TokenCache:
    """A component's tokens, concatenated over its shards in order. Files are opened when they are first read."""

    folder: Path
    manifest: Manifest
    starts: np.ndarray  # token offset at which each shard starts, and the total at the end
    maps: ShardMaps
    store: AbstractFileSystem | None
    files: tuple[str, ...]  # the shards' files: paths on this machine, or names on the store
    dtype: np.dtype

    @classmethod
    def open(cls, folder: str | Path, maps: ShardMaps | None = None) -> "TokenCache":
        """Return the cache in a folder. Raises DataError if its manifest or a file is missing, or a size differs from the manifest."""
        folder = as_path(folder)
        manifest = read_manifest(folder)
        starts = np.cumsum([0, *(shard.tokens for shard in manifest.shards)])
        if starts[-1] != manifest.tokens:
            raise DataError(
                f"{folder}: the manifest says {manifest.tokens} tokens, and its shards have {starts[-1]}. Prepare the data again."
            )
        expected_bytes = {f"{shard.name}.bin": shard.tokens * np.dtype(manifest.dtype).itemsize for shard in manifest.shards}
        expected_bytes |= {f"{shard.name}.spans": shard.spans * SPAN_BYTES for shard in manifest.shards if shard.spans is not None}
        for (name, expected), found in zip(expected_bytes.items(), sizes_in_bytes(folder, list(expected_bytes)), strict=True):
            if found != expected:
                raise DataError(
                    f"{folder / name}: the manifest says {expected} bytes, found {found}. Delete {folder} and prepare the data again."
                )
        store, name = file_system_of(folder) or (None, folder)
        files = tuple(f"{name}/{shard.name}.bin" for shard in manifest.shards)
        return cls(folder, manifest, starts, maps or build_maps(), store, files, np.dtype(manifest.dtype).newbyteorder("<"))

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine."""
        return self.store is None

    def num_rows(self, seq_len: int) -> int:
        """Return the number of whole rows of `seq_len` tokens, without the tail."""
        return self.manifest.tokens // seq_len

    def rows(self, numbers: np.ndarray, seq_len: int) -> Int[np.ndarray, "b t"]:
        """Return rows by number: row n is tokens `[n · seq_len, (n + 1) · seq_len)` of the concatenation, as int32."""
        rows = np.empty((len(numbers), seq_len), np.int32)
        fetch(self.read_rows(numbers, rows, np.arange(len(numbers))))
        return rows

    def read_rows(self, numbers: np.ndarray, out: Int[np.ndarray, "b t"], places: np.ndarray) -> list[TokenRange]:
        """Fill `out[places]` with rows by number from local files, or return all ranges to fetch if the cache is on a store."""
        seq_len = out.shape[1]
        offsets = np.asarray(numbers, np.int64) * seq_len
        shards = np.searchsorted(self.starts, offsets, side="right") - 1
        for shard in np.unique(shards).tolist() if self.is_local else ():
            self.maps(self.files[shard], self.dtype).announce((offsets[shards == shard] - self.starts[shard]).tolist(), seq_len)
        if self.is_local and len(self.files) == 1:
            tokens = self.maps(self.files[0], self.dtype).tokens
            out[places] = tokens[: self.num_rows(seq_len) * seq_len].reshape(-1, seq_len)[numbers]
            return []
        pieces = zip(places.tolist(), shards.tolist(), (offsets - self.starts[shards]).tolist(), strict=True)
        return [wanted for place, shard, start in pieces for wanted in self._read(shard, start, out[place])]

    def read_piece(self, first: int, out: Int[np.ndarray, " n"]) -> list[TokenRange]:
        """Fill `out` with tokens from number `first` of the concatenation on, or return the ranges to fetch from a store."""
        shard = int(np.searchsorted(self.starts, first, side="right")) - 1
        start = first - int(self.starts[shard])
        if self.is_local:
            self.maps(self.files[shard], self.dtype).announce([start], len(out))
        return self._read(shard, start, out)

    def _read(self, shard: int, start: int, target: np.ndarray) -> list[TokenRange]:
        ranges: list[TokenRange] = []
        filled = 0
        while filled < len(target):
            count = min(len(target) - filled, self.manifest.shards[shard].tokens - start)
            piece = target[filled : filled + count]
            if self.store is not None and count:
                ranges.append(TokenRange(self.store, self.files[shard], self.dtype, start, piece))
            elif count:
                piece[:] = self.maps(self.files[shard], self.dtype).tokens[start : start + count]
            filled, shard, start = filled + count, shard + 1, 0
        return ranges

    def spans(self) -> Int[np.ndarray, "n 2"] | None:
        """Return the ascending runs `[start, stop)` of counted tokens over the cache, or None.

        Raises DataError if a file is missing, damaged or was changed.
        """
        if all(shard.spans is None for shard in self.manifest.shards):
            return None
        found: list[np.ndarray] = []
        again = f"Delete {self.folder} and prepare the data again."
        for shard, start in zip(self.manifest.shards, self.starts[:-1], strict=True):
            path = self.folder / f"{shard.name}.spans"
            check_file(path, str(shard.spans_digest), again)
            content = path.read_bytes()
            if len(content) != SPAN_BYTES * (shard.spans or 0):
                raise DataError(f"{path} must hold {shard.spans} spans, found {len(content)} bytes. {again}")
            spans = np.frombuffer(content, SPAN).reshape(-1, 2).astype(np.int64)
            edges = spans.reshape(-1)
            within = not len(edges) or (edges[0] >= 0 and edges[-1] <= shard.tokens)
            if not bool(within and (np.diff(edges) >= 0).all() and (spans[:, 0] < spans[:, 1]).all()):
                raise DataError(f"{path} holds no ascending spans of {shard.tokens} tokens. {again}")
            found.append(spans + start)
        return np.concatenate(found)

    def documents(self, shard_numbers: Iterable[int] | None = None) -> Iterator[Document]:
        """Yield every document of these shards, or of all, in order. Memory does not grow with the shards or their indexes."""
        for number in range(len(self.manifest.shards)) if shard_numbers is None else shard_numbers:
            with (self.folder / f"{self.manifest.shards[number].name}.parquet").open("rb") as file:
                index = pq.ParquetFile(file, buffer_size=INDEX_BUFFER_BYTES, pre_buffer=False)
                for batch in index.iter_batches(DOCUMENTS_AT_ONCE, columns=["id", "source_file", "offset", "length"]):
                    rows: deque[dict[str, Any]] = deque(batch.to_pylist())
                    while rows:
                        piece = [rows.popleft()]
                        begin, end = piece[0]["offset"], piece[0]["offset"] + piece[0]["length"]
                        while rows and rows[0]["offset"] + rows[0]["length"] - begin <= TOKENS_AT_ONCE:
                            piece.append(rows.popleft())
                            end = piece[-1]["offset"] + piece[-1]["length"]
                        if self.is_local and end > begin:
                            tokens = self.maps(self.files[number], self.dtype).tokens[begin:end]
                        else:
                            tokens = np.empty(end - begin, self.dtype)
                            fetch(self._read(number, begin, tokens))
                        for row in piece:
                            at = row["offset"] - begin
                            yield Document(row["id"], row["source_file"], tokens[at : at + row["length"]])


def build_maps() -> ShardMaps:
    """Return a function that maps files, and closes the least recently used beyond a quarter of the process's limit."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def map_file(path: str, dtype: np.dtype) -> MappedShard:
        try:
            with open(path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except FileNotFoundError:
            raise DataError(f"a shard of a cache that is being read is gone: {path}. Prepare the data again.") from None
        return MappedShard(mapped, np.frombuffer(mapped, dtype))

    return lru_cache(maxsize=MAX_OPEN_SHARDS if allowed == resource.RLIM_INFINITY else min(MAX_OPEN_SHARDS, allowed // 4))(map_file)


def fetch(ranges: Sequence[TokenRange]) -> None:
    """Fill the targets, with one request per store that merges near ranges. Raises DataError if a file is missing or short."""
    ordered = sorted(ranges, key=lambda wanted: (id(wanted.file_system), wanted.path, wanted.start))
    for _, of_store in groupby(ordered, key=lambda wanted: id(wanted.file_system)):
        runs: list[list[TokenRange]] = []
        starts: list[int] = []
        stops: list[int] = []
        for wanted in of_store:
            start = wanted.start * wanted.dtype.itemsize
            stop = start + len(wanted.target) * wanted.dtype.itemsize
            if runs and runs[-1][0].path == wanted.path and start <= stops[-1] + MERGE_GAP_BYTES:
                runs[-1].append(wanted)
                stops[-1] = max(stops[-1], stop)
            else:
                runs.append([wanted])
                starts.append(start)
                stops.append(stop)
        try:
            contents = runs[0][0].file_system.cat_ranges([run[0].path for run in runs], starts, stops, on_error="raise")
        except FileNotFoundError as error:
            raise DataError(f"a shard of a cache that is being read is gone: {error}. Prepare the data again.") from None
        for run, start, stop, content in zip(runs, starts, stops, contents, strict=True):
            if len(content) != stop - start:
                raise DataError(
                    f"{run[0].path} must have bytes {start} to {stop}, found {len(content)} of these {stop - start}: it was changed while "
                    "it was read. Prepare the data again."
                )
            for wanted in run:
                wanted.target[:] = np.frombuffer(content, wanted.dtype, len(wanted.target), wanted.start * wanted.dtype.itemsize - start)


def sizes_in_bytes(folder: Path, names: Sequence[str]) -> list[int | None]:
    """Return the size of each file in a folder, or None if it is missing. A store is listed once."""
    store = file_system_of(folder)
    found: dict[str, int] = {}
    if store is not None:
        with suppress(FileNotFoundError):
            entries = store[0].ls(store[1], detail=True)
            found = {str(entry["name"]).rpartition("/")[2]: int(entry["size"] or 0) for entry in entries}
    for name in set(names) - found.keys():
        with suppress(FileNotFoundError):
            found[name] = os.stat(f"{folder}/{name}").st_size if store is None else int(store[0].info(f"{store[1]}/{name}")["size"])
    return [found.get(name) for name in names]
