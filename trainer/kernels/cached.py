"""Attention of new tokens to those before them, whose keys and values are kept: what generation computes at each step.

Rows end together: each is filled up at its beginning, so that all write their next token into the same slot. The slots that are filled are
read in blocks, so that a step costs what was written, not what there is room for. For reading alone: there are no gradients here.

Shape letters: b batch, t new token, s slot, h query head, k kv head, e head_dim, q the new tokens of all query heads that share a kv head.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.kernels.xla import MASKED, from_rows, to_rows
from phasewise.trainer.sharding import map_shards

BLOCK_SLOTS = 256
MAX_MULTIPLIED_QUERIES = 8
"""So few queries a kv head are multiplied and summed; for more, a product of matrices is quicker (measured on a CPU)."""


class Past(NamedTuple):
    """What is kept of the tokens before, of all layers: a layer's part would be a copy.

    Attributes:
        keys, values: after norms and RoPE. The number of slots is a multiple of `BLOCK_SLOTS`. Keys lie with their slots last: so a step
            reads them in order.
        starts: the slot of each row's first token.
        length: how many slots are filled, in all rows.
        layer: the layer that is computed.
    """

    keys: Float[Array, "l b k e s"]
    values: Float[Array, "l b k s e"]
    starts: Int[Array, " b"]
    length: Int[Array, ""]
    layer: Int[Array, ""]


class Sums(NamedTuple):
    """The softmax of a part of the scores before it is divided: the largest score, Σ exp(score - largest), Σ exp(…) · value."""

    largest: Float[Array, "b k q"]
    total: Float[Array, "b k q"]
    values: Float[Array, "b k q e"]


def attend_past(
    query: Float[Array, "b t h e"], key: Float[Array, "b t k e"], value: Float[Array, "b t k e"], past: Past, *, sliding_window: int | None
) -> Float[Array, "b t h e"]:
    """Causal grouped-query attention, scaled by 1/√e, of new tokens to the past and to one another; scores and softmax in float32.

    The new tokens are in the slots from `past.length` on. A slot before its row's start is seen by itself alone.
    """

    def of_device(query: Array, key: Array, value: Array, *past: Array) -> Array:
        return _attend(query, key, value, Past(*past), sliding_window)

    return map_shards(of_device, query, key, value, *past, letters=("bthe", "bske", "bske", "lbkes", "lbkse", "b", "", ""))


def _attend(query: Array, key: Array, value: Array, past: Past, sliding_window: int | None) -> Array:
    new, heads = query.shape[1:3]
    rows = to_rows(query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype), key.shape[2])
    own = past.length + jnp.arange(new)
    asking = jnp.tile(own, heads // key.shape[2])
    seen = visible(asking, own, past.starts, sliding_window) | (asking[:, None] == own)
    sums = weigh(rows, key.transpose(0, 2, 3, 1), value.swapaxes(1, 2), seen)

    def add_block(number: Int[Array, ""], sums: Sums) -> Sums:
        first = number * BLOCK_SLOTS
        keys = _block(past.keys, past.layer, first, axis=4)
        values = _block(past.values, past.layer, first, axis=3)
        slots = first + jnp.arange(BLOCK_SLOTS)
        seen = visible(asking, slots, past.starts, sliding_window) & (slots < past.length)
        return add(sums, weigh(rows, keys, values, seen))

    first = jnp.int32(0) if sliding_window is None else jnp.maximum(past.length - sliding_window + 1, 0) // BLOCK_SLOTS
    sums = jax.lax.fori_loop(first, -(-past.length // BLOCK_SLOTS), add_block, sums)
    return from_rows(sums.values / sums.total[..., None], heads).astype(query.dtype)


def _block(kept: Float[Array, "l ..."], layer: Int[Array, ""], first: Int[Array, ""], *, axis: int) -> Float[Array, "..."]:
    """The slots from `first` on, of one layer."""
    sizes = [1, *kept.shape[1:]]
    sizes[axis] = BLOCK_SLOTS
    begins = [layer, *[jnp.int32(0)] * (kept.ndim - 1)]
    begins[axis] = first
    return jax.lax.dynamic_slice(kept, begins, sizes)[0]


def visible(
    asking: Int[Array, " q"], slots: Int[Array, " s"], starts: Int[Array, " b"], sliding_window: int | None
) -> Bool[Array, "b 1 q s"]:
    """Which slots are seen: those of the row's own tokens that are not later, and that the window reaches."""
    back = asking[:, None] - slots
    seen = back >= 0 if sliding_window is None else (back >= 0) & (back < sliding_window)
    return (seen[None] & (slots >= starts[:, None])[:, None])[:, None]


def weigh(
    rows: Float[Array, "b k q e"], keys: Float[Array, "b k e s"], values: Float[Array, "b k s e"], seen: Bool[Array, "b 1 q s"]
) -> Sums:
    """The sums over some slots. Where a query sees none of them, they weigh nothing beside slots that it sees."""
    few = rows.shape[2] <= MAX_MULTIPLIED_QUERIES
    scores = multiplied(rows[..., None], keys[:, :, None], 3) if few else _product("bkqe,bkes->bkqs", rows, keys)
    scores = jnp.where(seen, scores, jnp.float32(MASKED))
    largest = jnp.max(scores, axis=-1)
    exponentials = jnp.exp(scores - largest[..., None])
    weights = exponentials.astype(values.dtype)
    mixed = multiplied(weights[..., None], values[:, :, None], 3) if few else _product("bkqs,bkse->bkqe", weights, values)
    return Sums(largest, jnp.sum(exponentials, axis=-1), mixed)


def add(one: Sums, other: Sums) -> Sums:
    """The sums over the slots of both."""
    largest = jnp.maximum(one.largest, other.largest)
    shrink, shrink_other = jnp.exp(one.largest - largest), jnp.exp(other.largest - largest)
    total = one.total * shrink + other.total * shrink_other
    return Sums(largest, total, one.values * shrink[..., None] + other.values * shrink_other[..., None])


def multiplied(one: Float[Array, "..."], other: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Σ over an axis of the products, in float32."""
    return jnp.sum(one.astype(jnp.float32) * other.astype(jnp.float32), axis=axis)


def _product(letters: str, one: Float[Array, "..."], other: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.einsum(letters, one, other, preferred_element_type=jnp.float32)
