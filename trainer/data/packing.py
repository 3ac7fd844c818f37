"""How documents become rows of one length: plans from the documents' lengths, without reading a token.

`chunk` concatenates all documents and cuts them into rows (Marin's pre-training). `pad` gives each document its own row (supervised
fine-tuning). `greedy` fills rows with whole documents in order (Trinity's fine-tuning).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Bool, Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import check_file
from phasewise.trainer.config import LossOn, PackingKind
from phasewise.trainer.data.cache import INDEX_BUFFER_BYTES, TokenCache, TokenRange
from phasewise.trainer.data.manifest import answers_of, counted_in_rows

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


PACKING_VERSION = 1  # to be raised when a plan changes for the same documents
Numbers = Int[np.ndarray, " n"]


class RowRule(NamedTuple):
    """How documents become rows, and which tokens are predicted."""

    packing: PackingKind = "chunk"
    loss_on: LossOn = "all"


PLAIN = RowRule()  # full rows, and every token after the first of a row is predicted


class DrawnRows(NamedTuple):
    """A number of rows of one length and packing that were drawn from a component."""

    sequences: int
    seq_len: int
    packing: PackingKind = "chunk"


@dataclass(frozen=True)
class Packed:
    """A plan of `pad` or `greedy`: arrays with one entry for each document with tokens, ordered by row and start."""

    row: Int[np.ndarray, " p"]
    start: Int[np.ndarray, " p"]  # offset in the row
    document: Int[np.ndarray, " p"]  # its number among the lengths
    length: Int[np.ndarray, " p"]  # its tokens in the row, at least one
    seq_len: int
    num_rows: int
    tokens_kept: int


class ComponentRows:
    """The rows of a component's cache. Packed rows need the documents' lengths.

    Raises DataError if an index of the cache was changed, or for a loss on answers of plain text.
    """

    def __init__(self, cache: TokenCache, rule: RowRule, seq_len: int, index: DocumentIndex | None = None):
        self.cache, self.rule, self.seq_len = cache, rule, seq_len
        self.num_rows = cache.num_rows(seq_len)
        self.plan: Packed | None = None
        self.starts: Numbers | None = None  # the first token of each document, and the number of all tokens
        if rule.packing != "chunk":
            self.starts = starts = (index or DocumentIndex(cache)).starts()
            self.plan = pack(rule.packing, np.diff(starts), seq_len=seq_len)
            self.num_rows = self.plan.num_rows
            begins = np.searchsorted(self.plan.row, np.arange(self.num_rows), "left")
            self._piece_firsts = starts[self.plan.document]
            self._firsts = self._piece_firsts[begins]
            self._used = np.add.reduceat(self.plan.length, begins) if self.num_rows else np.empty(0, np.int64)
        self.spans = answers_of(cache.manifest, cache.spans()) if rule.loss_on == "answers" else None

    def firsts(self, rows: Numbers) -> Numbers:
        """Return the first token of each of these rows, counted over the whole cache."""
        return np.asarray(rows, np.int64) * self.seq_len if self.plan is None else self._firsts[rows]

    def used(self, rows: Numbers) -> Numbers:
        """Return the number of tokens in each of these rows, without padding."""
        return np.full(len(rows), self.seq_len) if self.plan is None else self._used[rows]

    def between(self, first: int, stop: int) -> range:
        """Return the rows with any of the tokens `[first, stop)` of the cache."""
        if self.plan is None:
            return range(first // self.seq_len, max(first // self.seq_len, min(-(-stop // self.seq_len), self.num_rows)))
        begin = int(np.searchsorted(self._firsts + self._used, first, "right"))
        return range(begin, max(begin, int(np.searchsorted(self._firsts, stop, "left"))))

    def read(self, rows: Numbers, out: Int[np.ndarray, "b t"], places: Numbers) -> list[TokenRange]:
        """Fill `out[places]` with these rows, padded with the end-of-text token, and return the ranges to fetch from a store."""
        if self.plan is None:
            return self.cache.read_rows(rows, out, places)
        ranges: list[TokenRange] = []
        for first, length, place in zip(self.firsts(rows).tolist(), self.used(rows).tolist(), places.tolist(), strict=True):
            out[place, length:] = self.cache.manifest.end_of_text
            ranges += self.cache.read_piece(first, out[place, :length])
        return ranges

    def segment_ids(self, rows: Numbers) -> Int[np.ndarray, "n t"] | None:
        """Return 1, 2, … along each row, 0 for padding, as int32, or None for `chunk`, whose tokens show the documents."""
        if (plan := self.plan) is None:
            return None
        first, behind = np.searchsorted(plan.row, rows, "left"), np.searchsorted(plan.row, rows, "right")
        counts = behind - first
        row_of_piece = np.repeat(np.arange(len(rows)), counts)
        pieces = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        used = np.bincount(row_of_piece, weights=plan.length[pieces], minlength=len(rows))
        ids = np.zeros((len(rows), plan.seq_len), np.int32)
        ids[row_of_piece, plan.start[pieces]] = 1
        np.cumsum(ids, axis=1, out=ids)
        ids[np.arange(plan.seq_len) >= used[:, None]] = 0
        return ids

    def targets(self, rows: Numbers) -> Bool[np.ndarray, "n t"]:
        """Return whether each token of these rows is predicted, from the token before it: never a row's first token."""
        segments = self.segment_ids(rows)
        if segments is None:
            found = np.ones((len(rows), self.seq_len), bool)
        else:
            found = (segments != 0) & (segments == np.roll(segments, 1, axis=1))
        found[:, 0] = False
        return found if self.spans is None else found & counted_in_rows(self.spans, self.firsts(rows), self.seq_len)

    def targets_of(self, rows: Numbers) -> Numbers:
        """Return the number of predicted tokens in each of these rows, without reading a token."""
        firsts, length = (self.firsts(rows), self.seq_len) if self.plan is None else (self._piece_firsts, self.plan.length)
        begins, ends = firsts + 1, firsts + length
        counts = ends - begins if self.spans is None else counted_before(self.spans, ends) - counted_before(self.spans, begins)
        if self.plan is None:
            return counts
        return np.bincount(self.plan.row, weights=counts, minlength=self.num_rows).astype(np.int64)[rows]


