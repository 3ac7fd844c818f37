"""Log-likelihoods of token windows, packed into rows of a few compiled shapes, and held-out bits per byte.

Shape letters: r rows, t slots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from phasewise.trainer.sharding import constrain, named_sharding, on_mesh, parts_here

MIN_LONGEST_ROW_TOKENS, MIN_ROW_TOKENS = 512, 256
STEPS_BETWEEN_ROWS = 4
MAX_ROW_LENGTHS = 3
MIN_WINDOWS_A_ROW = 3  # choose a row length of at least three windows if possible, so that few slots stay empty
BATCH_TOKENS = 2048  # tokens that one data-parallel part computes at once
BATCH_TARGETS = 128  # targets whose logits are computed at once: few enough for a CPU's cache


class Window(NamedTuple):
    """At most `seq_len` input tokens, and the targets of the last positions."""

    inputs: np.ndarray
    targets: np.ndarray


class RowArrays(NamedTuple):
    """Packed rows. `trainer.kernels.branches.Branches` defines `ends` and `positions`. `slots` has the slot before each target."""

    tokens: Int[np.ndarray, "r t"]
    ends: Int[np.ndarray, "r t"]
    positions: Int[np.ndarray, "r t"]
    slots: Int[np.ndarray, "r t"]
    targets: Int[np.ndarray, "r t"]


class _Row:
    """One row, and the tokens and slots of its last window."""

    def __init__(self, length: int) -> None:
        self.filled = 0
        self.num_targets = 0
        self.arrays = RowArrays(*(np.zeros(length, np.int32) for _ in RowArrays._fields))
        self.arrays.ends[:] = np.arange(1, length + 1)
        self._path_tokens = np.empty(0, np.int32)
        self._path_slots = np.empty(0, np.int32)

    def put(self, window: Window) -> int | None:
        """Add a window after its shared prefix. Return the number of its first target, or None if the row is too short."""
        count = len(window.targets)
        length = min(len(window.inputs), len(self._path_tokens))
        differ = np.flatnonzero(window.inputs[:length] != self._path_tokens[:length])
        shared = int(differ[0]) if len(differ) else length
        filled = self.filled + len(window.inputs) - shared
        if max(filled, self.num_targets + count) > len(self.arrays.tokens):
            return None
        self.close(shared)
        new = np.arange(self.filled, filled, dtype=np.int32)
        slots = np.concatenate([self._path_slots[:shared], new])
        self.arrays.tokens[new] = window.inputs[shared:]
        self.arrays.positions[new] = np.arange(shared, len(window.inputs))
        first = self.num_targets
        self.arrays.slots[first : first + count] = slots[len(slots) - count :]
        self.arrays.targets[first : first + count] = window.targets
        self.filled = filled
        self.num_targets += count
        self._path_tokens, self._path_slots = window.inputs, slots
        return first

    def close(self, depth: int) -> None:
        """End the last window at this depth: later tokens don't see its deeper slots."""
        self.arrays.ends[self._path_slots[depth:]] = self.filled


@dataclass
class Rows:
    """Rows of `length` slots, filled in order. An empty slot sees only itself. `places` maps a window to its row and first target."""

    length: int
    rows: list[_Row] = field(default_factory=list)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)

    def put(self, number: int, window: Window) -> None:
        """Add a window to the last row, or to a new row if the last row is full."""
        first = self.rows[-1].put(window) if self.rows else None
        if first is None:
            self.rows.append(_Row(self.length))
            first = self.rows[-1].put(window)
        assert first is not None, "a window is longer than a row"
        self.places[number] = (len(self.rows) - 1, first)

    def arrays(self, rows: slice, count: int) -> RowArrays:
        """Stack these rows, padded with empty rows to `count`: every batch has the compiled shape."""
        chosen = [*self.rows[rows], *(_Row(self.length) for _ in range(count - len(self.rows[rows])))]
        for row in chosen:
            row.close(0)
        return RowArrays(*(np.stack(parts) for parts in zip(*(row.arrays for row in chosen), strict=True)))


