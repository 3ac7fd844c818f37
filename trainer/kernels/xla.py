"""Attention in plain XLA, for every platform: blocks of queries, each against the keys that it can see.

Shape letters: b batch, t query position, s key position, h query head, k kv head, g query heads a kv head, e head_dim;
q the queries of a block that share a kv head, g · its length.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MASKED = -1e30
MIN_BLOCK, MAX_BLOCKS = 64, 8
"""Shorter blocks make products too small to be quick on a CPU; more of them save little, and compilation grows."""


class Block(NamedTuple):
    """Queries `start:stop`, and the keys `first:stop`, which are all that one of them can see."""

    start: int
    stop: int
    first: int


class Mixed(NamedTuple):
    """A block's result, and what its gradients need beside: exp(score - largest), and their sum."""

    values: Float[Array, "b k q e"]
    exponentials: Float[Array, "b k q s"]
    total: Float[Array, "b k q 1"]


Operands = tuple[Float[Array, "b t h e"], Float[Array, "b k s e"], Float[Array, "b k s e"]]
"""Queries times 1/√e; keys and values, head before position."""


def attend(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    segment_ids: Int[Array, "b t"] | None,
    sliding_window: int | None = None,
) -> Float[Array, "b t h e"]:
    """As `trainer.kernels.attention.attend`. Products run in the type of `query`, their sums are float32."""
    return _attend(query, key, value, segment_ids, sliding_window)


def _attend_plain(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    segment_ids: Int[Array, "b t"] | None,
    sliding_window: int | None,
) -> Float[Array, "b t h e"]:
    return _attend_forward(query, key, value, segment_ids, sliding_window)[0]


def _attend_forward(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    segment_ids: Int[Array, "b t"] | None,
    sliding_window: int | None,
) -> tuple[Float[Array, "b t h e"], tuple[Operands, list[Mixed]]]:
    operands = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype), key.swapaxes(1, 2), value.swapaxes(1, 2)
    cut = blocks(query.shape[1], sliding_window)
    mixed = [mix(block, operands, visible(block, segment_ids, sliding_window)) for block in cut]
    parts = [from_rows(part.values, query.shape[2]) for part in mixed]
    return jnp.concatenate(parts, axis=1).astype(query.dtype), (operands, mixed)


def _attend_backward(
    sliding_window: int | None, saved: tuple[Operands, list[Mixed]], of_result: Float[Array, "b t h e"]
) -> tuple[Float[Array, "b t h e"], Float[Array, "b s k e"], Float[Array, "b s k e"], None]:
    (query, key, value), mixed = saved
    of_query: list[Array] = []
    of_key = of_value = jnp.zeros(key.swapaxes(2, 3).shape, jnp.float32)  # transposed: so the products that make them are quicker
    for block, part in zip(blocks(query.shape[1], sliding_window), mixed, strict=True):
        seen = (..., slice(block.first, block.stop))
        q, k, v = differentiate(block, (query, key, value), part, of_result[:, block.start : block.stop])
        of_query.append(from_rows(q, query.shape[2]))
        of_key = of_key.at[seen].add(k)
        of_value = of_value.at[seen].add(v)
    of_key, of_value = jax.lax.optimization_barrier((of_key, of_value))
    scaled = jnp.concatenate(of_query, axis=1) * jnp.float32(query.shape[-1] ** -0.5)
    back = (x.transpose(0, 3, 1, 2).astype(key.dtype) for x in (of_key, of_value))
    return scaled.astype(query.dtype), *back, None


_attend = jax.custom_vjp(_attend_plain, nondiff_argnums=(4,))
_attend.defvjp(_attend_forward, _attend_backward)


