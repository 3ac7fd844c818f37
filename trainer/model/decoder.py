"""The decoder of Llama 3 and, with norms on queries and keys, of Qwen3: the whole forward pass.

Shape letters: b batch, t query position, s key position, d d_model, h query head, k kv head, e head_dim, f d_ff, v vocab.
Weights are float32 and are cast where they are used: products run in `compute_dtype`; norms, RoPE, softmax and logits are float32.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trainer.config import Execution, ModelConfig
from trainer.kernels.attention import attend
from trainer.model.params import Params
from trainer.model.remat import remat
from trainer.model.rope import rotate, rotations
from trainer.sharding import constrain, constrain_activation

PLAIN = Execution()
MAX_UNROLLED_LAYERS = 4
"""So few layers are compiled one by one: no slower to compile, and nothing is stacked for the backward pass."""
strictly_typed = jax.numpy_dtype_promotion("strict")
"""No type is widened without a word: where two meet, one of them was cast."""


def logits(
    params: Params,
    tokens: Int[Array, "b t"],
    config: ModelConfig,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
    execution: Execution = PLAIN,
) -> Float[Array, "b t v"]:
    """Next-token logits. A position sees itself and what comes before it within its own document."""
    return project(params, hidden_states(params, tokens, config, segment_ids=segment_ids, execution=execution), config)


@strictly_typed
def hidden_states(
    params: Params,
    tokens: Int[Array, "b t"],
    config: ModelConfig,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
    execution: Execution = PLAIN,
) -> Float[Array, "b t d"]:
    """What the head reads: the residual stream after the last block and the final norm, in `compute_dtype`.

    Args:
        segment_ids: equal numbers mark tokens that see one another, of one document of the row; None is one document a row. The trainer
            gives None where the model does not attend within documents; code that scores texts always gives them. Positions count through
            the row: RoPE sees only their differences, so that a document among others has the values that it has alone.
        execution: its `attention` and `remat` are used here; they change time and memory, not what is computed.
    """
    rotation = rotations(config.rope, tokens.shape[1], config.head_dim)

    def block(x: Float[Array, "b t d"], weights: Params) -> Float[Array, "b t d"]:
        query, key, value = project_heads(weights, rms_norm(x, weights["attention_norm"], config), config)
        query = rotate(query, rotation)
        key = rotate(key, rotation)
        if config.float32_attention:
            query, key, value = (part.astype(jnp.float32) for part in (query, key, value))
        mixed = attend(query, key, value, segment_ids, kernel=execution.attention, sliding_window=config.sliding_window)
        x = x + multiply(mixed.reshape(*x.shape[:2], -1).astype(x.dtype), weights["output"].reshape(-1, config.d_model))
        return x + mlp(weights, rms_norm(x, weights["mlp_norm"], config))

    layer = remat(block, execution.remat)
    looked_up = constrain(params["embedding"][tokens].astype(config.compute_dtype), "looked_up_batch", "position", "d_model")
    x = constrain_activation(looked_up, "btd")
    unroll = config.num_layers <= MAX_UNROLLED_LAYERS
    x, _ = jax.lax.scan(lambda x, weights: (layer(x, weights), None), x, params["blocks"], unroll=unroll)
    return rms_norm(x, params["final_norm"], config)


@strictly_typed
def project(params: Params, x: Float[Array, "b t d"], config: ModelConfig) -> Float[Array, "b t v"]:
    """Logits: products in `compute_dtype`, sums and result in float32."""
    return jnp.einsum("btd,dv->btv", x, head_weight(params, config).astype(x.dtype), preferred_element_type=jnp.float32)


def head_weight(params: Params, config: ModelConfig) -> Float[Array, "d v"]:
    """What projects onto the vocabulary: a weight of its own, or the embedding transposed (Press and Wolf, 2017)."""
    return params["embedding"].T if config.tied_head else params["head"]


def project_heads(
    weights: Params, x: Float[Array, "b t d"], config: ModelConfig
) -> tuple[Float[Array, "b t h e"], Float[Array, "b t k e"], Float[Array, "b t k e"]]:
    """Queries, keys and values of every head; queries and keys normalised over the head's dimensions where the model does so."""
    query, key, value = (multiply(x, weights[name]) for name in ("query", "key", "value"))
    if config.qk_norm:
        query = rms_norm(query, weights["query_norm"], config)
        key = rms_norm(key, weights["key_norm"], config)
    return query, key, value


def mlp(weights: Params, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """SwiGLU: down(silu(gate(x)) · up(x)) (Shazeer, 2020, eq. 6)."""
    return multiply(jax.nn.silu(multiply(x, weights["gate"])) * multiply(x, weights["up"]), weights["down"])


def multiply(x: Float[Array, "*b n"], weight: Float[Array, "n *m"]) -> Array:
    """The product over the last axis of `x` and the first of `weight`, in the type of `x`: [*b *m].

    Written as a product of two matrices: with more axes, XLA copies operands of the weight's gradient on a CPU.
    """
    rows = x.shape[:-1]
    columns = weight.shape[1:]
    product = x.reshape(math.prod(rows), -1) @ weight.reshape(-1, math.prod(columns)).astype(x.dtype)
    return product.reshape(*rows, *columns)


def rms_norm(x: Float[Array, "*b n"], gain: Float[Array, " n"], config: ModelConfig) -> Float[Array, "*b n"]:
    """x / rms(x) · gain over the last axis, computed in float32 and returned in the type of `x` (Zhang and Sennrich, 2019, eq. 4)."""
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + config.rms_norm_epsilon)
    return (x32 * scale * gain).astype(x.dtype)
