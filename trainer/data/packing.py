"""How documents are laid into rows of one length: plans over the documents' lengths alone, which touch no token.

`chunk` concatenates all documents and cuts the whole into rows (Marin's pre-training). `pad` gives each document a row of its own
(supervised fine-tuning). `greedy` fills rows with whole documents in their order (Trinity's fine-tuning).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import LossOn, PackingKind
from phasewise.trainer.data.cache import TokenCache, TokenRange
from phasewise.trainer.data.document_index import DocumentIndex
from phasewise.trainer.data.manifest import answers_of, counted_in_rows

Numbers = Int[np.ndarray, " n"]


class RowRule(NamedTuple):
    """How documents become rows, and what of them is predicted."""

    packing: PackingKind = "chunk"
    loss_on: LossOn = "all"

    @property
    def chooses_targets(self) -> bool:
        """Whether not every token behind the first of a row is predicted."""
        return self != PLAIN


PLAIN = RowRule()
"""Full rows, every token."""


class DrawnRows(NamedTuple):
    """Rows of one kind that were drawn of a component: how many, of how many tokens, and how documents became them."""

    sequences: int
    seq_len: int
    packing: PackingKind = "chunk"

    @property
    def places(self) -> int:
        """Tokens that they have room for. Where documents are cut into full rows, each holds one."""
        return self.sequences * self.seq_len


class RowsOfTokens:
    """Where the rows of a cache lie. Rows of `chunk` are not listed; of packed ones the documents' lengths are read once, digests checked.

    Raises:
        DataError: an index of the cache is not the one that was written.
    """

    def __init__(self, cache: TokenCache, packing: PackingKind, seq_len: int, index: DocumentIndex | None = None):
        self.cache, self.packing, self.seq_len = cache, packing, seq_len
        self.starts = None if packing == "chunk" else (index or DocumentIndex(cache)).starts()
        """The first token of each document, and the number of all tokens; None where documents do not decide where rows begin."""
        self.plan: Packed | None = None if self.starts is None else pack(packing, np.diff(self.starts), seq_len=seq_len)
        self.num_rows = cache.num_rows(seq_len) if self.plan is None else self.plan.num_rows

    def firsts(self, rows: Numbers) -> Numbers:
        """The first token of each of these rows, counted over the whole cache."""
        return np.asarray(rows, np.int64) * self.seq_len if self.plan is None else self._firsts[rows]

    def used(self, rows: Numbers) -> Numbers:
        """How many tokens each of these rows has; what is left is padding."""
        return np.full(len(rows), self.seq_len) if self.plan is None else self._used[rows]

    def between(self, first: int, stop: int) -> range:
        """The rows that have any of the tokens `[first, stop)` of the cache."""
        if self.plan is None:
            return range(first // self.seq_len, max(first // self.seq_len, min(-(-stop // self.seq_len), self.num_rows)))
        begin = int(np.searchsorted(self._firsts + self._used, first, "right"))
        return range(begin, max(begin, int(np.searchsorted(self._firsts, stop, "left"))))

    def read(self, rows: Numbers, out: Int[np.ndarray, "b t"], places: Numbers) -> list[TokenRange]:
        """Fill `out[places]` with these rows, padding with the token that ends a text, and return what is still to be fetched."""
        if self.plan is None:
            return self.cache.read_rows(rows, out, places)
        ranges: list[TokenRange] = []
        for first, length, place in zip(self.firsts(rows).tolist(), self.used(rows).tolist(), places.tolist(), strict=True):
            out[place, length:] = self.cache.manifest.end_of_text
            ranges += self.cache.read_piece(first, out[place, :length])
        return ranges

    @cached_property
    def _begins(self) -> Numbers:
        assert self.plan is not None
        return np.searchsorted(self.plan.row, np.arange(self.num_rows), "left")

    @cached_property
    def _firsts(self) -> Numbers:
        assert self.plan is not None
        assert self.starts is not None
        return self.starts[self.plan.document[self._begins]]

    @cached_property
    def _used(self) -> Numbers:
        assert self.plan is not None
        return np.add.reduceat(self.plan.length, self._begins) if self.num_rows else np.empty(0, np.int64)


class ComponentRows(RowsOfTokens):
    """The rows of a component as a phase trains on them.

    Raises:
        DataError: as `RowsOfTokens`; or answers are to be predicted and the cache is of plain text.
    """

    def __init__(self, cache: TokenCache, rule: RowRule, seq_len: int):
        super().__init__(cache, rule.packing, seq_len)
        self.rule = rule
        self.spans = answers_of(cache.manifest, cache.spans()) if rule.loss_on == "answers" else None

    def segment_ids(self, rows: Numbers) -> Int[np.ndarray, "n t"] | None:
        """1, 2, … along each row, 0 for padding; None where the tokens themselves show the documents."""
        return None if self.plan is None else packed_segment_ids(self.plan, rows)

    def targets(self, rows: Numbers) -> Bool[np.ndarray, "n t"]:
        """Which tokens of these rows are predicted, each from the one before it: never the first of a row."""
        if self.plan is None:
            found = np.ones((len(rows), self.seq_len), bool)
            found[:, 0] = False
        else:
            segments = packed_segment_ids(self.plan, rows)
            found = (segments != 0) & (segments == np.roll(segments, 1, axis=1))
            found[:, 0] = False
        return found if self.spans is None else found & counted_in_rows(self.spans, self.firsts(rows), self.seq_len)

    def targets_of(self, rows: Numbers) -> Numbers:
        """How many tokens of each of these rows are predicted. No token is read for it."""
        if self.plan is None:
            first, stop = self.firsts(rows) + 1, self.firsts(rows) + self.seq_len
            return stop - first if self.spans is None else counted_before(self.spans, stop) - counted_before(self.spans, first)
        return self._targets_of_packed[rows]

    @cached_property
    def _targets_of_packed(self) -> Numbers:
        plan, starts = self.plan, self.starts
        assert plan is not None
        assert starts is not None
        first, stop = starts[plan.document] + 1, starts[plan.document] + plan.length
        of_pieces = stop - first if self.spans is None else counted_before(self.spans, stop) - counted_before(self.spans, first)
        return np.bincount(plan.row, weights=of_pieces, minlength=self.num_rows).astype(np.int64)


PACKING_VERSION = 1
"""Raised where a plan lays the same documents otherwise."""


@dataclass(frozen=True)
class Packed:
    """A plan. Its arrays have one entry a piece, which is a run of one document's tokens in one row; they are ordered by row and start.

    Attributes:
        row: which row the piece lies in, from 0.
        start: where in the row it starts.
        document: which document it is of, by its place among the lengths. Documents without tokens have no piece.
        offset: where in the document it starts.
        length: its tokens, at least one.
        tokens_cut: tokens of the documents that are in no row.
        tokens_padding: places in the rows that hold no token; they come after the row's last piece.
    """

    row: Int[np.ndarray, " p"]
    start: Int[np.ndarray, " p"]
    document: Int[np.ndarray, " p"]
    offset: Int[np.ndarray, " p"]
    length: Int[np.ndarray, " p"]
    seq_len: int
    num_rows: int
    tokens_kept: int
    tokens_cut: int
    tokens_padding: int


def counted_before(spans: Int[np.ndarray, "n 2"], numbers: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    """How many tokens before each of these token numbers lie in a span."""
    if not len(spans):
        return np.zeros(np.shape(numbers), np.int64)
    lengths = spans[:, 1] - spans[:, 0]
    before = np.cumsum(lengths) - lengths
    last = np.searchsorted(spans[:, 0], numbers, "right") - 1
    within = np.clip(numbers - spans[last, 0], 0, lengths[last])
    return np.where(last < 0, 0, before[last] + within)


def segment_ids(tokens: Int[np.ndarray, "b t"], begin_of_text: int) -> Int[np.ndarray, "b t"]:
    """1, 2, … along each row: a segment starts at each begin-of-text token and at the row's start, where a document may go on. int32.

    Rows are full of tokens here. For rows with padding, which tokens alone do not show, use `packed_segment_ids`.
    """
    begins = tokens == begin_of_text
    ids = np.cumsum(begins, axis=1, dtype=np.int32)
    ids += ~begins[:, :1]
    return ids


def packed_segment_ids(packed: Packed, rows: Int[np.ndarray, " b"]) -> Int[np.ndarray, "b t"]:
    """The same for some rows of a packing plan, from its pieces: 1, 2, … along each row, and 0 for padding. int32."""
    first, behind = np.searchsorted(packed.row, rows, "left"), np.searchsorted(packed.row, rows, "right")
    counts = behind - first
    asked = np.repeat(np.arange(len(rows)), counts)
    pieces = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    used = np.bincount(asked, weights=packed.length[pieces], minlength=len(rows))
    ids = np.zeros((len(rows), packed.seq_len), np.int32)
    ids[asked, packed.start[pieces]] = 1
    np.cumsum(ids, axis=1, out=ids)
    ids[np.arange(packed.seq_len) >= used[:, None]] = 0
    return ids


def positions(segment_ids: Int[np.ndarray, "b t"]) -> Int[np.ndarray, "b t"]:
    """0, 1, 2, … within each segment; padding (segment 0) is at 0. int32."""
    place = np.arange(segment_ids.shape[1], dtype=np.int32)
    begins = np.ones(segment_ids.shape, bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    within = place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    within[segment_ids == 0] = 0
    return within


def pack(kind: PackingKind, lengths: Int[np.ndarray, " n"], *, seq_len: int) -> Packed:
    """Lay documents of these lengths, in their order, into rows of `seq_len` tokens.

    Args:
        kind: `chunk` splits documents where a row ends and leaves out the last row if it is not full; `pad` and `greedy` keep the first
            `seq_len` tokens of a document and never split it; `greedy` starts a row where the next document does not fit.
        lengths: tokens of each document, 0 allowed.
    """
    lengths = np.asarray(lengths)
    if seq_len < 1:
        raise DataError(f"Rows need a length of at least one token, found seq_len {seq_len}.")
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        raise DataError(
            f"Packing needs one integer from 0 on per document, found {lengths.dtype} of shape {lengths.shape}"
            + (f" with a least value of {lengths.min()}: these are no lengths." if lengths.size else ".")
        )
    return {"chunk": _chunk, "pad": _pad, "greedy": _greedy}[kind](lengths.astype(np.int64), seq_len)


def _chunk(lengths: np.ndarray, seq_len: int) -> Packed:
    ends = np.cumsum(lengths)
    total = int(lengths.sum())
    num_rows = total // seq_len
    kept = num_rows * seq_len
    begins = ends - lengths
    place = np.sort(np.concatenate([begins[begins < kept], np.arange(num_rows) * seq_len]), kind="stable")  # merges two sorted runs
    place = place[np.diff(place, prepend=-1) > 0]
    document = np.searchsorted(ends, place, "right")
    return Packed(
        row=place // seq_len,
        start=place % seq_len,
        document=document,
        offset=place - begins[document],
        length=np.diff(place, append=kept),
        seq_len=seq_len,
        num_rows=num_rows,
        tokens_kept=kept,
        tokens_cut=total - kept,
        tokens_padding=0,
    )


def _pad(lengths: np.ndarray, seq_len: int) -> Packed:
    document = np.flatnonzero(lengths)
    return _whole(lengths, document, np.arange(len(document)), seq_len)


def _greedy(lengths: np.ndarray, seq_len: int) -> Packed:
    document = np.flatnonzero(lengths)
    length = np.minimum(lengths[document], seq_len)
    ends = np.cumsum(length)
    following = np.searchsorted(ends, ends - length + seq_len, "right").tolist()
    starts_row = np.zeros(len(document), np.int64)
    first = 0
    while first < len(following):
        starts_row[first] = 1
        first = following[first]
    return _whole(lengths, document, np.cumsum(starts_row) - 1, seq_len)


def _whole(lengths: np.ndarray, document: np.ndarray, row: np.ndarray, seq_len: int) -> Packed:
    length = np.minimum(lengths[document], seq_len)
    begins = np.cumsum(length) - length
    first_of_row = np.searchsorted(row, row, "left")
    num_rows, kept = int(row[-1]) + 1 if len(row) else 0, int(length.sum())
    return Packed(
        row=row,
        start=begins - begins[first_of_row],
        document=document,
        offset=np.zeros_like(document),
        length=length,
        seq_len=seq_len,
        num_rows=num_rows,
        tokens_kept=kept,
        tokens_cut=int(lengths.sum()) - kept,
        tokens_padding=num_rows * seq_len - kept,
    )
