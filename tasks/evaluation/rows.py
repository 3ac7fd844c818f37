"""Windows of tokens laid into rows: what two of them have in common at their beginning is in the row once, and is computed once.

Windows are sorted by their tokens, so that those with a common beginning are neighbours: the choices of an item behind its question, the
items of a benchmark behind its examples. Nothing has to say which belong together.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

MIN_LONGEST_ROW_TOKENS, MIN_ROW_TOKENS = 512, 256
STEPS_BETWEEN_ROWS = 4
MAX_ROW_LENGTHS = 3
MIN_WINDOWS_A_ROW = 3
"""A row is at least so many times as long as its windows, where there is such a row: so little of it stays empty."""


class Window(NamedTuple):
    """What the model reads, at most `seq_len` tokens, and the tokens that follow its last positions: one target each, at most all."""

    inputs: np.ndarray
    targets: np.ndarray


class Place(NamedTuple):
    """A window's targets: in which row, and the number of the first of them among the row's."""

    row: int
    first: int


class Rows:
    """Rows of one length, filled one after the other. A slot that no window fills sees itself alone.

    Attributes:
        length: slots of a row; also the most targets of one.
        places: the number of a window → its place.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.places: dict[int, Place] = {}
        self._rows: list[_Row] = []

    def put(self, number: int, window: Window) -> None:
        """Put a window behind the one before it, from where they differ; or into a new row, where this one has no room left."""
        if not self._rows or not self._rows[-1].has_room(window):
            self._rows.append(_Row(self.length))
        self.places[number] = Place(len(self._rows) - 1, self._rows[-1].put(window))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def filled_tokens(self) -> int:
        """Tokens that are computed, without the slots that stay empty."""
        return sum(row.filled for row in self._rows)

    def num_targets(self, rows: slice) -> int:
        """The most targets that one of these rows has."""
        return max(row.num_targets for row in self._rows[rows])

    def arrays(self, rows: slice, count: int) -> "RowArrays":
        """These rows, and empty ones behind them up to `count`: every batch has the compiled shape."""
        chosen = [*self._rows[rows], *(_Row(self.length) for _ in range(count - len(self._rows[rows])))]
        return RowArrays(*(np.stack(parts) for parts in zip(*(row.finished() for row in chosen), strict=True)))


class RowArrays(NamedTuple):
    """Rows as the model takes them: `trainer.kernels.branches.Branches` says what `ends` and `positions` mean.

    Attributes:
        slots: for each target the slot that it follows; 0 behind the last.
    """

    tokens: Int[np.ndarray, "r t"]
    ends: Int[np.ndarray, "r t"]
    positions: Int[np.ndarray, "r t"]
    slots: Int[np.ndarray, "r t"]
    targets: Int[np.ndarray, "r t"]


class _Row:
    """One row. `path` is the window that was put last: its tokens, and the slot of each."""

    def __init__(self, length: int) -> None:
        self.filled = 0
        self.num_targets = 0
        self._arrays = RowArrays(*(np.zeros(length, np.int32) for _ in RowArrays._fields))
        self._arrays.ends[:] = np.arange(1, length + 1)
        self._path_tokens = np.empty(0, np.int32)
        self._path_slots = np.empty(0, np.int32)

    def has_room(self, window: Window) -> bool:
        """Whether what is new of it fits, and its targets."""
        room = len(self._arrays.tokens)
        new = len(window.inputs) - self._shared(window)
        return self.filled + new <= room and self.num_targets + len(window.targets) <= room

    def put(self, window: Window) -> int:
        """The number of its first target."""
        shared = self._shared(window)
        self._close(shared)
        new = np.arange(self.filled, self.filled + len(window.inputs) - shared, dtype=np.int32)
        slots = np.concatenate([self._path_slots[:shared], new])
        self._arrays.tokens[new] = window.inputs[shared:]
        self._arrays.positions[new] = np.arange(shared, len(window.inputs))
        first, count = self.num_targets, len(window.targets)
        self._arrays.slots[first : first + count] = slots[len(slots) - count :]
        self._arrays.targets[first : first + count] = window.targets
        self.filled += len(new)
        self.num_targets += count
        self._path_tokens, self._path_slots = window.inputs, slots
        return first

    def finished(self) -> RowArrays:
        """The row as it is now."""
        self._close(0)
        return self._arrays

    def _close(self, depth: int) -> None:
        """What is deeper in the tree than this goes on no further: what comes next does not see it."""
        self._arrays.ends[self._path_slots[depth:]] = self.filled

    def _shared(self, window: Window) -> int:
        """How many tokens it has in common with the window before it."""
        length = min(len(window.inputs), len(self._path_tokens))
        differ = np.flatnonzero(window.inputs[:length] != self._path_tokens[:length])
        return int(differ[0]) if len(differ) else length


def lay_out(windows: Sequence[Window], seq_len: int) -> list[Rows]:
    """Every window in a row, the shortest rows first. The layout depends on the windows alone, not on their order."""
    lengths = row_lengths(seq_len)
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for number, window in enumerate(windows):
        by_length[_fitting(len(window.inputs), lengths)].append(number)
    return [_filled(length, by_length[length], windows) for length in sorted(by_length)]


def row_lengths(seq_len: int) -> list[int]:
    """The few lengths that rows have, the shortest first: each is compiled once. A row may be longer than what the model sees."""
    longest = max(seq_len, MIN_LONGEST_ROW_TOKENS)
    lengths = [-(-longest // STEPS_BETWEEN_ROWS**step) for step in range(MAX_ROW_LENGTHS)]
    return sorted(length for length in lengths if length >= MIN_ROW_TOKENS)


def in_batches(total: int, size: int) -> Iterator[slice]:
    """Slices of `size`; the last may be shorter."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def _fitting(num_tokens: int, lengths: Sequence[int]) -> int:
    return next((length for length in lengths if length >= MIN_WINDOWS_A_ROW * num_tokens), lengths[-1])


def _filled(length: int, numbers: Sequence[int], windows: Sequence[Window]) -> Rows:
    rows = Rows(length)
    for number in sorted(numbers, key=lambda number: (_sortable(windows[number]), number)):
        rows.put(number, windows[number])
    return rows


def _sortable(window: Window) -> tuple[bytes, bytes]:
    """Bytes in the order of the tokens."""
    return window.inputs.astype(">u4").tobytes(), window.targets.astype(">u4").tobytes()
