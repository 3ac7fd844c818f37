"""Log-likelihoods of token windows, many windows a row, in a few compiled shapes; and held-out bits per byte.

Shape letters: r rows, t slots, c targets that are scored at once, d d_model.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from phasewise.tasks.evaluation.held_out import BitsPerByte, HeldOutTokens
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.decoder import project
from phasewise.trainer.model.decoding import Branches, hidden_states_of_branches
from phasewise.trainer.model.params import Params
from phasewise.trainer.sharding import batch_sharding, constrain_activation, on_mesh, parts_here, replicated

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
    return window.inputs.astype(">u4").tobytes(), window.targets.astype(">u4").tobytes()


BATCH_TOKENS = 2048
"""Tokens that are computed at once on each part of a batch."""
BATCH_TARGETS = 128
"""Targets whose logits are computed at once: few enough that these stay in a CPU's cache."""


class Scores(NamedTuple):
    """For each target of a window: natural log-likelihood, and whether it is the likeliest token (of equals the one of the lowest id)."""

    log_likelihoods: np.ndarray
    greedy: np.ndarray


class Counts(NamedTuple):
    """Tokens that the windows have, and tokens that were computed for them, without what fills rows up."""

    asked: int
    computed: int


def cut_windows(tokens: Sequence[int] | np.ndarray, seq_len: int, begin_of_text: int) -> list[Window]:
    """Disjoint windows that predict every token once, each given the token before it; the first starts with begin-of-text."""
    sequence = np.concatenate([[begin_of_text], tokens]).astype(np.int32)
    starts = range(0, len(sequence) - 1, seq_len)
    return [
        Window(sequence[start : start + seq_len][: len(sequence) - 1 - start], sequence[start + 1 : start + 1 + seq_len])
        for start in starts
    ]


@partial(jax.jit, static_argnames=("config", "mesh"))
def score(
    params: Params, rows: RowArrays, num_targets: Int[Array, ""], *, config: ModelConfig, mesh: jax.sharding.Mesh | None = None
) -> tuple[Float[Array, "r t"], Bool[Array, "r t"]]:
    """Log-likelihood of each target, and whether it has the highest logit.

    Logits are computed where there are targets, a few at a time.

    Args:
        num_targets: the most that a row has; what comes out behind them means nothing.
    """
    found = on_mesh(partial(_score, config=config), mesh)(params, rows, num_targets)
    return found if mesh is None else jax.tree.map(lambda part: jax.lax.with_sharding_constraint(part, replicated(mesh)), found)


def _score(
    params: Params, rows: RowArrays, num_targets: Int[Array, ""], *, config: ModelConfig
) -> tuple[Float[Array, "r t"], Bool[Array, "r t"]]:
    hidden = hidden_states_of_branches(
        params, jnp.asarray(rows.tokens), config, Branches(jnp.asarray(rows.ends), jnp.asarray(rows.positions))
    )
    count, length = rows.tokens.shape
    size = min(length, max(1, BATCH_TARGETS // count))
    padded = -(-length // size) * size
    slots, targets = (jnp.pad(part, ((0, 0), (0, padded - length))) for part in (rows.slots, rows.targets))

    def score_some(number: Int[Array, ""], found: tuple[Array, Array]) -> tuple[Array, Array]:
        at, wanted = (jax.lax.dynamic_slice_in_dim(part, number * size, size, axis=1)[..., None] for part in (slots, targets))
        z = constrain_activation(project(params, jnp.take_along_axis(hidden, at, axis=1), config), "btv")
        log_likelihoods = jnp.take_along_axis(z, wanted, axis=-1)[..., 0] - jax.nn.logsumexp(z, axis=-1)
        some = log_likelihoods, jnp.argmax(z, axis=-1) == wanted[..., 0]
        first, second = (
            jax.lax.dynamic_update_slice_in_dim(all_of, part, number * size, axis=1) for all_of, part in zip(found, some, strict=True)
        )
        return first, second

    nothing = jnp.full((count, padded), jnp.nan, jnp.float32), jnp.zeros((count, padded), jnp.bool_)
    log_likelihoods, greedy = jax.lax.fori_loop(0, -(-num_targets // size), score_some, nothing)
    return log_likelihoods[:, :length], greedy[:, :length]


def score_windows(params: Params, config: ModelConfig, windows: Sequence[Window], mesh: jax.sharding.Mesh | None = None) -> list[Scores]:
    """Scores of each window, in the order given. What windows have in common at their beginning is computed once.

    Args:
        mesh: the devices that `params` are cut over; None is one device.
    """
    scores: list[Scores | None] = [None] * len(windows)
    for rows in lay_out(windows, config.seq_len):
        # All rows, batch by batch; the next batches are made ready while one is computed
        size = rows_per_batch(rows.length, mesh)
        found = [
            score(params, placed(rows.arrays(batch, size), mesh), np.int32(rows.num_targets(batch)), config=config, mesh=mesh)
            for batch in in_batches(len(rows), size)
        ]
        log_likelihoods, greedy = (np.concatenate([np.asarray(part) for part in parts]) for parts in zip(*found, strict=True))
        log_likelihoods = log_likelihoods[: len(rows)]
        greedy = greedy[: len(rows)]
        for number, (row, first) in rows.places.items():
            targets = slice(first, first + len(windows[number].targets))
            scores[number] = Scores(log_likelihoods[row, targets], greedy[row, targets])
    assert all(found is not None for found in scores), "a window is in no row"
    return [found for found in scores if found is not None]


def count_tokens(config: ModelConfig, windows: Sequence[Window]) -> Counts:
    """What `score_windows` computes, without computing it."""
    computed = sum(rows.filled_tokens for rows in lay_out(windows, config.seq_len))
    return Counts(sum(len(window.inputs) for window in windows), computed)


def rows_per_batch(length: int, mesh: jax.sharding.Mesh | None) -> int:
    """Rows of `length` tokens that are computed at once."""
    return max(1, BATCH_TOKENS // length) * parts_here(mesh)[1]


def placed(arrays: RowArrays, mesh: jax.sharding.Mesh | None) -> RowArrays:
    """Cut over the mesh, where there is one."""
    return arrays if mesh is None else jax.device_put(arrays, batch_sharding(mesh))


def bits_per_byte(params: Params, config: ModelConfig, held_out: Mapping[str, HeldOutTokens]) -> BitsPerByte:
    """Negative log2-likelihood of the documents' tokens over the UTF-8 bytes of their text, by component.

    A document longer than `seq_len` is cut into disjoint windows, each given the one token before it. The begin and end tokens are
    given, not predicted. A model that is not finite gives a value that is not.
    """
    params = jax.device_put(params)
    windows = [
        (component, window)
        for component, held in held_out.items()
        for document in held.documents
        for window in cut_windows(document, config.seq_len, held.special.begin)
    ]
    bits = dict.fromkeys(held_out, 0.0)
    scores = score_windows(params, config, [window for _, window in windows])
    for (component, _), scored in zip(windows, scores, strict=True):
        bits[component] -= float(scored.log_likelihoods.sum(dtype=np.float64)) / np.log(2)
    return BitsPerByte({component: float(bits[component] / held.text_bytes) for component, held in held_out.items()})
