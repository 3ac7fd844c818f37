"""The decoder where nothing is learned: rows that hold several texts with shared beginnings, and texts that grow token by token.

The layers are those of `trainer.model.decoder`; only how queries meet keys is another.

Shape letters: b batch, t new token, s slot, d d_model, k kv head, e head_dim.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from phasewise.trainer.config import Execution, ModelConfig
from phasewise.trainer.kernels.branches import Branches, attend_branches
from phasewise.trainer.kernels.cached import BLOCK_SLOTS, Past, attend_past
from phasewise.trainer.model.decoder import PLAIN, run_stacks, strictly_typed
from phasewise.trainer.model.layers import LayerKind, stacks
from phasewise.trainer.model.params import Params
from phasewise.trainer.model.rope import rotations_at
from phasewise.trainer.sharding import constrain_activation

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
    at = cache.length + _zero_after(hidden)
    keys = jax.lax.dynamic_update_slice_in_dim(cache.keys, key.transpose(0, 1, 3, 4, 2), at, axis=4)
    values = jax.lax.dynamic_update_slice_in_dim(cache.values, value.swapaxes(2, 3), at, axis=3)
    return hidden, _placed(Cache(keys, values, cache.starts, cache.length + tokens.shape[1]))


def _zero_after(hidden: Float[Array, "b t d"]) -> Int[Array, ""]:
    """0, known when all layers are computed: so the cache is written to after its last reading, and XLA need not copy it at each step.

    (Measured on a CPU: four copies a step, and five times its time. XLA takes an optimization barrier away before it plans copies.)
    """
    return (hidden.ravel()[0] > jnp.inf).astype(jnp.int32)


def _in_layer_order(kept: dict[tuple[int, ...], tuple[Array, Array]]) -> tuple[Float[Array, "l b t k e"], Float[Array, "l b t k e"]]:
    """The new keys and values of all stacks; the dictionary's keys are the numbers of their layers."""
    numbers = [layer for layers in kept for layer in layers]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    key, value = (jnp.concatenate(parts)[jnp.array(order)] if len(kept) > 1 else parts[0] for parts in zip(*kept.values(), strict=True))
    return key, value


def _placed(cache: Cache) -> Cache:
    """On a mesh: rows and heads are cut as they are elsewhere."""
    return cache._replace(keys=constrain_activation(cache.keys, "lbkes"), values=constrain_activation(cache.values, "lbkse"))
