"""Rows from a buffer of documents with a read head each (RSDB, Trinity Large report, section 3.2), by random access.

A row takes a random document of the buffer, copies from its head until the row is full or the document ends, and repeats. When
`buffer_documents` are left, the buffer is filled up to twice as many. It is simulated over the documents' lengths, without reading a token
(docs/decisions/0007-data-order.md). Each component has a buffer, or the mixed stream of all components has one.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import Component, DataOrder
from phasewise.trainer.data.cache import TokenCache, TokenRange
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.packing import DocumentIndex
from phasewise.trainer.data.permutation import Permutation, derive_key

BUFFER_VERSION = 1
PASSES_KEPT = 2
WINDOW_ROWS = 256  # number of rows that are simulated together
WINDOWS_KEPT = 32
MAX_STATES = 8  # states kept of one pass. If there are more, every second one is dropped
PIECES_AT_ONCE = 8192
SEQUENCES_AT_ONCE = 256  # of a mixture, whose documents enter together at most
LIVE, TAKEN, DRAWS, ROW, FILLED = range(5)


class Pieces(NamedTuple):
    """Runs of tokens of one document in one row each, ordered by row and start: arrays with an entry each."""

    row: Int[np.ndarray, " p"]
    start: Int[np.ndarray, " p"]  # offset in the row
    first: Int[np.ndarray, " p"]  # the first token, counted over the whole cache
    length: Int[np.ndarray, " p"]  # number of tokens, at least one


class _State(NamedTuple):
    """The buffer between two pieces. The simulation changes the arrays."""

    firsts: np.ndarray  # of each document in the buffer, the token at its head and the token after its last
    stops: np.ndarray
    counts: np.ndarray  # live documents, documents taken from the stream, draws so far, the current row, and its tokens so far


class DocumentBuffer:
    """The rows of one pass over a component's documents. Threads may share it.

    Args:
        starts: the first token of each document, and the number of all tokens: documents follow one another. Some may be empty.
        stream: the order in which documents enter the buffer.
    """

    def __init__(self, starts: Int[np.ndarray, " n"], *, seq_len: int, buffer_documents: int, stream: Permutation, key: int):
        self.stream = stream
        self._starts, self._seq_len, self._key = starts, seq_len, key
        self._low = buffer_documents
        self.num_rows = int(starts[-1]) // seq_len
        self._begin(length=stream.length, capacity=min(2 * buffer_documents, stream.length))

    def _begin(self, *, length: int, capacity: int, spare: int = 0) -> None:
        self._length, self._capacity = length, capacity  # entries of the stream, and documents of a full buffer
        empty = _State(np.zeros(capacity + spare, np.int64), np.zeros(capacity + spare, np.int64), np.zeros(5, np.int64))
        self._states: dict[int, _State] = {0: empty}
        self._windows_between_states = 1
        self._next: tuple[int, _State] | None = None
        self._windows: OrderedDict[int, Pieces] = OrderedDict()
        self._lock = threading.Lock()

    def row(self, number: int) -> Pieces:
        """Return the pieces of a row of this pass, from 0 to `num_rows` - 1. Raises DataError for another row."""
        if not 0 <= number < self.num_rows:
            raise DataError(f"a pass of {self.num_rows} rows has no row {number}.")
        with self._lock:
            window = self._window(number // WINDOW_ROWS)
        inside = slice(*np.searchsorted(window.row, [number, number + 1]).tolist())
        return Pieces(*(column[inside] for column in window))

    def pieces_of(self, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " p"], Pieces]:
        """Return the pieces with tokens of the ranges `[first, stop)`, and their range numbers. Ranges may overlap. Simulates the pass."""
        order = np.argsort(first, kind="stable")
        order = order[np.asarray(stop)[order] > np.asarray(first)[order]]
        firsts, stops = np.asarray(first)[order], np.asarray(stop)[order]
        reached = np.maximum.accumulate(stops)
        which, found = [np.empty(0, np.int64)], [Pieces(*np.empty((4, 0), np.int64))]
        for number in range(-(-self.num_rows // WINDOW_ROWS) if len(firsts) else 0):
            with self._lock:
                pieces = self._window(number)
            begins = pieces.first % self._starts[-1]
            begin = np.searchsorted(reached, begins, "right")
            counts = np.maximum(np.searchsorted(firsts, begins + pieces.length, "left") - begin, 0)
            piece = np.repeat(np.arange(len(counts)), counts)
            touching = np.repeat(begin - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            chosen = stops[touching] > begins[piece]
            which.append(order[touching[chosen]])
            found.append(Pieces(*(column[piece[chosen]] for column in pieces)))
        return np.concatenate(which), Pieces(*np.concatenate(found, axis=1))

    def _window(self, number: int) -> Pieces:
        if number in self._windows:
            self._windows.move_to_end(number)
            return self._windows[number]
        kept = sorted(self._states)
        at = kept[bisect_right(kept, number) - 1]
        latest, self._next = self._next, None  # the simulation below changes this state in place
        if latest is not None and at <= latest[0] <= number:
            at, state = latest
        else:
            state = deepcopy(self._states[at])
        pieces = self._simulate(at, state)
        for window in range(at + 1, number + 1):
            pieces = self._simulate(window, state)
        self._next = (number + 1, state)
        self._windows[number] = pieces
        if len(self._windows) > WINDOWS_KEPT:
            self._windows.popitem(last=False)
        return pieces

    def _simulate(self, window: int, state: _State) -> Pieces:
        """Return a window's pieces and advance the state to the window's end."""
        if window % self._windows_between_states == 0 and window not in self._states:
            self._states[window] = deepcopy(state)
            if len(self._states) > MAX_STATES:
                self._windows_between_states *= 2
                self._states = {at: kept for at, kept in self._states.items() if at % self._windows_between_states == 0}
        stop_row = min((window + 1) * WINDOW_ROWS, self.num_rows)
        fill = _compiled_fill()
        found: list[np.ndarray] = []
        while state.counts[ROW] < stop_row:
            live, taken = int(state.counts[LIVE]), int(state.counts[TAKEN])
            is_low = live <= self._low
            while is_low and live < self._capacity and taken < self._length:
                firsts, stops, taken = self._enter(taken, self._capacity - live)
                has_tokens = firsts < stops
                added = int(has_tokens.sum())
                state.firsts[live : live + added], state.stops[live : live + added] = firsts[has_tokens], stops[has_tokens]
                live += added
            state.counts[LIVE], state.counts[TAKEN] = live, taken
            out = np.empty((4, PIECES_AT_ONCE), np.int64)
            low = self._low if taken < self._length else 0
            pieces = fill(state.firsts, state.stops, state.counts, out, stop_row, self._seq_len, low, np.uint64(self._key))
            found.append(out[:, :pieces])
        return Pieces(*np.concatenate(found, axis=1))

    def _enter(self, taken: int, room: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the first tokens and ends of the next documents of the stream, and the number of entries taken since its start."""
        entered = min(taken + room, self._length)
        documents = self.stream(np.arange(taken, entered))
        return self._starts[documents], self._starts[documents + 1], entered


