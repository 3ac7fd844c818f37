"""The decoder's layers with other attention: rows with texts that share beginnings, and texts that grow token by token. No gradients.

Shape letters: b batch, t new token, s slot, d d_model, k kv head, e head_dim, l layer, q query row of a kv head.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import Execution, ModelConfig
from phasewise.trainer.kernels.xla import MASKED, Keys, Query, blocks, from_rows, mix, to_rows
from phasewise.trainer.model.decoder import PLAIN, Hidden, Tokens, rotations, run_stacks, strictly_typed
from phasewise.trainer.model.params import Params, stacks
from phasewise.trainer.sharding import constrain, map_shards

BLOCK_SLOTS = 256
MAX_SINGLE_QUERIES = 4  # so few queries of a kv head are multiplied one by one: on a CPU, products with vectors are faster
KEY_AXES, VALUE_AXES = (None, "batch", "kv_heads", None, "position"), (None, "batch", "kv_heads", "position", None)
LAYER_NUMBER = "layer_number"  # key of a layer's number among its weights, so that loops over layers pass it on


class Cache(NamedTuple):
    """Keys and values of a batch of growing texts. All rows end at the same slot, and start at the first slot of their text."""

    # of every layer, after norms and RoPE. The number of slots is a multiple of `BLOCK_SLOTS`, the last axis of the keys
    keys: Float[Array, "l b k e s"]
    values: Float[Array, "l b k s e"]
    starts: Int[Array, " b"]  # the slot of each row's first token
    length: Int[Array, ""]  # number of filled slots, in all rows


class Branches(NamedTuple):
    """The layout of rows with several texts."""

    ends: Int[Array, "b t"]  # for each slot, the first later slot that does not see it
    positions: Int[Array, "b t"]  # for each slot, the number of earlier tokens of its text


class Sums(NamedTuple):
    """The softmax over some scores before the division: the largest score, Σ exp(score - largest), Σ exp(…) · value."""

    largest: Float[Array, "b k q"]
    total: Float[Array, "b k q"]
    values: Float[Array, "b k q e"]


def attend_past(query: Query, key: Keys, value: Keys, cache: Cache, layer: Int[Array, ""], *, sliding_window: int | None) -> Query:
    """Return causal grouped-query attention of new tokens to a layer's cache and to each other.

    Scores are scaled by 1/√e, and scores and softmax are float32. The new tokens are in the slots from `cache.length` on. A slot before its
    row's start sees only itself. The cache has all layers, as a layer's part would be a copy.
    """

    def of_device(query: Array, key: Array, value: Array, *past: Array) -> Array:
        *arrays, layer = past
        cache = Cache(*arrays)
        new, heads = query.shape[1:3]
        rows = to_rows(query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype), key.shape[2])
        own = cache.length + jnp.arange(new)
        query_slots = jnp.tile(own, heads // key.shape[2])
        seen = visible_slots(query_slots, own, cache.starts, sliding_window) | (query_slots[:, None] == own)
        sums = weigh(rows, key.transpose(0, 2, 3, 1), value.swapaxes(1, 2), seen)

        def add_block(number: Int[Array, ""], sums: Sums) -> Sums:
            first, zero = number * BLOCK_SLOTS, jnp.int32(0)
            *sizes, width, _ = cache.keys.shape[1:]
            keys = jax.lax.dynamic_slice(cache.keys, (layer, zero, zero, zero, first), (1, *sizes, width, BLOCK_SLOTS))[0]
            values = jax.lax.dynamic_slice(cache.values, (layer, zero, zero, first, zero), (1, *sizes, BLOCK_SLOTS, width))[0]
            slots = first + jnp.arange(BLOCK_SLOTS)
            seen = visible_slots(query_slots, slots, cache.starts, sliding_window) & (slots < cache.length)
            other = weigh(rows, keys, values, seen)
            largest = jnp.maximum(sums.largest, other.largest)
            shrink, shrink_other = jnp.exp(sums.largest - largest), jnp.exp(other.largest - largest)
            total = sums.total * shrink + other.total * shrink_other
            return Sums(largest, total, sums.values * shrink[..., None] + other.values * shrink_other[..., None])

        first = jnp.int32(0) if sliding_window is None else jnp.maximum(cache.length - sliding_window + 1, 0) // BLOCK_SLOTS
        sums = jax.lax.fori_loop(first, -(-cache.length // BLOCK_SLOTS), add_block, sums)
        return from_rows(sums.values / sums.total[..., None], heads).astype(query.dtype)

    letters = ("b.he", "b.ke", "b.ke", "lbke.", "lbk.e", "b", "", "")
    return map_shards(of_device, query, key, value, *cache, layer, letters=letters)


def visible_slots(
    query_slots: Int[Array, " q"], slots: Int[Array, " s"], starts: Int[Array, " b"], sliding_window: int | None
) -> Bool[Array, "b 1 q s"]:
    """Return the visible slots: slots of the row's tokens that are not later, within the window."""
    back = query_slots[:, None] - slots
    seen = back >= 0 if sliding_window is None else (back >= 0) & (back < sliding_window)
    return (seen[None] & (slots >= starts[:, None])[:, None])[:, None]