def counted_before(spans: Int[np.ndarray, "n 2"], numbers: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    """Return how many tokens before each of these token numbers are in a span."""
    if not len(spans):
        return np.zeros(np.shape(numbers), np.int64)
    lengths = spans[:, 1] - spans[:, 0]
    before = np.cumsum(lengths) - lengths
    last = np.searchsorted(spans[:, 0], numbers, "right") - 1
    within = np.clip(numbers - spans[last, 0], 0, lengths[last])
    return np.where(last < 0, 0, before[last] + within)


def pack(kind: PackingKind, lengths: Int[np.ndarray, " n"], *, seq_len: int) -> Packed:
    """Lay documents of these lengths, in order, into rows of `seq_len` tokens.

    Each row has the first `seq_len` tokens of whole documents: of one for `pad`, of as many as fit for `greedy`.
    """
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any() or seq_len < 1:
        raise DataError(f"expected one length from 0 per document and seq_len from 1, found {lengths.dtype} {lengths} and {seq_len}.")
    lengths = lengths.astype(np.int64)
    document = np.flatnonzero(lengths)
    length = np.minimum(lengths[document], seq_len)
    begins = np.cumsum(length) - length
    row = np.arange(len(document))
    if kind == "greedy":
        next_row_at = np.searchsorted(begins + length, begins + seq_len, "right").tolist()
        starts_row = np.zeros(len(document), np.int64)
        first = 0
        while first < len(next_row_at):
            starts_row[first] = 1
            first = next_row_at[first]
        row = np.cumsum(starts_row) - 1
    start = begins - begins[np.searchsorted(row, row, "left")]
    return Packed(row, start, document, length, seq_len, int(row[-1]) + 1 if len(row) else 0, int(length.sum()))
