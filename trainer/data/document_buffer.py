"""Rows from a buffer of documents that each have a read head (RSDB; Trinity Large report, section 3.2), by random access.

A row takes a document of the buffer at random, copies from its head until the row is full or the document ends, and so on. Spent documents
leave the buffer. When `buffer_documents` are left, it is filled up to twice as many. Documents come in a keyed permutation.

Which tokens a row has depends on the lengths of the documents alone. So the buffer is played over lengths, and no token is read for it.
It is played from the nearest state that was kept. docs/decisions/0007-data-order.md has the reasons and the price.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import Component, DataOrder
from phasewise.trainer.data.cache import TokenCache, TokenRange
from phasewise.trainer.data.document_index import DocumentIndex
from phasewise.trainer.data.permutation import Permutation, derive_key

PASSES_KEPT = 2


class Pieces(NamedTuple):
    """Runs of tokens of one document in one row each, ordered by row and start; arrays with an entry each.

    Attributes:
        row: the row.
        start: where in the row it starts.
        first: its first token, counted over the whole cache.
        length: its tokens, at least one.
    """

    row: Int[np.ndarray, " p"]
    start: Int[np.ndarray, " p"]
    first: Int[np.ndarray, " p"]
    length: Int[np.ndarray, " p"]

    def of_row(self, row: int) -> "Pieces":
        """Those of one row."""
        inside = slice(*np.searchsorted(self.row, [row, row + 1]).tolist())
        return Pieces(*(column[inside] for column in self))


@dataclass
class _State:
    """The buffer between two pieces.

    Attributes:
        firsts, stops: of each document in the buffer, the token at its head and the one after its last.
        counts: live documents, documents taken from the stream, draws so far, the row that is being filled, and its tokens.
    """

    firsts: np.ndarray
    stops: np.ndarray
    counts: np.ndarray

    def copy(self) -> "_State":
        return _State(self.firsts.copy(), self.stops.copy(), self.counts.copy())


class DocumentBuffer:
    """The rows of one pass over a component's documents. Threads may share it.

    Args:
        starts: the first token of each document, and the number of all tokens: documents follow one another. Some may be empty.
        buffer_documents: at so many live documents the buffer is filled up to twice as many.
        stream: the order in which documents come.
        key: of the draws, from 0 up to, not including, 2^64.
    """

    def __init__(self, starts: Int[np.ndarray, " n"], *, seq_len: int, buffer_documents: int, stream: Permutation, key: int):
        self._starts, self._seq_len, self._stream, self._key = starts, seq_len, stream, key
        self._low = buffer_documents
        self.num_rows = int(starts[-1]) // seq_len
        capacity = min(2 * buffer_documents, stream.length)
        empty = _State(np.zeros(capacity, np.int64), np.zeros(capacity, np.int64), np.zeros(5, np.int64))
        self._states: dict[int, _State] = {0: empty}
        self._apart = 1
        self._next: tuple[int, _State] | None = None
        self._windows: OrderedDict[int, Pieces] = OrderedDict()
        self._lock = threading.Lock()

    def row(self, number: int) -> Pieces:
        """The pieces of a row of this pass.

        Raises:
            DataError: the pass has no such row.
        """
        if not 0 <= number < self.num_rows:
            raise DataError(f"a pass of {self.num_rows} rows has no row {number}.")
        with self._lock:
            return self._window(number // WINDOW_ROWS).of_row(number)

    def rows_of(self, tokens: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The row of this pass that has each of these tokens of the cache; -1 where none has. The whole pass is played for it."""
        order = np.argsort(tokens, kind="stable")
        ascending, found = np.asarray(tokens)[order], np.full(len(tokens), -1, np.int64)
        for number in range(-(-self.num_rows // WINDOW_ROWS)):
            with self._lock:
                pieces = self._window(number)
            begin = np.searchsorted(ascending, pieces.first, "left")
            counts = np.searchsorted(ascending, pieces.first + pieces.length, "left") - begin
            which = np.repeat(begin - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            found[order[which]] = np.repeat(pieces.row, counts)
        return found

    def pieces_of(self, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " p"], Pieces]:
        """The pieces that have tokens of these ranges `[first, stop)` of the cache, and the number of the range of each.

        The whole pass is played for it. A piece may have tokens of several ranges, and is then there for each; ranges may overlap.
        """
        order = np.argsort(first, kind="stable")
        order = order[np.asarray(stop)[order] > np.asarray(first)[order]]
        firsts, stops = np.asarray(first)[order], np.asarray(stop)[order]
        reached = np.maximum.accumulate(stops)
        which, found = [np.empty(0, np.int64)], [Pieces(*np.empty((4, 0), np.int64))]
        for number in range(-(-self.num_rows // WINDOW_ROWS) if len(firsts) else 0):
            with self._lock:
                pieces = self._window(number)
            begin = np.searchsorted(reached, pieces.first, "right")
            counts = np.maximum(np.searchsorted(firsts, pieces.first + pieces.length, "left") - begin, 0)
            piece = np.repeat(np.arange(len(counts)), counts)
            touching = np.repeat(begin - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            chosen = stops[touching] > pieces.first[piece]
            which.append(order[touching[chosen]])
            found.append(Pieces(*(column[piece[chosen]] for column in pieces)))
        return np.concatenate(which), Pieces(*np.concatenate(found, axis=1))

    def _window(self, number: int) -> Pieces:
        if number in self._windows:
            self._windows.move_to_end(number)
            return self._windows[number]
        at, state = self._state_before(number)
        pieces = self._play_window(at, state)
        for played in range(at + 1, number + 1):
            pieces = self._play_window(played, state)
        self._next = (number + 1, state)
        self._windows[number] = pieces
        if len(self._windows) > WINDOWS_KEPT:
            self._windows.popitem(last=False)
        return pieces

    def _state_before(self, window: int) -> tuple[int, _State]:
        kept = sorted(self._states)
        before = kept[bisect_right(kept, window) - 1]
        latest, self._next = self._next, None  # whoever plays on from it changes it
        if latest is not None and before <= latest[0] <= window:
            return latest
        return before, self._states[before].copy()

    def _play_window(self, window: int, state: _State) -> Pieces:
        self._keep(window, state)
        stop_row = min((window + 1) * WINDOW_ROWS, self.num_rows)
        fill = _compiled_fill()
        found: list[np.ndarray] = []
        while state.counts[ROW] < stop_row:
            if state.counts[LIVE] <= self._low:
                live, taken = int(state.counts[LIVE]), int(state.counts[TAKEN])
                while live < len(state.firsts) and taken < self._stream.length:
                    count = min(len(state.firsts) - live, self._stream.length - taken)
                    documents = self._stream(np.arange(taken, taken + count))
                    firsts, stops = self._starts[documents], self._starts[documents + 1]
                    whole = firsts < stops
                    added = int(whole.sum())
                    state.firsts[live : live + added], state.stops[live : live + added] = firsts[whole], stops[whole]
                    live, taken = live + added, taken + count
                state.counts[LIVE], state.counts[TAKEN] = live, taken
            out = np.empty((4, PIECES_AT_ONCE), np.int64)
            more = self._low if state.counts[TAKEN] < self._stream.length else 0
            pieces = fill(state.firsts, state.stops, state.counts, out, stop_row, self._seq_len, more, np.uint64(self._key))
            found.append(out[:, :pieces])
        return Pieces(*np.concatenate(found, axis=1))

    def _keep(self, window: int, state: _State) -> None:
        if window % self._apart or window in self._states:
            return
        self._states[window] = state.copy()
        if len(self._states) > MAX_STATES:
            self._apart *= 2
            self._states = {number: kept for number, kept in self._states.items() if number % self._apart == 0}


class BufferedComponent:
    """The rows of a component in the order in which they are drawn: position p is row p of the first pass, and so on through the passes.

    Raises:
        DataError: an index of the cache is not the one that was written, or the cache has no document.
    """

    def __init__(self, name: Component, cache: TokenCache, order: DataOrder, seq_len: int):
        self._name, self._cache, self._order, self._seq_len = name, cache, order, seq_len
        self._starts = DocumentIndex(cache).starts()
        if len(self._starts) < 2:
            raise DataError(f"component {name} must have a document, found none in {cache.folder}.")
        self.num_rows = cache.num_rows(seq_len)
        self.num_documents = len(self._starts) - 1
        self.of_pass = lru_cache(maxsize=PASSES_KEPT)(self._of_pass)

    def stream(self, epoch: int) -> Permutation:
        """The order in which the documents come to the buffer in a pass."""
        key = derive_key("documents", self._order.seed, self._name, epoch)
        return Permutation.build(self._order.permutation, length=self.num_documents, key=key)

    def read(
        self, positions: Int[np.ndarray, " n"], out: Int[np.ndarray, "b t"], begins: Bool[np.ndarray, "b t"], places: Int[np.ndarray, " n"]
    ) -> list[TokenRange]:
        """Fill `out[places]` with the rows at these positions, mark in `begins` where a document begins or goes on, and return what is
        still to be fetched."""
        ranges: list[TokenRange] = []
        for position, place in zip(positions.tolist(), places.tolist(), strict=True):
            epoch, number = divmod(position, self.num_rows)
            pieces = self.of_pass(epoch).row(number)
            begins[place, pieces.start] = True
            for start, first, length in zip(pieces.start.tolist(), pieces.first.tolist(), pieces.length.tolist(), strict=True):
                ranges += self._cache.read_piece(first, out[place, start : start + length])
        return ranges

    def _of_pass(self, epoch: int) -> DocumentBuffer:
        assert self._order.buffer_documents is not None
        return DocumentBuffer(
            self._starts,
            seq_len=self._seq_len,
            buffer_documents=self._order.buffer_documents,
            stream=self.stream(epoch),
            key=derive_key("buffer", self._order.seed, self._name, epoch),
        )


BUFFER_VERSION = 1

WINDOW_ROWS = 256
"""Rows are played so many at once."""

WINDOWS_KEPT = 32

MAX_STATES = 8
"""States kept of one pass. Where there are more, every second one goes."""

PIECES_AT_ONCE = 8192

LIVE, TAKEN, DRAWS, ROW, FILLED = range(5)


def draw(key: int, number: int, live: int) -> int:
    """Which of the live documents draw `number` takes, in plain integers: SplitMix64 (Steele, Lea and Flood, 2014) of a counter.

    Its upper 40 bits choose: for 2^24 documents, the most that a buffer has, no chance is off by more than one part in 2^16.
    """
    mask = 2**64 - 1
    mixed = (key + (number + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    mixed ^= mixed >> 31
    return ((mixed >> 24) * live) >> 40


def _fill(
    firsts: np.ndarray, stops: np.ndarray, counts: np.ndarray, out: np.ndarray, stop_row: int, seq_len: int, low: int, key: np.uint64
) -> int:
    """Draw and copy until `stop_row`, until `low` documents are left, or until `out` is full; the number of pieces written.

    `draw` is written out here in unsigned 64-bit numbers, which wrap around by themselves.
    """
    live, draws, row, filled = counts[0], counts[2], counts[3], counts[4]
    pieces = 0
    while row < stop_row and live > low and pieces < out.shape[1]:
        mixed = key + np.uint64(draws + 1) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        chosen = np.int64(((mixed >> np.uint64(24)) * np.uint64(live)) >> np.uint64(40))
        draws += 1
        length = min(seq_len - filled, stops[chosen] - firsts[chosen])
        out[0, pieces], out[1, pieces], out[2, pieces], out[3, pieces] = row, filled, firsts[chosen], length
        pieces += 1
        firsts[chosen] += length
        filled += length
        if firsts[chosen] == stops[chosen]:
            live -= 1
            firsts[chosen], stops[chosen] = firsts[live], stops[live]
        if filled == seq_len:
            row, filled = row + 1, 0
    counts[0], counts[2], counts[3], counts[4] = live, draws, row, filled
    return pieces


@cache
def _compiled_fill() -> Callable[..., int]:
    """Numba is imported only where a run has a buffer. What it compiles is kept for other processes, if there is a place for it.

    It looks whether this file has changed; `_fill` uses nothing of another.
    """
    import numba

    njit = cast(Any, numba.njit)  # pyright: ignore[reportUnknownMemberType]  # untyped
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}
    try:
        return njit(cache=True, **options)(_fill)
    except RuntimeError:
        return njit(**options)(_fill)
