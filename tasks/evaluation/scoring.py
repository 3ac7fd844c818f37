"""Log-likelihoods of token windows, many windows a row, in one compiled shape.

Shape letters: r rows, t positions, d d_model.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trainer.config import ModelConfig
from trainer.model.decoder import hidden_states, project
from trainer.model.params import Params

BATCH_TOKENS = 2048


class Window(NamedTuple):
    """What the model reads, and the token that follows each position. Both have the same length, at most `seq_len`."""

    inputs: np.ndarray
    targets: np.ndarray


class Scores(NamedTuple):
    """For each target of a window: natural log-likelihood, and whether no other token is likelier."""

    log_likelihoods: np.ndarray
    greedy: np.ndarray


def cut_windows(tokens: Sequence[int] | np.ndarray, seq_len: int, begin_of_text: int) -> list[Window]:
    """Disjoint windows that predict every token once, each given the token before it; the first starts with begin-of-text."""
    sequence = np.concatenate([[begin_of_text], tokens]).astype(np.int32)
    starts = range(0, len(sequence) - 1, seq_len)
    return [
        Window(sequence[start : start + seq_len][: len(sequence) - 1 - start], sequence[start + 1 : start + 1 + seq_len])
        for start in starts
    ]


@partial(jax.jit, static_argnames="config")
def score(
    params: Params, inputs: Int[Array, "r t"], targets: Int[Array, "r t"], windows: Int[Array, "r t"], *, config: ModelConfig
) -> tuple[Float[Array, "r t"], Bool[Array, "r t"]]:
    """Log-likelihood of each target, and whether it has the highest logit. Row by row, so that the logits stay in the CPU's cache.

    Args:
        windows: equal numbers mark the positions of one window of a row. Windows never see one another, however the model was trained.
    """

    def score_row(row: tuple[Float[Array, "t d"], Int[Array, " t"]]) -> tuple[Float[Array, " t"], Bool[Array, " t"]]:
        hidden, wanted = row
        z = project(params, hidden[None], config)[0]
        chosen = jnp.take_along_axis(z, wanted[:, None], axis=-1)[:, 0]
        return chosen - jax.nn.logsumexp(z, axis=-1), chosen >= z.max(axis=-1)

    return jax.lax.map(score_row, (hidden_states(params, inputs, config, segment_ids=windows), targets))


@partial(jax.jit, static_argnames="config")
def next_tokens(
    params: Params, inputs: Int[Array, "r t"], last: Int[Array, " r"], *, config: ModelConfig
) -> tuple[Int[Array, " r"], Bool[Array, " r"]]:
    """The likeliest token after position `last` of each row, and whether all its logits are finite. A row is one text."""
    hidden = hidden_states(params, inputs, config)
    hidden = jnp.take_along_axis(hidden, last[:, None, None], axis=1)
    z = project(params, hidden, config)[:, 0]
    return jnp.argmax(z, axis=-1), jnp.isfinite(z).all(axis=-1)


def score_windows(params: Params, config: ModelConfig, windows: Sequence[Window]) -> list[Scores]:
    """Scores of each window, in the order given. Windows share rows; what no window fills is window 0, and is not kept."""
    places, num_rows = _place(windows, config.seq_len)
    shape = (num_rows, config.seq_len)
    inputs, targets, numbers = (np.zeros(shape, np.int32) for _ in range(3))
    for number, (window, (row, offset)) in enumerate(zip(windows, places, strict=True), start=1):
        numbers[row, offset : offset + len(window.inputs)] = number
        inputs[row, offset : offset + len(window.inputs)] = window.inputs
        targets[row, offset : offset + len(window.targets)] = window.targets
    likelihoods = np.empty(shape, np.float32)
    greedy = np.empty(shape, bool)
    for rows in _batches(num_rows, rows_per_batch(config.seq_len)):
        likelihoods[rows], greedy[rows] = _score_rows(params, config, inputs[rows], targets[rows], numbers[rows])
    return [
        Scores(likelihoods[row, offset : offset + len(window.targets)], greedy[row, offset : offset + len(window.targets)])
        for window, (row, offset) in zip(windows, places, strict=True)
    ]


def rows_per_batch(length: int) -> int:
    """Rows of `length` tokens that are scored at once."""
    return max(1, BATCH_TOKENS // length)


def pad_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """`rows` followed by rows of zeros, `count` in all: every batch has the compiled shape."""
    return np.pad(rows, ((0, count - len(rows)), (0, 0)))


def _score_rows(params: Params, config: ModelConfig, *rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of inputs, targets and windows."""
    inputs, targets, windows = (pad_rows(part, rows_per_batch(config.seq_len)) for part in rows)
    likelihoods, greedy = score(params, inputs, targets, windows, config=config)
    return np.asarray(likelihoods)[: len(rows[0])], np.asarray(greedy)[: len(rows[0])]


def _batches(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def _place(windows: Sequence[Window], seq_len: int) -> tuple[list[tuple[int, int]], int]:
    """(row, offset) of each window, and the number of rows. Longest first, each into the fullest row that still has room."""
    places: list[tuple[int, int]] = [(0, 0)] * len(windows)
    free: list[tuple[int, int]] = []
    num_rows = 0
    for index in sorted(range(len(windows)), key=lambda i: (-len(windows[i].inputs), i)):
        length = len(windows[index].inputs)
        fits = bisect_left(free, (length, 0))
        if fits < len(free):
            room, row = free.pop(fits)
        else:
            room, row, num_rows = seq_len, num_rows, num_rows + 1
        places[index] = (row, seq_len - room)
        if room > length:
            insort(free, (room - length, row))
    return places, num_rows
