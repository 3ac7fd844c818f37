"""Which documents the tokens of a cache are of, and which tokens a document has: from the Parquet index beside each shard.

An index is not held whole. Row groups are chosen by the statistics in their footers, and only those are read. Before anything of an index
is believed, its digest must be the one that the manifest names.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.data.cache import INDEX_BUFFER_BYTES, TokenCache

COLUMNS = ["id", "source_file", "offset", "length"]
INDICES_OPEN = 256


class Located(NamedTuple):
    """A document in a cache.

    Attributes:
        first: its first token, counted over all shards; the token that begins every document is the first.
        length: its tokens, with those that begin and end it.
        shard: the number of its shard.
    """

    id: str
    file: str
    first: int
    length: int
    shard: int


class Piece(NamedTuple):
    """Tokens `[first, stop)` of a cache that are of one document; `of` is the number of the range that was asked for."""

    of: int
    document: Located
    first: int
    stop: int


class DocumentIndex:
    """The documents of one cache.

    Raises:
        DataError: an index is missing, or is not the one that was written.
    """

    def __init__(self, cache: TokenCache):
        self.cache = cache
        self._open_once = lru_cache(maxsize=INDICES_OPEN)(self._open)
        self._group_firsts = lru_cache(maxsize=INDICES_OPEN)(self._read_group_firsts)
        self._checked: set[int] = set()

    def covering(self, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]) -> list[Piece]:
        """The pieces that ranges `[first, stop)` of the cache's tokens consist of, range by range and in order."""
        starts = self.cache.starts
        first_shard, last_shard = np.searchsorted(starts, first, "right") - 1, np.searchsorted(starts, stop - 1, "right") - 1
        pieces: list[Piece] = []
        for shard in sorted({*first_shard.tolist(), *last_shard.tolist(), *_between(first_shard, last_shard)}):
            if starts[shard] == starts[shard + 1]:
                continue
            which = np.flatnonzero((first_shard <= shard) & (shard <= last_shard))
            begin, end = np.maximum(first[which], starts[shard]), np.minimum(stop[which], starts[shard + 1])
            pieces += self._in_shard(shard, which, begin - starts[shard], end - starts[shard])
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
        """The documents whose id begins with one of these, in these shards or in all."""
        found: list[Located] = []
        for shard in range(len(self.cache.manifest.shards)) if shards is None else shards:
            for group in range(self._open_once(shard).metadata.num_row_groups):
                ids = self._read(shard, group, ["id"])["id"]
                numbers = [at for prefix in prefixes for at in _numbers(pc.starts_with(ids, prefix))]
                found += self._documents(shard, group, sorted(set(numbers)))
        return found

    def of_file(self, name: str, *, checks_all: bool = True) -> list[Located]:
        """The documents of a source file, in order.

        Args:
            checks_all: every index is checked first; else only those whose footers say that they may name the file.
        """
        found: list[Located] = []
        for shard in range(len(self.cache.manifest.shards)):
            if checks_all:
                self._check(shard)
            for group in range(self._open_once(shard).metadata.num_row_groups):
                statistics = self._statistics(shard, group, "source_file")
                if statistics is None or statistics.min <= name <= statistics.max:
                    files = self._read(shard, group, ["source_file"])["source_file"]
                    found += self._documents(shard, group, _numbers(pc.equal(files, pa.scalar(name))))
        return found

    def starts(self) -> Int[np.ndarray, " n"]:
        """The first token of every document, counted over all shards, and the number of all tokens at the end.

        Raises:
            DataError: the documents of a shard do not follow one another, or do not have all its tokens.
        """
        found: list[np.ndarray] = []
        for shard, written in enumerate(self.cache.manifest.shards):
            groups = range(self._open_once(shard).metadata.num_row_groups)
            tables = [self._read(shard, group, ["offset", "length"]) for group in groups]
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

    def _in_shard(self, shard: int, which: np.ndarray, begin: np.ndarray, end: np.ndarray) -> Iterator[Piece]:
        groups = self._group_firsts(shard)
        lows, highs = np.searchsorted(groups, begin, "right") - 1, np.searchsorted(groups, end, "left")
        wanted = sorted({group for low, high in zip(lows.tolist(), highs.tolist(), strict=True) for group in range(max(low, 0), high)})
        start = int(self.cache.starts[shard])
        for group in wanted:
            table = self._read(shard, group, COLUMNS)
            offsets, lengths = table["offset"].to_numpy(), table["length"].to_numpy()
            for asked in np.flatnonzero((lows <= group) & (group < highs)).tolist():
                low = int(np.searchsorted(offsets + lengths, begin[asked], "right"))
                high = int(np.searchsorted(offsets, end[asked], "left"))
                for at in range(low, high):
                    if lengths[at]:
                        document = self._located(shard, table, at)
                        first, stop = max(document.first, start + int(begin[asked])), document.first + document.length
                        yield Piece(int(which[asked]), document, first, min(stop, start + int(end[asked])))

    def _documents(self, shard: int, group: int, numbers: Sequence[int]) -> list[Located]:
        if not numbers:
            return []
        rows = self._read(shard, group, COLUMNS).take(pa.array(numbers)).to_pylist()
        start = int(self.cache.starts[shard])
        return [Located(row["id"], row["source_file"], start + row["offset"], row["length"], shard) for row in rows]

    def _located(self, shard: int, table: pa.Table, at: int) -> Located:
        first = int(self.cache.starts[shard]) + int(table["offset"][at].as_py())
        return Located(str(table["id"][at]), str(table["source_file"][at]), first, int(table["length"][at].as_py()), shard)

    def _read_group_firsts(self, shard: int) -> np.ndarray:
        firsts: list[int] = []
        for group in range(self._open_once(shard).metadata.num_row_groups):
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
        path = self.cache.folder / f"{self.cache.manifest.shards[shard].name}.parquet"
        try:
            if self.cache.is_local:
                return pq.ParquetFile(str(path), memory_map=True)
            return pq.ParquetFile(path.open("rb"), buffer_size=INDEX_BUFFER_BYTES, pre_buffer=False)
        except FileNotFoundError:
            raise _gone(path) from None
        except pa.ArrowInvalid as error:
            raise DataError(f"{path} does not read as Parquet: {error}. Delete its folder and run `phasewise data prepare`.") from None

    def _check(self, shard: int) -> None:
        if shard in self._checked:
            return
        written = self.cache.manifest.shards[shard]
        path = self.cache.folder / f"{written.name}.parquet"
        try:
            found = digest_of_file(path)
        except FileNotFoundError:
            raise _gone(path) from None
        if found != written.index_digest:
            raise DataError(
                f"{path} must have the digest {written.index_digest[:16]} that the manifest names, found {found[:16]}. Delete its folder "
                "and run `phasewise data prepare`."
            )
        self._checked.add(shard)


def _numbers(mask: pa.ChunkedArray | pa.BooleanArray) -> list[int]:
    return np.flatnonzero(np.asarray(mask)).tolist()


def _gone(path: Path) -> DataError:
    return DataError(f"the index of a shard is gone: {path}. Delete its folder and run `phasewise data prepare`.")


def _between(first: np.ndarray, last: np.ndarray) -> set[int]:
    wide = np.flatnonzero(last > first + 1)
    return {shard for number in wide for shard in range(int(first[number]) + 1, int(last[number]))}
