"""Gradients of the mean loss over a batch, in one go or part by part."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.loss import LossSums
from phasewise.trainer.model.params import Params
from phasewise.trainer.sharding import constrain

SegmentIds = Int[Array, "b t"] | None
Targets = Bool[Array, "b t"]
Objective = Callable[..., tuple[Float[Array, ""], LossSums]]
"""Weights, tokens, the documents they belong to, the weight of z-loss, and which tokens are predicted, where not all are → Σ cross-entropy
+ z_loss · Σ logsumexp², and the sums alone. Of a part of a batch with such targets there is a further argument, `targets_a_token`.

The sums are over the tokens that are predicted, and have no gradient.
"""
Rows = tuple[Int[Array, "b t"], SegmentIds] | tuple[Int[Array, "b t"], SegmentIds, Targets]
"""Tokens, the documents they belong to, and which of them are predicted; without the last all are that the documents allow."""


def mean_gradients(
    objective: Objective,
    params: Params,
    rows: Rows,
    *,
    z_loss: float | Array,
    microbatch_sequences: int | None,
) -> tuple[LossSums, Params]:
    """Sums over the batch, and the gradients of (Σ cross-entropy + z_loss · Σ logsumexp²) / Σ tokens.

    Losses and gradients are summed over the parts and divided once, so that parts with unequal numbers of tokens count by their tokens.
    What each part's loss was is kept beside the sums. A part is told how many tokens of the whole batch are predicted for each one that is
    there: by that it weighs what every token counts in, predicted or not.
    """
    in_parts = microbatch_sequences is not None and len(rows[0]) > microbatch_sequences

    def gradients(rows: Rows) -> tuple[Params, LossSums]:
        tokens, segment_ids, *targets = rows
        return jax.grad(objective, has_aux=True)(params, tokens, segment_ids, z_loss, *targets, *of_batch)

    def add(total: tuple[Params, LossSums], part: Rows) -> tuple[tuple[Params, LossSums], Float[Array, ""]]:
        found = gradients(part)
        loss = jnp.where(found[1].tokens > 0, found[1].cross_entropy / found[1].tokens, jnp.nan)
        return jax.tree.map(jnp.add, total, found), loss

    with jax.numpy_dtype_promotion("strict"):
        of_batch = (targets_a_token(*rows),) if in_parts and len(rows) == 3 else ()
        if microbatch_sequences is None or not in_parts:
            summed, sums = gradients(rows)
        else:
            parts = microbatches(rows, microbatch_sequences)
            one = jax.eval_shape(gradients, jax.tree.map(lambda part: part[0], parts))
            start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), one)
            (summed, sums), part_losses = jax.lax.scan(add, start, parts)
            sums = sums._replace(part_losses=part_losses)
    return sums, optax.tree.scale(1.0 / jnp.maximum(sums.tokens, 1.0), summed)


def targets_a_token(tokens: Int[Array, "b t"], segment_ids: SegmentIds, targets: Targets) -> Float[Array, ""]:
    """How many tokens are predicted for each one that is no padding."""
    counted = jnp.ones(tokens.shape, jnp.bool_) if segment_ids is None else segment_ids != 0
    predicted = jnp.sum((targets & counted)[:, 1:], dtype=jnp.float32)
    return predicted / jnp.maximum(jnp.sum(counted, dtype=jnp.float32), 1.0)


def microbatches(rows: Rows, sequences: int) -> Any:
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

    def cut(x: Array) -> Array:
        return constrain(x.reshape(sequences, size // sequences, -1).swapaxes(0, 1), None, "batch", "position")

    return jax.tree.map(cut, rows)