@jax.checkpoint
def attend_seen(
    query: Float[Array, "b t h e"], key: Float[Array, "b s k e"], value: Float[Array, "b s k e"], seen: Bool[Array, "#b t s"]
) -> Float[Array, "b t h e"]:
    """As `attend`, where a mask says which keys a query sees: at least one. All scores exist at a time, and are computed again backward."""
    _, length, heads, width = query.shape
    rows = to_rows(query * jnp.asarray(width**-0.5, query.dtype), key.shape[2])
    scores = jnp.einsum("bkqe,bske->bkqs", rows, key, preferred_element_type=jnp.float32)
    masks = jnp.tile(seen[:, None], (1, 1, rows.shape[2] // length, 1))
    weights = jax.nn.softmax(jnp.where(masks, scores, jnp.float32(MASKED)), axis=-1)
    mixed = jnp.einsum("bkqs,bske->bkqe", weights.astype(query.dtype), value, preferred_element_type=jnp.float32)
    return from_rows(mixed, heads).astype(query.dtype)


def blocks(length: int, sliding_window: int | None) -> list[Block]:
    """The row in blocks of equal length; the last may be shorter."""
    size = max(MIN_BLOCK, -(-length // MAX_BLOCKS))
    starts = range(0, length, size)
    firsts = [0 if sliding_window is None else max(0, start - sliding_window + 1) for start in starts]
    return [Block(start, min(start + size, length), first) for start, first in zip(starts, firsts, strict=True)]


def visible(block: Block, segment_ids: Int[Array, "b t"] | None, sliding_window: int | None) -> Bool[Array, "#b 1 1 c s"]:
    """Which keys each query of a block sees: those that are not later, within its segment and window."""
    back = jnp.arange(block.start, block.stop)[:, None] - jnp.arange(block.first, block.stop)
    seen = (back >= 0 if sliding_window is None else (back >= 0) & (back < sliding_window))[None]
    if segment_ids is not None:
        seen &= segment_ids[:, block.start : block.stop, None] == segment_ids[:, None, block.first : block.stop]
    return seen[:, None, None]


def mix(block: Block, operands: Operands, seen: Bool[Array, "#b 1 1 c s"]) -> Mixed:
    """softmax(scores) · values, divided by the softmax's sum at the end."""
    query, key, value = operands
    rows = to_rows(query[:, block.start : block.stop], key.shape[1])
    keys = slice(block.first, block.stop)
    scores = jnp.einsum("bkqe,bkse->bkqs", rows, key[:, :, keys], preferred_element_type=jnp.float32)
    batch, heads, length, width = scores.shape
    scores = scores.reshape(batch, heads, -1, block.stop - block.start, width)
    scores = jnp.where(seen, scores, jnp.float32(MASKED)).reshape(batch, heads, length, width)
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    exponentials = exponentials.astype(query.dtype)
    values = jnp.einsum("bkqs,bkse->bkqe", exponentials, value[:, :, keys], preferred_element_type=jnp.float32)
    return Mixed(values / total, exponentials, total)


def differentiate(
    block: Block, operands: Operands, mixed: Mixed, of_result: Float[Array, "b c h e"]
) -> tuple[Float[Array, "b k q e"], Float[Array, "b k e s"], Float[Array, "b k e s"]]:
    """A block's gradients with respect to its queries, and to the keys and values that it sees.

    With p the softmax: ∂/∂scores = p · (∂/∂p - Σ p · ∂/∂p), and the sum is that of result · ∂/∂result (Dao et al., 2022, §B.4).
    """
    query, key, value = operands
    dtype = query.dtype
    keys = slice(block.first, block.stop)
    rows = to_rows(query[:, block.start : block.stop], key.shape[1])
    above = to_rows(of_result, key.shape[1]).astype(jnp.float32) / mixed.total
    narrow = above.astype(dtype)
    of_weights = jnp.einsum("bkqe,bkse->bkqs", narrow, value[:, :, keys], preferred_element_type=jnp.float32)
    shift = jnp.sum(above * mixed.values, axis=-1, keepdims=True)
    of_scores = (mixed.exponentials.astype(jnp.float32) * (of_weights - shift)).astype(dtype)
    return (
        jnp.einsum("bkqs,bkse->bkqe", of_scores, key[:, :, keys], preferred_element_type=jnp.float32),
        jnp.einsum("bkqs,bkqe->bkes", of_scores, rows, preferred_element_type=jnp.float32),
        jnp.einsum("bkqs,bkqe->bkes", mixed.exponentials, narrow, preferred_element_type=jnp.float32),
    )


def to_rows(x: Float[Array, "b c h e"], kv_heads: int) -> Float[Array, "b k q e"]:
    """The query heads that share a kv head become rows of one matrix: products of a useful size."""
    batch, length, _, width = x.shape
    return x.reshape(batch, length, kv_heads, -1, width).transpose(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, width)


def from_rows(rows: Float[Array, "b k q e"], query_heads: int) -> Float[Array, "b c h e"]:
    """The way back."""
    batch, kv_heads, _, width = rows.shape
    split = rows.reshape(batch, kv_heads, query_heads // kv_heads, -1, width)
    return split.transpose(0, 3, 1, 2, 4).reshape(batch, -1, query_heads, width)
