"""The decoder where nothing is learned: rows that hold several texts with shared beginnings, and texts that grow token by token.

The layers are those of `trainer.model.decoder`; only how queries meet keys is another.

Shape letters: b batch, t new token, s slot, d d_model, k kv head, e head_dim.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import Execution, ModelConfig
from phasewise.trainer.kernels.xla import MASKED, Block, blocks, from_rows, mix, to_rows
from phasewise.trainer.model.decoder import PLAIN, rotations_at, run_stacks, strictly_typed
from phasewise.trainer.model.params import LayerKind, Params, stacks
from phasewise.trainer.sharding import constrain_activation, map_shards

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


class Branches(NamedTuple):
    """How a row is laid out.

    Attributes:
        ends: of each slot, the first slot that does not see it any more; it is behind the slot itself.
        positions: of each slot, the tokens that come before it in its text.
    """

    ends: Int[Array, "b t"]
    positions: Int[Array, "b t"]


LAYER_NUMBER = "layer_number"
"""Under this name a layer's number lies beside its weights, so that loops over layers take it along."""


class Cache(NamedTuple):
    """What a batch of growing texts keeps. All rows end at the same slot; each begins where its text begins.

    Attributes:
        keys, values: of every layer, after norms and RoPE.
        starts: the slot of each row's first token.
        length: how many slots are filled.
    """

    keys: Float[Array, "l b k e s"]
    values: Float[Array, "l b k s e"]
    starts: Int[Array, " b"]
    length: Int[Array, ""]


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
    seen = visible_slots(asking, own, past.starts, sliding_window) | (asking[:, None] == own)
    sums = weigh(rows, key.transpose(0, 2, 3, 1), value.swapaxes(1, 2), seen)

    def add_block(number: Int[Array, ""], sums: Sums) -> Sums:
        first = number * BLOCK_SLOTS
        keys = _block(past.keys, past.layer, first, axis=4)
        values = _block(past.values, past.layer, first, axis=3)
        slots = first + jnp.arange(BLOCK_SLOTS)
        seen = visible_slots(asking, slots, past.starts, sliding_window) & (slots < past.length)
        # The sums over the slots of both
        other = weigh(rows, keys, values, seen)
        largest = jnp.maximum(sums.largest, other.largest)
        shrink, shrink_other = jnp.exp(sums.largest - largest), jnp.exp(other.largest - largest)
        total = sums.total * shrink + other.total * shrink_other
        return Sums(largest, total, sums.values * shrink[..., None] + other.values * shrink_other[..., None])

    first = jnp.int32(0) if sliding_window is None else jnp.maximum(past.length - sliding_window + 1, 0) // BLOCK_SLOTS
    sums = jax.lax.fori_loop(first, -(-past.length // BLOCK_SLOTS), add_block, sums)
    return from_rows(sums.values / sums.total[..., None], heads).astype(query.dtype)


def _block(kept: Float[Array, "l ..."], layer: Int[Array, ""], first: Int[Array, ""], *, axis: int) -> Float[Array, "..."]:
    sizes = [1, *kept.shape[1:]]
    sizes[axis] = BLOCK_SLOTS
    begins = [layer, *[jnp.int32(0)] * (kept.ndim - 1)]
    begins[axis] = first
    return jax.lax.dynamic_slice(kept, begins, sizes)[0]


def visible_slots(
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


def multiplied(one: Float[Array, "..."], other: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Σ over an axis of the products, in float32."""
    return jnp.sum(one.astype(jnp.float32) * other.astype(jnp.float32), axis=axis)


def _product(letters: str, one: Float[Array, "..."], other: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.einsum(letters, one, other, preferred_element_type=jnp.float32)


def attend_branches(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    branches: Branches,
    *,
    sliding_window: int | None,
) -> Float[Array, "b t h e"]:
    """Grouped-query attention, scaled by 1/√e, of each slot to those before it whose end is behind it and which the window reaches."""

    def of_device(query: Array, key: Array, value: Array, ends: Array, positions: Array) -> Array:
        operands = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype), key.swapaxes(1, 2), value.swapaxes(1, 2)
        seen = [visible_branches(block, Branches(ends, positions), sliding_window) for block in blocks(query.shape[1], None)]
        mixed = [mix(block, operands, of_block).values for block, of_block in zip(blocks(query.shape[1], None), seen, strict=True)]
        return jnp.concatenate([from_rows(part, query.shape[2]) for part in mixed], axis=1).astype(query.dtype)

    return map_shards(of_device, query, key, value, *branches, letters=("bthe", "bske", "bske", "bt", "bt"))


def visible_branches(block: Block, branches: Branches, sliding_window: int | None) -> Bool[Array, "b 1 1 c s"]:
    """Which slots each query of a block sees. The window goes by positions: what lies between two slots of a text may be of others."""
    slots = jnp.arange(block.start, block.stop)
    seen = (jnp.arange(block.stop) <= slots[:, None])[None] & (slots[:, None] < branches.ends[:, None, : block.stop])
    if sliding_window is not None:
        back = branches.positions[:, block.start : block.stop, None] - branches.positions[:, None, : block.stop]
        seen &= back < sliding_window
    return seen[:, None, None]


@strictly_typed
def hidden_states_of_branches(
    params: Params, tokens: Int[Array, "b t"], config: ModelConfig, branches: Branches, *, execution: Execution = PLAIN
) -> Float[Array, "b t d"]:
    """`trainer.model.decoder.hidden_states` of rows that are laid out as trees. A text has the values that it has alone in a row.

    Rows are at most `config.seq_len` long, and so are the texts in them.
    """

    def attend(kind: LayerKind, _weights: Params, query: Array, key: Array, value: Array) -> tuple[Array, None]:
        return attend_branches(query, key, value, branches, sliding_window=kind.window), None

    rotation = rotations_at(config.rope, branches.positions, tokens.shape[1], config.head_dim)
    return run_stacks(params, tokens, config, rotation=rotation, attend=attend, execution=execution)[0]


def empty_cache(config: ModelConfig, starts: Int[Array, " b"], slots: int) -> Cache:
    """Room for so many slots, rounded up to whole blocks of attention; nothing is in it yet."""
    room = -(-slots // BLOCK_SLOTS) * BLOCK_SLOTS
    dtype = jnp.float32 if config.float32_attention else jnp.dtype(config.compute_dtype)
    of_all = (config.num_layers, starts.shape[0], config.num_kv_heads)
    keys = jnp.zeros((*of_all, config.head_dim, room), dtype)
    values = jnp.zeros((*of_all, room, config.head_dim), dtype)
    return _placed(Cache(keys, values, starts, jnp.int32(0)))


@strictly_typed
def extend(
    params: Params, tokens: Int[Array, "b t"], config: ModelConfig, cache: Cache, *, execution: Execution = PLAIN
) -> tuple[Float[Array, "b t d"], Cache]:
    """The hidden states of the next tokens of every row, and the cache with them in it. Nothing before is computed again.

    Slots before a row's start hold whatever token; nothing of the row sees them, and what comes out for them means nothing. A text is at
    most `config.seq_len` long; the cache must have room.
    """

    def attend(kind: LayerKind, weights: Params, query: Array, key: Array, value: Array) -> tuple[Array, tuple[Array, Array]]:
        past = Past(cache.keys, cache.values, cache.starts, cache.length, weights[LAYER_NUMBER])
        return attend_past(query, key, value, past, sliding_window=kind.window), (key, value)

    slots = cache.length + jnp.arange(tokens.shape[1])
    rotation = rotations_at(config.rope, jnp.maximum(slots - cache.starts[:, None], 0), config.seq_len, config.head_dim)
    numbered = {stack.name: params[stack.name] | {LAYER_NUMBER: jnp.array(stack.layers, jnp.int32)} for stack in stacks(config)}
    hidden, measured = run_stacks(params | numbered, tokens, config, rotation=rotation, attend=attend, execution=execution)
    key, value = _in_layer_order({layers: of_stack.kept for layers, of_stack in measured.items()})
    at = cache.length + (hidden.ravel()[0] > jnp.inf).astype(jnp.int32)
    keys = jax.lax.dynamic_update_slice_in_dim(cache.keys, key.transpose(0, 1, 3, 4, 2), at, axis=4)
    values = jax.lax.dynamic_update_slice_in_dim(cache.values, value.swapaxes(2, 3), at, axis=3)
    return hidden, _placed(Cache(keys, values, cache.starts, cache.length + tokens.shape[1]))


def _in_layer_order(kept: dict[tuple[int, ...], tuple[Array, Array]]) -> tuple[Float[Array, "l b t k e"], Float[Array, "l b t k e"]]:
    numbers = [layer for layers in kept for layer in layers]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    key, value = (jnp.concatenate(parts)[jnp.array(order)] if len(kept) > 1 else parts[0] for parts in zip(*kept.values(), strict=True))
    return key, value


def _placed(cache: Cache) -> Cache:
    return cache._replace(keys=constrain_activation(cache.keys, "lbkes"), values=constrain_activation(cache.values, "lbkse"))