class BufferedMixture(DocumentBuffer):
    """The rows of a phase from one buffer over the mixed stream of documents. Row 0 is the phase's first sequence.

    A document enters the stream at the sequence of the mixture that its first token falls into, so the stream has the mixture's shares, in
    every block, and a row has tokens of several components. The phase begins with an empty buffer. A token's number counts the tokens of
    all components in the order of their names, and of all earlier passes: `split` gives component, pass and token of the cache.
    """

    def __init__(self, schedule: MixtureSchedule, caches: Mapping[Component, TokenCache], seq_len: int, start_step: int, stop_step: int):
        self._schedule, self._order, self.first = schedule, schedule.order, schedule.sequences_before(start_step)
        self._numbers = {schedule.components().index(name): number for number, name in enumerate(sorted(caches))}
        self._caches = [caches[name] for name in sorted(caches)]
        self._starts_of = [DocumentIndex(cache).starts() for cache in self._caches]
        self._bases = np.cumsum([0, *(starts[-1] for starts in self._starts_of)])  # the first token of each component, and all tokens
        self._key, self._seq_len = derive_key("buffer", self._order.seed, "mixture", self.first), seq_len
        self._starts = self._bases[-1:]
        self._low = self._order.buffer_documents or 0
        self.num_rows = schedule.sequences_before(stop_step) - self.first
        self.stream_of = lru_cache(maxsize=PASSES_KEPT * len(self._caches))(self._stream_of)
        self._begin(length=2**62, capacity=2 * self._low, spare=2 * seq_len)  # spare: a row's documents enter together

    def split(self, pieces: Pieces) -> tuple[np.ndarray, np.ndarray, Pieces]:
        """Return number of the component in the schedule, number of earlier passes, and the piece with its token of the cache."""
        epochs, firsts = np.divmod(pieces.first, self._bases[-1])
        components = np.searchsorted(self._bases, firsts, "right") - 1
        return np.array(list(self._numbers))[components], epochs, pieces._replace(first=firsts - self._bases[components])

    def pieces_in(self, component: int, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray, Pieces]:
        """Return the pieces with tokens `[first, stop)` of a component's cache, their range numbers and passes. Simulates the phase."""
        base = self._bases[self._numbers[component]]
        which, pieces = self.pieces_of(first + base, stop + base)
        _, epochs, pieces = self.split(pieces)
        return which, epochs, pieces

    def read(self, rows: Int[np.ndarray, " n"], out: Int[np.ndarray, "b t"], begins: Bool[np.ndarray, "b t"]) -> list[TokenRange]:
        """Fill `out` with these rows, mark in `begins` each first token of a piece, and return the ranges to fetch from a store."""
        ranges: list[TokenRange] = []
        for place, row in enumerate(rows.tolist()):
            components, _, pieces = self.split(self.row(row))
            begins[place, pieces.start] = True
            for component, start, first, length in zip(components.tolist(), *(one.tolist() for one in pieces[1:]), strict=True):
                ranges += self._caches[self._numbers[component]].read_piece(first, out[place, start : start + length])
        return ranges

    def _stream_of(self, component: int, epoch: int) -> tuple[Permutation, np.ndarray, np.ndarray]:
        """Return the order of a component's documents in a pass, their numbers, and the first token of each in that order."""
        starts, name = self._starts_of[self._numbers[component]], self._schedule.components()[component]
        key = derive_key("documents", self._order.seed, name, epoch)
        order = Permutation(self._order.permutation, length=len(starts) - 1, key=key)
        documents = order(np.arange(len(starts) - 1))
        lengths = np.diff(starts)[documents]
        return order, documents, np.cumsum(lengths) - lengths

    def _enter(self, taken: int, room: int) -> tuple[np.ndarray, np.ndarray, int]:
        components, positions = self._schedule.draw(self.first + taken, self.first + taken + SEQUENCES_AT_ONCE)
        found = [np.empty((3, 0), np.int64)]
        for component in np.unique(components).tolist():
            number = self._numbers[component]
            rows = int(self._starts_of[number][-1]) // self._seq_len
            epochs, drawn = np.divmod(positions, rows)
            for epoch in np.unique(epochs[components == component]).tolist():
                places = np.flatnonzero((components == component) & (epochs == epoch))
                _, documents, begins = self.stream_of(component, epoch)
                low = np.searchsorted(begins, drawn[places] * self._seq_len)
                high = np.searchsorted(begins, (drawn[places] + 1) * self._seq_len)
                counts = np.where(drawn[places] == rows - 1, len(begins), high) - low  # a pass's last row has its last documents
                chosen = documents[np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())]
                base = self._bases[number] + epoch * self._bases[-1]
                spans = self._starts_of[number][chosen] + base, self._starts_of[number][chosen + 1] + base
                found.append(np.stack([np.repeat(places, counts), *spans]))
        places, firsts, stops = np.concatenate(found, axis=1)
        in_order = np.argsort(places, kind="stable")
        in_order = in_order[firsts[in_order] < stops[in_order]]  # empty documents need no room
        places = places[in_order]
        sequences = int(places[room - 1]) + 1 if len(places) >= room else SEQUENCES_AT_ONCE
        entering = in_order[places < sequences]
        return firsts[entering], stops[entering], taken + sequences


