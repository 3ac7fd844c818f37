"""Gradients of the mean loss over a batch, in one go or part by part."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from trainer.errors import ConfigError
from trainer.loss import LossSums
from trainer.model.params import Params

SegmentIds = Int[Array, "b t"] | None
SumLosses = Callable[[Params, Int[Array, "b t"], SegmentIds], LossSums]
"""Weights, tokens and the documents they belong to → sums over the tokens that are predicted."""


def mean_gradients(
    sum_losses: SumLosses,
    params: Params,
    rows: tuple[Int[Array, "b t"], SegmentIds],
    *,
    z_loss: float | Array,
    microbatch_sequences: int | None,
) -> tuple[LossSums, Params]:
    """Sums over the batch, and the gradients of (Σ cross-entropy + z_loss · Σ logsumexp²) / Σ tokens.

    Losses and gradients are summed over the parts and divided once, so that parts with unequal numbers of tokens count by their tokens.
    """

    def objective(params: Params, rows: tuple[Int[Array, "b t"], SegmentIds]) -> tuple[Array, LossSums]:
        sums = sum_losses(params, *rows)
        return sums.cross_entropy + z_loss * sums.squared_log_z, sums

    gradients = jax.grad(objective, has_aux=True)

    def add(total: tuple[Params, LossSums], part: tuple[Int[Array, "b t"], SegmentIds]) -> tuple[tuple[Params, LossSums], None]:
        return jax.tree.map(jnp.add, total, gradients(params, part)), None

    with jax.numpy_dtype_promotion("strict"):
        if microbatch_sequences is None or len(rows[0]) <= microbatch_sequences:
            summed, sums = gradients(params, rows)
        else:
            nothing = jnp.zeros(())
            start = optax.tree.zeros_like(params), LossSums(nothing, nothing, nothing)
            (summed, sums), _ = jax.lax.scan(add, start, microbatches(rows, microbatch_sequences))
    return sums, optax.tree.scale(1.0 / jnp.maximum(sums.tokens, 1.0), summed)


def microbatches(rows: tuple[Int[Array, "b t"], SegmentIds], sequences: int) -> tuple[Int[Array, "n m t"], Int[Array, "n m t"] | None]:
    """Parts of so many rows, along a new first axis. Part i has the rows i, i + n, …: each device keeps the rows that it has.

    Raises:
        ConfigError: the parts would be unequal.
    """
    size = len(rows[0])
    if size % sequences:
        raise ConfigError(
            f"execution.microbatch_sequences must divide every batch that is larger, found {sequences} for a batch of {size}: "
            "take another, or other batches."
        )
    return jax.tree.map(lambda x: x.reshape(sequences, size // sequences, *x.shape[1:]).swapaxes(0, 1), rows)
