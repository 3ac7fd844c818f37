"""The documents of a token cache, from the Parquet index next to each shard. Only row groups of interest are read."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import check_file
from phasewise.trainer.data.cache import INDEX_BUFFER_BYTES, TokenCache

COLUMNS = ["id", "source_file", "offset", "length"]
INDICES_OPEN = 256
REMEDY = "Delete its folder and run `phasewise data prepare`."


class Located(NamedTuple):
    """A document in a cache."""

    id: str
    file: str  # its source file
    first: int  # its first token, counted over all shards: BOS
    length: int  # number of tokens, with BOS and EOS
    shard: int  # the number of its shard


class Piece(NamedTuple):
    """Tokens `[first, stop)` of one document of a cache, where `of` is the number of the queried range."""

    of: int
    document: Located
    first: int
    stop: int


class DocumentIndex:
    """The documents of one cache. Raises DataError if an index is missing, or was changed after it was written."""

    def __init__(self, cache: TokenCache):
        self.cache = cache
        self._open_once = lru_cache(maxsize=INDICES_OPEN)(self._open)
        self._group_firsts = lru_cache(maxsize=INDICES_OPEN)(self._read_group_firsts)
        self._checked: set[int] = set()

    def covering(self, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]) -> list[Piece]:
        """Return the documents' pieces in the ranges `[first, stop)` of the cache's tokens, by range and in order."""
        starts = self.cache.starts
        first_shard, last_shard = np.searchsorted(starts, first, "right") - 1, np.searchsorted(starts, stop - 1, "right") - 1
        bounds = set(zip(first_shard.tolist(), last_shard.tolist(), strict=True))
        pieces: list[Piece] = []
        for shard in sorted({shard for low, high in bounds for shard in range(low, high + 1)}):
            if starts[shard] == starts[shard + 1]:
                continue
            start = int(starts[shard])
            which = np.flatnonzero((first_shard <= shard) & (shard <= last_shard))
            begin, end = np.maximum(first[which] - start, 0), np.minimum(stop[which], starts[shard + 1]) - start
            groups = self._group_firsts(shard)
            lows, highs = np.searchsorted(groups, begin, "right") - 1, np.searchsorted(groups, end, "left")
            ranges = zip(np.maximum(lows, 0).tolist(), highs.tolist(), strict=True)
            for group in sorted({group for low, high in ranges for group in range(low, high)}):
                table = self._read(shard, group, COLUMNS)
                columns = [table[name].combine_chunks() for name in ("offset", "length")]
                offsets, lengths = (np.asarray(np.from_dlpack(column), np.int64) for column in columns)  # `to_numpy` imports pandas
                for number in np.flatnonzero((lows <= group) & (group < highs)).tolist():
                    low = int(np.searchsorted(offsets + lengths, begin[number], "right"))
                    high = int(np.searchsorted(offsets, end[number], "left"))
                    for document in self._located(shard, table, [at for at in range(low, high) if lengths[at]]):
                        piece_first = max(document.first, start + int(begin[number]))
                        piece_stop = min(document.first + document.length, start + int(end[number]))
                        pieces.append(Piece(int(which[number]), document, piece_first, piece_stop))
        pieces.sort(key=lambda piece: (piece.of, piece.first))
        covered = np.zeros(len(first), np.int64)
        for piece in pieces:
            covered[piece.of] += piece.stop - piece.first
        for number in np.flatnonzero(covered != stop - first)[:1]:
            raise DataError(
                f"{self.cache.folder}: the index must name the documents of tokens {first[number]} to {stop[number]}, found documents for "
                f"{covered[number]} of these {stop[number] - first[number]} tokens. Delete the folder and prepare the data again."
            )
        return pieces

    def named(self, prefixes: tuple[str, ...], shards: Iterable[int] | None = None) -> list[Located]:
        """Return the documents whose id has any of these prefixes, in `shards` or in all shards."""
        found: list[Located] = []
        for shard in range(len(self.cache.manifest.shards)) if shards is None else shards:
            for group in range(self._open_once(shard).num_row_groups):
                ids = self._read(shard, group, ["id"])["id"]
                matches = [np.flatnonzero(np.asarray(pc.starts_with(ids, prefix))) for prefix in prefixes]
                numbers = sorted({at for of_prefix in matches for at in of_prefix.tolist()})
                if numbers:
                    found += self._located(shard, self._read(shard, group, COLUMNS), numbers)
        return found

    def of_file(self, name: str, *, checks_all: bool = True) -> list[Located]:
        """Return the documents of a source file, in order. Without `checks_all`, indexes are skipped by their unchecked footers."""
        found: list[Located] = []
        for shard in range(len(self.cache.manifest.shards)):
            if checks_all:
                self._check(shard)
            for group in range(self._open_once(shard).num_row_groups):
                statistics = self._statistics(shard, group, "source_file")
                if statistics is None or statistics.min <= name <= statistics.max:
                    files = self._read(shard, group, ["source_file"])["source_file"]
                    numbers = np.flatnonzero(np.asarray(pc.equal(files, pa.scalar(name)))).tolist()
                    if numbers:
                        found += self._located(shard, self._read(shard, group, COLUMNS), numbers)
        return found

    def starts(self) -> Int[np.ndarray, " n"]:
        """Return the first token of every document, over all shards, and the number of all tokens. Raises DataError for gaps."""
        found: list[np.ndarray] = []
        for shard, written in enumerate(self.cache.manifest.shards):
            tables = [self._read(shard, group, ["offset", "length"]) for group in range(self._open_once(shard).num_row_groups)]
            offsets, lengths = (
                np.concatenate([np.empty(0, np.int64), *(t[name].to_numpy() for t in tables)]) for name in ("offset", "length")
            )
            if (lengths < 0).any() or (np.append(offsets, written.tokens) != np.cumsum([0, *lengths])).any():
                raise DataError(
                    f"{self.cache.folder / written.name}.parquet: documents must follow one another over {written.tokens} tokens, found "
                    f"{len(lengths)} with {lengths.sum()} tokens. Delete the folder and prepare the data again."
                )
            found.append(offsets + self.cache.starts[shard])
        return np.concatenate([*found, self.cache.starts[-1:]]).astype(np.int64)

    def _located(self, shard: int, table: pa.Table, numbers: Sequence[int]) -> list[Located]:
        start = int(self.cache.starts[shard])
        rows = [table.slice(number, 1).to_pylist()[0] for number in numbers]  # `take` imports pandas
        return [Located(row["id"], row["source_file"], start + row["offset"], row["length"], shard) for row in rows]

    def _read_group_firsts(self, shard: int) -> np.ndarray:
        firsts: list[int] = []
        for group in range(self._open_once(shard).num_row_groups):
            statistics = self._statistics(shard, group, "offset")
            firsts.append(int(self._read(shard, group, ["offset"])["offset"][0].as_py() if statistics is None else statistics.min))
        return np.array(firsts, np.int64)

    def _statistics(self, shard: int, group: int, column: str) -> Any:
        file = self._open_once(shard)
        found = file.metadata.row_group(group).column(file.schema_arrow.get_field_index(column)).statistics
        return found if found is not None and found.has_min_max else None

    def _read(self, shard: int, group: int, columns: list[str]) -> pa.Table:
        self._check(shard)
        return self._open_once(shard).read_row_group(group, columns=columns)

    def _open(self, shard: int) -> pq.ParquetFile:
        written = self.cache.manifest.shards[shard]
        path = self.cache.folder / f"{written.name}.parquet"
        try:
            if self.cache.is_local:
                return pq.ParquetFile(str(path), memory_map=True)
            return pq.ParquetFile(path.open("rb"), buffer_size=INDEX_BUFFER_BYTES, pre_buffer=False)
        except FileNotFoundError:
            check_file(path, written.index_digest, REMEDY)
            raise
        except pa.ArrowInvalid as error:
            raise DataError(f"{path} does not read as Parquet: {error}. {REMEDY}") from None

    def _check(self, shard: int) -> None:
        if shard not in self._checked:
            written = self.cache.manifest.shards[shard]
            check_file(self.cache.folder / f"{written.name}.parquet", written.index_digest, REMEDY)
            self._checked.add(shard)
