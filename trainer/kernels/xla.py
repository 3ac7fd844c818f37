"""Attention in plain XLA, for every platform: blocks of queries, each with its visible keys.

Shape letters: b batch, t query position, s key position, h query head, k kv head, e head_dim, c query of a block, q query row: the queries
of a block for all query heads of a kv head.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Query = Float[Array, "b t h e"]
Keys = Float[Array, "b s k e"]  # keys or values
Ids = Int[Array, "b t"] | None
MASKED = -1e30
MIN_BLOCK, MAX_BLOCKS = 64, 8  # products of shorter blocks are slow on a CPU. More blocks save little, and compile longer


class Block(NamedTuple):
    """Queries `start:stop`, and their visible keys `first:stop`."""

    start: int
    stop: int
    first: int


class Mixed(NamedTuple):
    """A block's result, and the residuals of its gradients: exp(score - largest), and their sum."""

    values: Float[Array, "b k q e"]
    exponentials: Float[Array, "b k q s"]
    total: Float[Array, "b k q 1"]


Operands = tuple[Query, Float[Array, "b k s e"], Float[Array, "b k s e"]]
"""Queries times 1/√e, and keys and values with the head before the position."""


def _attend_forward(
    query: Query, key: Keys, value: Keys, segment_ids: Ids, sliding_window: int | None = None
) -> tuple[Query, tuple[Operands, list[Mixed]]]:
    operands = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype), key.swapaxes(1, 2), value.swapaxes(1, 2)
    mixed: list[Mixed] = []
    for block in blocks(query.shape[1], sliding_window):
        back = jnp.arange(block.start, block.stop)[:, None] - jnp.arange(block.first, block.stop)
        seen = (back >= 0 if sliding_window is None else (back >= 0) & (back < sliding_window))[None]
        if segment_ids is not None:
            seen &= segment_ids[:, block.start : block.stop, None] == segment_ids[:, None, block.first : block.stop]
        mixed.append(mix(block, operands, seen[:, None, None]))
    return jnp.concatenate([from_rows(part.values, query.shape[2]) for part in mixed], axis=1).astype(query.dtype), (operands, mixed)


def _attend_backward(sliding_window: int | None, saved: tuple[Operands, list[Mixed]], of_result: Query) -> tuple[Query, Keys, Keys, None]:
    """With the softmax p: ∂/∂scores = p · (∂/∂p - Σ p · ∂/∂p), and the sum equals Σ result · ∂/∂result (Dao et al., 2022, §B.4)."""
    (query, key, value), mixed = saved
    of_query: list[Array] = []
    of_key = of_value = jnp.zeros(key.swapaxes(2, 3).shape, jnp.float32)  # transposed for faster products
    for block, part in zip(blocks(query.shape[1], sliding_window), mixed, strict=True):
        queries, seen = slice(block.start, block.stop), slice(block.first, block.stop)
        rows = to_rows(query[:, queries], key.shape[1])
        above = to_rows(of_result[:, queries], key.shape[1]).astype(jnp.float32) / part.total
        narrow = above.astype(query.dtype)
        of_weights = jnp.einsum("bkqe,bkse->bkqs", narrow, value[:, :, seen], preferred_element_type=jnp.float32)
        shift = jnp.sum(above * part.values, axis=-1, keepdims=True)
        of_scores = (part.exponentials.astype(jnp.float32) * (of_weights - shift)).astype(query.dtype)
        q = jnp.einsum("bkqs,bkse->bkqe", of_scores, key[:, :, seen], preferred_element_type=jnp.float32)
        k = jnp.einsum("bkqs,bkqe->bkes", of_scores, rows, preferred_element_type=jnp.float32)
        v = jnp.einsum("bkqs,bkqe->bkes", part.exponentials, narrow, preferred_element_type=jnp.float32)
        of_query.append(from_rows(q, query.shape[2]))
        of_key = of_key.at[..., seen].add(k)
        of_value = of_value.at[..., seen].add(v)
    of_key, of_value = jax.lax.optimization_barrier((of_key, of_value))
    scaled = jnp.concatenate(of_query, axis=1) * jnp.float32(query.shape[-1] ** -0.5)
    back = (x.transpose(0, 3, 1, 2).astype(key.dtype) for x in (of_key, of_value))
    return scaled.astype(query.dtype), *back, None


attend = jax.custom_vjp(
    lambda query, key, value, segment_ids, sliding_window=None: _attend_forward(query, key, value, segment_ids, sliding_window)[0],
    nondiff_argnums=(4,),
)
"""As `trainer.kernels.attention.attend`. Products run in the type of `query`, with float32 sums."""
attend.defvjp(_attend_forward, _attend_backward)


@jax.checkpoint
def attend_seen(query: Query, key: Keys, value: Keys, seen: Bool[Array, "#b t s"]) -> Query:
    """As `attend`, with a mask of visible keys, at least one for each query. The backward pass recomputes the scores."""
    _, length, heads, width = query.shape
    rows = to_rows(query * jnp.asarray(width**-0.5, query.dtype), key.shape[2])
    scores = jnp.einsum("bkqe,bske->bkqs", rows, key, preferred_element_type=jnp.float32)
    masks = jnp.tile(seen[:, None], (1, 1, rows.shape[2] // length, 1))
    weights = jax.nn.softmax(jnp.where(masks, scores, jnp.float32(MASKED)), axis=-1)
    mixed = jnp.einsum("bkqs,bske->bkqe", weights.astype(query.dtype), value, preferred_element_type=jnp.float32)
    return from_rows(mixed, heads).astype(query.dtype)


def blocks(length: int, sliding_window: int | None) -> list[Block]:
    """Return the row in blocks of equal length, with a shorter last block."""
    size = max(MIN_BLOCK, -(-length // MAX_BLOCKS))
    starts = range(0, length, size)
    firsts = [0 if sliding_window is None else max(0, start - sliding_window + 1) for start in starts]
    return [Block(start, min(start + size, length), first) for start, first in zip(starts, firsts, strict=True)]


def mix(block: Block, operands: Operands, seen: Bool[Array, "#b 1 1 c s"]) -> Mixed:
    """Return softmax(scores) · values, with the division by the softmax's sum at the end."""
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


def to_rows(x: Float[Array, "b c h e"], kv_heads: int) -> Float[Array, "b k q e"]:
    """Join the query heads of each kv head into rows of one matrix: larger products."""
    batch, length, _, width = x.shape
    return x.reshape(batch, length, kv_heads, -1, width).transpose(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, width)


def from_rows(rows: Float[Array, "b k q e"], query_heads: int) -> Float[Array, "b c h e"]:
    """Invert `to_rows`."""
    batch, kv_heads, _, width = rows.shape
    split = rows.reshape(batch, kv_heads, query_heads // kv_heads, -1, width)
    return split.transpose(0, 3, 1, 2, 4).reshape(batch, -1, query_heads, width)
