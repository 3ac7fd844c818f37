"""The rows of a component that are drawn in any order, and which of their tokens are predicted: `chunk`, `pad` and `greedy`.

Every row is one run of the cache's tokens: packed rows too have documents that follow one another there. What is left of a packed row is
padding, and a document that is longer than a row is cut after its first `seq_len` tokens.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from phasewise.trainer.config import LossOn, PackingKind
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.document_index import DocumentIndex
from phasewise.trainer.data.packing import Packed, pack
from phasewise.trainer.data.segments import packed_segment_ids
from phasewise.trainer.data.shards import TokenRange
from phasewise.trainer.data.spans import answers_of, counted_in_rows

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
        """The piece with which each row begins."""
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
        """Of every row: what its documents have behind their first token."""
        plan, starts = self.plan, self.starts
        assert plan is not None
        assert starts is not None
        first, stop = starts[plan.document] + 1, starts[plan.document] + plan.length
        of_pieces = stop - first if self.spans is None else counted_before(self.spans, stop) - counted_before(self.spans, first)
        return np.bincount(plan.row, weights=of_pieces, minlength=self.num_rows).astype(np.int64)


def counted_before(spans: Int[np.ndarray, "n 2"], numbers: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    """How many tokens before each of these token numbers lie in a span."""
    if not len(spans):
        return np.zeros(np.shape(numbers), np.int64)
    lengths = spans[:, 1] - spans[:, 0]
    before = np.cumsum(lengths) - lengths
    last = np.searchsorted(spans[:, 0], numbers, "right") - 1
    within = np.clip(numbers - spans[last, 0], 0, lengths[last])
    return np.where(last < 0, 0, before[last] + within)
