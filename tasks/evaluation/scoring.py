"""Log-likelihoods of token windows, many windows a row, in a few compiled shapes.

Shape letters: r rows, t slots, c targets that are scored at once, d d_model.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from phasewise.tasks.evaluation.rows import RowArrays, Rows, Window, in_batches, lay_out
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.decoder import project
from phasewise.trainer.model.decoding import Branches, hidden_states_of_branches
from phasewise.trainer.model.params import Params
from phasewise.trainer.sharding import batch_sharding, constrain_activation, on_mesh, parts_here, replicated

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
        log_likelihoods, greedy = _score_rows(params, config, rows, mesh)
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


def _score_rows(params: Params, config: ModelConfig, rows: Rows, mesh: jax.sharding.Mesh | None) -> tuple[np.ndarray, np.ndarray]:
    """All rows, batch by batch; the next batches are made ready while one is computed."""
    size = rows_per_batch(rows.length, mesh)
    found = [
        score(params, placed(rows.arrays(batch, size), mesh), np.int32(rows.num_targets(batch)), config=config, mesh=mesh)
        for batch in in_batches(len(rows), size)
    ]
    log_likelihoods, greedy = (np.concatenate([np.asarray(part) for part in parts]) for parts in zip(*found, strict=True))
    return log_likelihoods[: len(rows)], greedy[: len(rows)]