def weigh(
    rows: Float[Array, "b k q e"], keys: Float[Array, "b k e s"], values: Float[Array, "b k s e"], seen: Bool[Array, "b 1 q s"]
) -> Sums:
    """Return the sums over some slots. If a query sees none of them, their weight is 0 next to visible slots."""
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    parts = rows.shape[2] if rows.shape[2] <= MAX_SINGLE_QUERIES else 1
    scores = jnp.concatenate([product("bkqe,bkes->bkqs", part, keys) for part in jnp.split(rows, parts, axis=2)], axis=2)
    scores = jnp.where(seen, scores, jnp.float32(MASKED))
    largest = jnp.max(scores, axis=-1)
    exponentials = jnp.exp(scores - largest[..., None])
    weights = jnp.split(exponentials.astype(values.dtype), parts, axis=2)
    mixed = jnp.concatenate([product("bkqs,bkse->bkqe", part, values) for part in weights], axis=2)
    return Sums(largest, jnp.sum(exponentials, axis=-1), mixed)


def attend_branches(query: Query, key: Keys, value: Keys, branches: Branches, *, sliding_window: int | None) -> Query:
    """Return grouped-query attention, scaled by 1/√e, of each slot to earlier slots of its text within the window.

    The window counts positions, as slots of other texts may lie between two slots of a text.
    """

    def of_device(query: Array, key: Array, value: Array, ends: Array, positions: Array) -> Array:
        operands = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype), key.swapaxes(1, 2), value.swapaxes(1, 2)
        cut = blocks(query.shape[1], None)
        masks: list[Array] = []
        for block in cut:
            slots = jnp.arange(block.start, block.stop)
            seen = (jnp.arange(block.stop) <= slots[:, None])[None] & (slots[:, None] < ends[:, None, : block.stop])
            if sliding_window is not None:
                back = positions[:, block.start : block.stop, None] - positions[:, None, : block.stop]
                seen &= back < sliding_window
            masks.append(seen[:, None, None])
        mixed = [mix(block, operands, seen).values for block, seen in zip(cut, masks, strict=True)]
        return jnp.concatenate([from_rows(part, query.shape[2]) for part in mixed], axis=1).astype(query.dtype)

    return map_shards(of_device, query, key, value, *branches, letters=("b.he", "b.ke", "b.ke", "b.", "b."))


@strictly_typed
def hidden_states_of_branches(
    params: Params, tokens: Tokens, config: ModelConfig, branches: Branches, *, execution: Execution = PLAIN
) -> Hidden:
    """Return `trainer.model.decoder.run_layers` of rows with several texts. Each text has the same values as in a separate row.

    Rows, and so their texts, have at most `config.seq_len` slots.
    """
    return run_stacks(
        params,
        tokens,
        config,
        rotation=rotations(config.rope, tokens.shape[1], config.head_dim, branches.positions),
        attend=lambda kind, _, q, k, v: (attend_branches(q, k, v, branches, sliding_window=kind.window), None),
        execution=execution,
    )[0]


def empty_cache(config: ModelConfig, starts: Int[Array, " b"], slots: int) -> Cache:
    """Return an empty cache for `slots`, rounded up to whole blocks of attention."""
    room = -(-slots // BLOCK_SLOTS) * BLOCK_SLOTS
    dtype = jnp.float32 if config.float32_attention else jnp.dtype(config.compute_dtype)
    of_all = (config.num_layers, starts.shape[0], config.num_kv_heads)
    keys = jnp.zeros((*of_all, config.head_dim, room), dtype)
    values = jnp.zeros((*of_all, room, config.head_dim), dtype)
    return Cache(constrain(keys, *KEY_AXES), constrain(values, *VALUE_AXES), starts, jnp.int32(0))


@strictly_typed
def extend(params: Params, tokens: Tokens, config: ModelConfig, cache: Cache, *, execution: Execution = PLAIN) -> tuple[Hidden, Cache]:
    """Return the hidden states of the next tokens of every row, and the cache with these tokens. Earlier tokens are not recomputed.

    Slots before a row's start may have any token: the row does not see them, and their results have no meaning. A text has at most
    `config.seq_len` tokens, and the cache must have room.
    """

    slots = cache.length + jnp.arange(tokens.shape[1])
    positions = jnp.maximum(slots - cache.starts[:, None], 0)
    rotation = rotations(config.rope, config.seq_len, config.head_dim, positions)
    numbered = {stack.name: params[stack.name] | {LAYER_NUMBER: jnp.array(stack.layers, jnp.int32)} for stack in stacks(config)}
    hidden, measured = run_stacks(
        params | numbered,
        tokens,
        config,
        rotation=rotation,
        attend=lambda kind, weights, query, key, value: (
            attend_past(query, key, value, cache, weights[LAYER_NUMBER], sliding_window=kind.window),
            (key, value),
        ),
        execution=execution,
    )
    numbers = [layer for layers in measured for layer in layers]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    kept = [of_stack.kept for of_stack in measured.values()]
    key, value = (jnp.concatenate(parts)[jnp.array(order)] if len(kept) > 1 else parts[0] for parts in zip(*kept, strict=True))
    at = cache.length + (hidden.ravel()[0] > jnp.inf).astype(jnp.int32)  # waits for the layers, which read the cache
    keys = jax.lax.dynamic_update_slice_in_dim(cache.keys, key.transpose(0, 1, 3, 4, 2), at, axis=4)
    values = jax.lax.dynamic_update_slice_in_dim(cache.values, value.swapaxes(2, 3), at, axis=3)
    return hidden, Cache(constrain(keys, *KEY_AXES), constrain(values, *VALUE_AXES), cache.starts, cache.length + tokens.shape[1])