class BufferedComponent:
    """The rows of a component in the order of training: position p is row p of the first pass, then of the second, and so on."""

    def __init__(self, name: Component, cache: TokenCache, order: DataOrder, seq_len: int):
        self._name, self._cache, self._order, self._seq_len = name, cache, order, seq_len
        self._starts = DocumentIndex(cache).starts()
        if len(self._starts) < 2:
            raise DataError(f"component {name} must have a document, found none in {cache.folder}.")
        self.num_rows = cache.num_rows(seq_len)
        self.num_documents = len(self._starts) - 1
        self.of_pass = lru_cache(maxsize=PASSES_KEPT)(self._of_pass)

    def read(
        self, positions: Int[np.ndarray, " n"], out: Int[np.ndarray, "b t"], begins: Bool[np.ndarray, "b t"], places: Int[np.ndarray, " n"]
    ) -> list[TokenRange]:
        """Fill `out[places]` with the rows at these positions, mark in `begins` each first token of a piece, and return the ranges to fetch
        from a store."""
        ranges: list[TokenRange] = []
        for position, place in zip(positions.tolist(), places.tolist(), strict=True):
            epoch, number = divmod(position, self.num_rows)
            pieces = self.of_pass(epoch).row(number)
            begins[place, pieces.start] = True
            for start, first, length in zip(pieces.start.tolist(), pieces.first.tolist(), pieces.length.tolist(), strict=True):
                ranges += self._cache.read_piece(first, out[place, start : start + length])
        return ranges

    def _of_pass(self, epoch: int) -> DocumentBuffer:
        seed, buffer_documents = self._order.seed, self._order.buffer_documents
        assert buffer_documents is not None
        key = derive_key("documents", seed, self._name, epoch)
        stream = Permutation(self._order.permutation, length=self.num_documents, key=key)
        key = derive_key("buffer", seed, self._name, epoch)
        return DocumentBuffer(self._starts, seq_len=self._seq_len, buffer_documents=buffer_documents, stream=stream, key=key)


def _fill(
    firsts: np.ndarray, stops: np.ndarray, counts: np.ndarray, out: np.ndarray, stop_row: int, seq_len: int, low: int, key: np.uint64
) -> int:
    """Draw and copy until `stop_row`, until `low` documents are left, or until `out` is full, and return the number of pieces.

    A draw is SplitMix64 (Steele, Lea and Flood, 2014) of a counter, in unsigned 64-bit numbers that wrap around. Its upper 40 bits choose:
    for 2^24 documents, the largest buffer, no chance is off by more than one part in 2^16.
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
    """Import Numba only for a run with a buffer, and cache the compiled code for other processes if the disk allows.

    Numba's cache depends on this file only. So `_fill` must use nothing of another file.
    """
    import numba

    njit = cast(Any, numba.njit)  # pyright: ignore[reportUnknownMemberType]  # untyped
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}
    try:
        return njit(cache=True, **options)(_fill)
    except RuntimeError:
        return njit(**options)(_fill)
