"""The decoder where nothing is learned: rows that hold several texts with shared beginnings, and texts that grow token by token.

The layers are those of `trainer.model.decoder`; only how queries meet keys is another.

Shape letters: b batch, t new token, s slot, d d_model, k kv head, e head_dim.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trainer.config import Execution, ModelConfig
from trainer.kernels.branches import Branches, attend_branches
from trainer.kernels.cached import BLOCK_SLOTS, Past, attend_past
from trainer.model.decoder import PLAIN, run_stacks, strictly_typed
from trainer.model.layers import LayerKind, stacks
from trainer.model.params import Params
from trainer.model.rope import rotations_at
from trainer.sharding import constrain_activation

KEYS, VALUES = "kept_keys", "kept_values"
"""Under these names what a layer kept lies beside its weights, so that loops over layers take it along."""


class Cache(NamedTuple):
    """What a batch of growing texts keeps. All rows end at the same slot; each begins where its text begins.

    Attributes:
        kept: stack → `KEYS` [layer b k e s] and `VALUES` [layer b k s e], after norms and RoPE.
        starts: the slot of each row's first token.
        length: how many slots are filled.
    """

    kept: dict[str, dict[str, Array]]
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
    rows = starts.shape[0]
    room = -(-slots // BLOCK_SLOTS) * BLOCK_SLOTS
    dtype = jnp.float32 if config.float32_attention else jnp.dtype(config.compute_dtype)
    heads, width = config.num_kv_heads, config.head_dim
    kept = {
        stack.name: {
            KEYS: jnp.zeros((len(stack.layers), rows, heads, width, room), dtype),
            VALUES: jnp.zeros((len(stack.layers), rows, heads, room, width), dtype),
        }
        for stack in stacks(config)
    }
    return _placed(Cache(kept, starts, jnp.int32(0)))


@strictly_typed
def extend(
    params: Params, tokens: Int[Array, "b t"], config: ModelConfig, cache: Cache, *, execution: Execution = PLAIN
) -> tuple[Float[Array, "b t d"], Cache]:
    """The hidden states of the next tokens of every row, and the cache with them in it. Nothing before is computed again.

    Slots before a row's start hold whatever token; nothing of the row sees them, and what comes out for them means nothing. A text is at
    most `config.seq_len` long; the cache must have room.
    """

    def attend(kind: LayerKind, weights: Params, query: Array, key: Array, value: Array) -> tuple[Array, tuple[Array, Array]]:
        past = Past(weights[KEYS], weights[VALUES], cache.starts, cache.length)
        return attend_past(query, key, value, past, sliding_window=kind.window), (key, value)

    slots = cache.length + jnp.arange(tokens.shape[1])
    positions = jnp.maximum(slots - cache.starts[:, None], 0)
    rotation = rotations_at(config.rope, positions, config.seq_len, config.head_dim)
    with_cache = params | {name: params[name] | kept for name, kept in cache.kept.items()}
    hidden, measured = run_stacks(with_cache, tokens, config, rotation=rotation, attend=attend, execution=execution)
    kept = {stack.name: _written(cache.kept[stack.name], *measured[stack.layers].kept, cache.length) for stack in stacks(config)}
    return hidden, _placed(Cache(kept, cache.starts, cache.length + tokens.shape[1]))


def _written(kept: dict[str, Array], key: Float[Array, "l b t k e"], value: Float[Array, "l b t k e"], at: Array) -> dict[str, Array]:
    """What a stack keeps, with the new tokens from slot `at` on."""
    return {
        KEYS: jax.lax.dynamic_update_slice_in_dim(kept[KEYS], key.transpose(0, 1, 3, 4, 2), at, axis=4),
        VALUES: jax.lax.dynamic_update_slice_in_dim(kept[VALUES], value.swapaxes(2, 3), at, axis=3),
    }


def _placed(cache: Cache) -> Cache:
    """On a mesh: rows and heads are cut as they are elsewhere."""
    kept = {
        name: {KEYS: constrain_activation(arrays[KEYS], "lbkes"), VALUES: constrain_activation(arrays[VALUES], "lbkse")}
        for name, arrays in cache.kept.items()
    }
    return Cache(kept, cache.starts, cache.length)