def lay_out(windows: Sequence[Window], seq_len: int) -> list[Rows]:
    """Pack every window, whatever their order, the shortest rows first. Rows have few lengths, because each is compiled once."""
    longest = max(seq_len, MIN_LONGEST_ROW_TOKENS)
    lengths = sorted(-(-longest // STEPS_BETWEEN_ROWS**step) for step in range(MAX_ROW_LENGTHS))
    lengths = [length for length in lengths if length >= MIN_ROW_TOKENS]
    layout = {length: Rows(length) for length in lengths}
    keys = [(window.inputs.astype(">u4").tobytes(), window.targets.astype(">u4").tobytes()) for window in windows]
    for number in sorted(range(len(windows)), key=lambda number: (keys[number], number)):
        needed = MIN_WINDOWS_A_ROW * len(windows[number].inputs)
        layout[next((length for length in lengths if length >= needed), lengths[-1])].put(number, windows[number])
    return [one for one in layout.values() if one.rows]


class Scores(NamedTuple):
    """Natural log-likelihood of each target, and whether the target has the highest logit (the lowest id of equal logits)."""

    log_likelihoods: np.ndarray
    greedy: np.ndarray


def cut_windows(tokens: Sequence[int] | np.ndarray, seq_len: int, begin_of_text: int) -> list[Window]:
    """Cut disjoint windows that predict every token once. Each window has the token before it, the first window the BOS token."""
    sequence = np.concatenate([[begin_of_text], tokens]).astype(np.int32)
    inputs, targets = sequence[:-1], sequence[1:]
    return [Window(inputs[start : start + seq_len], targets[start : start + seq_len]) for start in range(0, len(targets), seq_len)]


@partial(jax.jit, static_argnames=("config", "mesh"))
def score(
    params: Params, rows: RowArrays, num_targets: Int[Array, ""], *, config: ModelConfig, mesh: jax.sharding.Mesh | None = None
) -> tuple[Float[Array, "r t"], Bool[Array, "r t"]]:
    """Return the log-likelihood of each target, and whether it has the highest logit. Outputs behind `num_targets` are undefined."""
    found = on_mesh(partial(_score, config=config), mesh)(params, rows, num_targets)
    return found if mesh is None else jax.tree.map(lambda part: jax.lax.with_sharding_constraint(part, named_sharding(mesh)), found)


def _score(
    params: Params, rows: RowArrays, num_targets: Int[Array, ""], *, config: ModelConfig
) -> tuple[Float[Array, "r t"], Bool[Array, "r t"]]:
    branches = Branches(jnp.asarray(rows.ends), jnp.asarray(rows.positions))
    hidden = hidden_states_of_branches(params, jnp.asarray(rows.tokens), config, branches)
    count, length = rows.tokens.shape
    size = min(length, max(1, BATCH_TARGETS // count))
    padded = -(-length // size) * size
    slots, targets = (jnp.pad(part, ((0, 0), (0, padded - length))) for part in (rows.slots, rows.targets))

    def score_some(number: Int[Array, ""], found: tuple[Array, Array]) -> tuple[Array, Array]:
        at, wanted = (jax.lax.dynamic_slice_in_dim(part, number * size, size, axis=1)[..., None] for part in (slots, targets))
        z = constrain(project(params, jnp.take_along_axis(hidden, at, axis=1), config), "batch", "position", "vocab")
        log_likelihoods = jnp.take_along_axis(z, wanted, axis=-1)[..., 0] - jax.nn.logsumexp(z, axis=-1)
        is_greedy = jnp.argmax(z, axis=-1) == wanted[..., 0]
        update = partial(jax.lax.dynamic_update_slice_in_dim, start_index=number * size, axis=1)
        return update(found[0], log_likelihoods), update(found[1], is_greedy)

    nothing = jnp.full((count, padded), jnp.nan, jnp.float32), jnp.zeros((count, padded), jnp.bool_)
    log_likelihoods, greedy = jax.lax.fori_loop(0, -(-num_targets // size), score_some, nothing)
    return log_likelihoods[:, :length], greedy[:, :length]


def score_windows(params: Params, config: ModelConfig, windows: Sequence[Window], mesh: jax.sharding.Mesh | None = None) -> list[Scores]:
    """Score each window, in the given order. Shared prefixes of windows are computed once, on one device or on `mesh`."""
    scores: dict[int, Scores] = {}
    for rows in lay_out(windows, config.seq_len):
        size = max(1, BATCH_TOKENS // rows.length) * parts_here(mesh)[1]
        found: list[tuple[Array, Array]] = []
        for start in range(0, len(rows.rows), size):
            batch = slice(start, start + size)
            arrays = rows.arrays(batch, size)
            placed = arrays if mesh is None else jax.device_put(arrays, named_sharding(mesh, "batch"))
            num_targets = max(row.num_targets for row in rows.rows[batch])
            found.append(score(params, placed, np.int32(num_targets), config=config, mesh=mesh))
        # JAX computes while the loop prepares the next batch. The conversion waits for the results
        log_likelihoods, greedy = (np.concatenate([np.asarray(part) for part in parts]) for parts in zip(*found, strict=True))
        for number, (row, first) in rows.places.items():
            targets = slice(first, first + len(windows[number].targets))
            scores[number] = Scores(log_likelihoods[row, targets], greedy[row, targets])
    return [scores[number] for number in range(len(windows))]


def bits_per_byte(params: Params, config: ModelConfig, held_out: Mapping[str, HeldOutTokens]) -> BitsPerByte:
    """Divide the negative log2-likelihood of each component's documents by their UTF-8 bytes. BOS and EOS tokens are not predicted."""
    windows = [
        (component, window)
        for component, held in held_out.items()
        for document in held.documents
        for window in cut_windows(document, config.seq_len, held.special.before)
    ]
    bits = dict.fromkeys(held_out, 0.0)
    scores = score_windows(jax.device_put(params), config, [window for _, window in windows])
    for (component, _), scored in zip(windows, scores, strict=True):
        bits[component] -= float(scored.log_likelihoods.sum(dtype=np.float64)) / np.log(2)
    return BitsPerByte({component: float(bits[component] / held.text_bytes) for component, held in held_out.items()})
