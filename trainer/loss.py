"""Next-token cross-entropy with z-loss, from hidden states and the head, in chunks of logits.

Shape letters: b batch, t position, d d_model, v vocab, n chunk, c position within a chunk. Logits, softmax and sums are float32.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.model.params import Params
from phasewise.trainer.model.router import Routing
from phasewise.trainer.sharding import constrain, context_parts

SegmentIds = Int[Array, "b t"] | None
Targets = Bool[Array, "b t"]


class LossSums(NamedTuple):
    """Sums over predicted tokens in nats. Parts of a batch add up before one division.

    `rows`: cross-entropy and number of predicted tokens of each row, in the order of the batch.
    """

    cross_entropy: Float[Array, ""]
    squared_log_z: Float[Array, ""]
    tokens: Float[Array, ""]
    routing: Routing | None = None
    rows: Float[Array, "2 b"] | None = None


Objective = Callable[..., tuple[Float[Array, ""], LossSums]]
"""Weights, tokens, segment ids, weight of z-loss, and optional targets → Σ cross-entropy + z_loss · Σ logsumexp², and the sums.

The sums are over predicted tokens and have no gradient. A part of a batch with targets has the further argument `targets_a_token`.
"""

Rows = tuple[Int[Array, "b t"], SegmentIds] | tuple[Int[Array, "b t"], SegmentIds, Targets]
"""Tokens, segment ids, and optional targets. Without targets every token of a document is predicted."""


class Chunks(NamedTuple):
    """Predicting states, predicted tokens and weights, for all chunks or without the first axis for one chunk.

    Cuts are along positions: a chunk has a part of every row, so no device of a mesh waits. On a mesh that cuts rows along positions, a
    chunk has an equal part from each device.
    """

    hidden: Float[Array, "*n b c d"]
    targets: Int[Array, "*n b c"]
    weights: Float[Array, "*n b c"]


Gradients = tuple[Float[Array, "*n b c d"], Float[Array, "d v"], Float[Array, ""]]
"""Gradients with respect to hidden states, head and the weight of z-loss."""


def mean_gradients(
    objective: Objective, params: Params, rows: Rows, *, z_loss: float | Array, microbatch_sequences: int | None
) -> tuple[LossSums, Params]:
    """Return sums over the batch, and the gradients of (Σ cross-entropy + z_loss · Σ logsumexp²) / Σ tokens.

    Losses and gradients are summed over the parts and divided once, so parts count by their tokens. Each part receives the ratio of
    predicted to present tokens in the whole batch, as the weight of terms over all present tokens.
    """
    in_parts = microbatch_sequences is not None and len(rows[0]) > microbatch_sequences

    def gradients(rows: Rows) -> tuple[Params, LossSums]:
        tokens, segment_ids, *targets = rows
        return jax.grad(objective, has_aux=True)(params, tokens, segment_ids, z_loss, *targets, *of_batch)

    def add(total: tuple[Params, LossSums], part: Rows) -> tuple[tuple[Params, LossSums], Float[Array, "2 b"] | None]:
        grads, sums = gradients(part)
        return jax.tree.map(jnp.add, total, (grads, sums._replace(rows=None))), sums.rows

    with jax.numpy_dtype_promotion("strict"):
        of_batch = ()
        if in_parts and len(rows) == 3:
            tokens, segment_ids, targets = rows
            counted = jnp.ones(tokens.shape, jnp.bool_) if segment_ids is None else segment_ids != 0
            predicted = jnp.sum((targets & counted)[:, 1:], dtype=jnp.float32)
            of_batch = (predicted / jnp.maximum(jnp.sum(counted, dtype=jnp.float32), 1.0),)
        if microbatch_sequences is None or not in_parts:
            summed, sums = gradients(rows)
        else:
            # part i has the rows i, i + n, …, so no row changes its device
            size = microbatch_sequences
            in_turn = jax.tree.map(lambda x: x.reshape(size, len(x) // size, -1).swapaxes(0, 1), rows)
            parts = jax.tree.map(lambda x: constrain(x, None, "batch", "position"), in_turn)
            grads, of_part = jax.eval_shape(gradients, jax.tree.map(lambda part: part[0], parts))
            start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (grads, of_part._replace(rows=None)))
            (summed, sums), of_rows = jax.lax.scan(add, start, parts)
            sums = sums._replace(rows=None if of_rows is None else of_rows.transpose(1, 2, 0).reshape(2, -1))
    return sums, optax.tree.scale(1.0 / jnp.maximum(sums.tokens, 1.0), summed)


def objective_sums(
    hidden: Float[Array, "b t d"],
    head: Float[Array, "d v"],
    tokens: Int[Array, "b t"],
    z_loss: Float[Array, ""] | float,
    *,
    chunk_tokens: int | None = None,
    targets_weight: Float[Array, "b t"] | None = None,
) -> tuple[Float[Array, ""], LossSums]:
    """Return Σ cross-entropy + z_loss · Σ logsumexp(logits)² (z-loss: PaLM, §5), and the sums without gradients.

    Each position except the last predicts the next token. Products run in the type of `hidden`. The forward pass knows z_loss, so it
    computes the gradients while a chunk of logits exists. Logits are neither stored nor recomputed.

    Args:
        z_loss: weight of the second sum, 0 for off.
        chunk_tokens: approximate number of tokens whose logits exist at a time, at least one position per row. None for all tokens.
        targets_weight: weight of the prediction at each position, ignored for the last position. None is 1: then the first token of a
            document is predicted from the end of the previous document, as in the published runs.
    """
    # Chunks have equal length. Padding at the end has weight 0, like the last position of a row.
    rows, length = tokens.shape
    parts = context_parts(length)
    own = length // parts
    count = 1 if chunk_tokens is None else -(-own // max(chunk_tokens // rows // parts, 1))
    positions = -(-own // count)
    count = -(-own // positions)

    def cut(x: Array) -> Array:
        rest = x.shape[2:]
        x = x.reshape(rows, parts, own, *rest)
        x = jnp.pad(x, [(0, 0), (0, 0), (0, count * positions - own), *((0, 0) for _ in rest)])
        x = jnp.moveaxis(x.reshape(rows, parts, count, positions, *rest), 2, 0).reshape(count, rows, parts * positions, *rest)
        return constrain(x, None, "batch", "position", *(None for _ in rest)) if parts > 1 else x

    weights = jnp.ones(tokens.shape, jnp.float32) if targets_weight is None else targets_weight.astype(jnp.float32)
    weights = jnp.where(jnp.arange(length) < length - 1, weights, jnp.float32(0))
    chunks = Chunks(cut(hidden), cut(jnp.roll(tokens, -1, axis=1)), cut(weights))
    objective, sums = _objective(chunks, head, jnp.asarray(z_loss, jnp.float32))
    return objective, jax.lax.stop_gradient(sums)


def _logits(chunk: Chunks, head: Float[Array, "d v"]) -> tuple[Float[Array, "b c v"], Bool[Array, "b c v"], Float[Array, "b c"]]:
    """Float32 logits, one-hot targets, logits of the targets. The gradient of a gather would be a scatter, a comparison has none."""
    logits = jnp.einsum("bcd,dv->bcv", chunk.hidden, head, preferred_element_type=jnp.float32)
    is_target = jnp.arange(logits.shape[-1], dtype=chunk.targets.dtype) == chunk.targets[..., None]
    return logits, is_target, jnp.sum(jnp.where(is_target, logits, jnp.float32(0)), axis=-1)


@jax.custom_vjp
def _objective(chunks: Chunks, head: Float[Array, "d v"], z_loss: Float[Array, ""]) -> tuple[Float[Array, ""], LossSums]:
    head = head.astype(chunks.hidden.dtype)

    def measure(chunk: Chunks) -> tuple[Array, Array, Array]:
        logits, _, chosen = _logits(chunk, head)
        log_z = jax.nn.logsumexp(logits, axis=-1)
        losses = chunk.weights * (log_z - chosen)
        return jnp.sum(losses), jnp.sum(chunk.weights * log_z**2), jnp.sum(losses, axis=1)

    cross_entropy, squared_log_z, of_rows = (jnp.sum(part, axis=0) for part in jax.lax.map(measure, chunks))
    return cross_entropy + z_loss * squared_log_z, _sums(chunks, cross_entropy, squared_log_z, of_rows)


def _sums(chunks: Chunks, cross_entropy: Array, squared_log_z: Array, of_rows: Array) -> LossSums:
    rows = jnp.stack([of_rows, jnp.sum(chunks.weights, axis=(0, 2))])
    return LossSums(cross_entropy, squared_log_z, jnp.sum(chunks.weights), rows=rows)


def _objective_forward(
    chunks: Chunks, head: Float[Array, "d v"], z_loss: Float[Array, ""]
) -> tuple[tuple[Float[Array, ""], LossSums], Gradients]:
    """The objective and its gradients. With the softmax p: ∂/∂logits = weight · ((1 + 2 · z_loss · log_z) · p - [is target])."""
    narrow = head.astype(chunks.hidden.dtype)

    def add(total: tuple[Array, Array, Array, Array], chunk: Chunks) -> tuple[tuple[Array, Array, Array, Array], Array]:
        logits, is_target, chosen = _logits(chunk, narrow)
        weights = chunk.weights
        largest = jnp.max(logits, axis=-1)
        exponentials = jnp.exp(logits - largest[..., None])
        normalizer = jnp.sum(exponentials, axis=-1)
        log_z = largest + jnp.log(normalizer)
        losses = weights * (log_z - chosen)
        found = jnp.sum(losses), jnp.sum(weights * log_z**2), jnp.sum(losses, axis=1)
        share = weights * (1 + 2 * z_loss * log_z) / normalizer
        of_logits = share[..., None] * exponentials - jnp.where(is_target, weights[..., None], jnp.float32(0))
        of_logits = of_logits.astype(narrow.dtype)
        of_hidden = jnp.einsum("bcv,dv->bcd", of_logits, narrow)
        of_head = jnp.einsum("bcd,bcv->dv", chunk.hidden, of_logits, preferred_element_type=jnp.float32)
        return jax.tree.map(jnp.add, total, (*found, of_head)), of_hidden

    nothing = jnp.zeros(())
    start = nothing, nothing, jnp.zeros(chunks.weights.shape[1]), jnp.zeros(head.shape, jnp.float32)
    (cross_entropy, squared_log_z, of_rows, of_head), of_hidden = jax.lax.scan(add, start, chunks)
    sums = _sums(chunks, cross_entropy, squared_log_z, of_rows)
    return (cross_entropy + z_loss * squared_log_z, sums), (of_hidden, of_head.astype(head.dtype), squared_log_z)


def _objective_backward(
    gradients: Gradients, cotangents: tuple[Float[Array, ""], LossSums]
) -> tuple[Chunks, Float[Array, "d v"], Float[Array, ""]]:
    scale = cotangents[0]  # the sums have no gradient
    of_hidden, of_head, of_z_loss = (scale.astype(part.dtype) * part for part in gradients)
    return Chunks(of_hidden, None, None), of_head, of_z_loss  # type: ignore[arg-type]


_objective.defvjp(_objective_forward, _objective_backward)
