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

from tasks.evaluation.held_out import BEGIN_OF_TEXT
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


def cut_windows(tokens: Sequence[int] | np.ndarray, seq_len: int) -> list[Window]:
    """Disjoint windows that predict every token once, each given the token before it; the first starts with begin-of-text."""
    sequence = np.concatenate([[BEGIN_OF_TEXT], tokens]).astype(np.int32)
    starts = range(0, len(sequence) - 1, seq_len)
    return [
        Window(sequence[start : start + seq_len][: len(sequence) - 1 - start], sequence[start + 1 : start + 1 + seq_len])
        for start in starts
    ]


@partial(jax.jit, static_argnames="config")
def score(
    params: Params, inputs: Int[Array, "r t"], targets: Int[Array, "r t"], *, config: ModelConfig
) -> tuple[Float[Array, "r t"], Bool[Array, "r t"]]:
    """Log-likelihood of each target, and whether it has the highest logit. Row by row, so that the logits stay in the CPU's cache."""

    def score_row(row: tuple[Float[Array, "t d"], Int[Array, " t"]]) -> tuple[Float[Array, " t"], Bool[Array, " t"]]:
        hidden, wanted = row
        z = project(params, hidden[None], config)[0]
        chosen = jnp.take_along_axis(z, wanted[:, None], axis=-1)[:, 0]
        return chosen - jax.nn.logsumexp(z, axis=-1), chosen >= z.max(axis=-1)

    return jax.lax.map(score_row, (hidden_states(params, inputs, config, segment_ids=_segment_ids(inputs)), targets))


@partial(jax.jit, static_argnames="config")
def next_tokens(
    params: Params, inputs: Int[Array, "r t"], last: Int[Array, " r"], *, config: ModelConfig
) -> tuple[Int[Array, " r"], Bool[Array, " r"]]:
    """The likeliest token after position `last` of each row, and whether all its logits are finite."""
    hidden = hidden_states(params, inputs, config, segment_ids=_segment_ids(inputs))
    hidden = jnp.take_along_axis(hidden, last[:, None, None], axis=1)
    z = project(params, hidden, config)[:, 0]
    return jnp.argmax(z, axis=-1), jnp.isfinite(z).all(axis=-1)


def _segment_ids(inputs: Int[Array, "r t"]) -> Int[Array, "r t"]:
    """Windows of a row are told apart by the token that opens a document."""
    return jnp.cumsum(inputs == BEGIN_OF_TEXT, axis=1)


def score_windows(params: Params, config: ModelConfig, windows: Sequence[Window]) -> list[Scores]:
    """Scores of each window, in the order given.

    Windows share rows: a document never sees the one before it, so a window that opens with begin-of-text may follow another.
    """
    places, num_rows = _place(windows, config.seq_len)
    shape = (num_rows, config.seq_len)
    inputs, targets = np.full(shape, BEGIN_OF_TEXT, np.int32), np.full(shape, BEGIN_OF_TEXT, np.int32)
    for window, (row, offset) in zip(windows, places, strict=True):
        inputs[row, offset : offset + len(window.inputs)] = window.inputs
        targets[row, offset : offset + len(window.targets)] = window.targets
    likelihoods, greedy = np.empty(shape, np.float32), np.empty(shape, bool)
    for rows in _batches(num_rows, rows_per_batch(config.seq_len)):
        likelihoods[rows], greedy[rows] = _score_rows(params, config, inputs[rows], targets[rows])
    return [
        Scores(likelihoods[row, offset : offset + len(window.targets)], greedy[row, offset : offset + len(window.targets)])
        for window, (row, offset) in zip(windows, places, strict=True)
    ]


def rows_per_batch(length: int) -> int:
    """Rows of `length` tokens that are scored at once."""
    return max(1, BATCH_TOKENS // length)


def pad_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """`rows` followed by rows of begin-of-text, `count` in all: every batch has the compiled shape."""
    return np.pad(rows, ((0, count - len(rows)), (0, 0)), constant_values=BEGIN_OF_TEXT)


def _score_rows(params: Params, config: ModelConfig, inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    count = rows_per_batch(config.seq_len)
    likelihoods, greedy = score(params, pad_rows(inputs, count), pad_rows(targets, count), config=config)
    return np.asarray(likelihoods)[: len(inputs)], np.asarray(greedy)[: len(inputs)]


def _batches(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def _place(windows: Sequence[Window], seq_len: int) -> tuple[list[tuple[int, int]], int]:
    """(row, offset) of each window, and the number of rows. Longest first, each into the fullest row that still has room."""
    places: list[tuple[int, int]] = [(0, 0)] * len(windows)
    free: list[tuple[int, int]] = []
    num_rows = 0
    opens = [len(window.inputs) > 0 and window.inputs[0] == BEGIN_OF_TEXT for window in windows]
    for index in sorted(range(len(windows)), key=lambda i: (opens[i], -len(windows[i].inputs), i)):
        length = len(windows[index].inputs)
        fits = bisect_left(free, (length, 0)) if opens[index] else len(free)
        if fits < len(free):
            room, row = free.pop(fits)
        else:
            room, row, num_rows = seq_len, num_rows, num_rows + 1
        places[index] = (row, seq_len - room)
        if room > length:
            insort(free, (room - length, row))
    return places, num_rows
