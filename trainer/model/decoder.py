"""The Llama decoder: the whole forward pass.

Shape letters: b batch, t query position, s key position, d d_model, h query head, k kv head, g query heads a kv head, e head_dim,
f d_ff, v vocab. Norms, softmax, RoPE and logits are float32; matrices run in `compute_dtype`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trainer.config import ModelConfig
from trainer.kernels.attention import attend
from trainer.model.params import Params
from trainer.model.rope import rotate, rotations

BEGIN_OF_TEXT = 0
"""Token id that opens every document; the tokenizers of this project give it number 0."""


def logits(params: Params, tokens: Int[Array, "b t"], config: ModelConfig) -> Float[Array, "b t v"]:
    """Next-token logits. A position sees itself and what comes before it within its own document."""
    return project(params, hidden_states(params, tokens, config), config)


def hidden_states(params: Params, tokens: Int[Array, "b t"], config: ModelConfig) -> Float[Array, "b t d"]:
    """What the head reads: the residual stream after the last block and the final norm."""
    dtype = jnp.dtype(config.compute_dtype)
    documents = jnp.cumsum(tokens == BEGIN_OF_TEXT, axis=1)
    rotation = rotations(config.rope, tokens.shape[1], config.head_dim)

    def block(x: Array, weights: Params) -> tuple[Array, None]:
        weights = jax.tree.map(lambda w: w.astype(dtype), weights)
        x = x + attention(weights, rms_norm(x, weights["attention_norm"], config.rms_norm_epsilon), rotation, documents)
        x = x + mlp(weights, rms_norm(x, weights["mlp_norm"], config.rms_norm_epsilon))
        return x, None

    x = params["embedding"].astype(dtype)[tokens]
    x, _ = jax.lax.scan(block, x, params["blocks"])
    return rms_norm(x, params["final_norm"], config.rms_norm_epsilon)


def project(params: Params, x: Float[Array, "b t d"], config: ModelConfig) -> Float[Array, "b t v"]:
    """The untied head; products in `compute_dtype`, sums and result in float32."""
    head = params["head"].astype(config.compute_dtype)
    return jnp.einsum("btd,dv->btv", x, head, preferred_element_type=jnp.float32)


def attention(
    weights: Params,
    x: Float[Array, "b t d"],
    rotation: tuple[Float[Array, "t e2"], Float[Array, "t e2"]],
    documents: Int[Array, "b t"],
) -> Float[Array, "b t d"]:
    """Grouped-query attention with rotary positions."""
    query = rotate(jnp.einsum("btd,dhe->bthe", x, weights["query"]), rotation)
    key = rotate(jnp.einsum("bsd,dke->bske", x, weights["key"]), rotation)
    value = jnp.einsum("bsd,dke->bske", x, weights["value"])
    return jnp.einsum("bthe,hed->btd", attend(query, key, value, documents), weights["output"])


def mlp(weights: Params, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """SwiGLU."""
    gate = jax.nn.silu(jnp.einsum("btd,df->btf", x, weights["gate"]))
    up = jnp.einsum("btd,df->btf", x, weights["up"])
    return jnp.einsum("btf,fd->btd", gate * up, weights["down"])


def rms_norm(x: Float[Array, "b t d"], gain: Float[Array, " d"], epsilon: float) -> Float[Array, "b t d"]:
    """x / rms(x) · gain, computed in float32 and returned in the type of `x` (Zhang and Sennrich, 2019)."""
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + epsilon)
    return (x32 * scale * gain.astype(jnp.float32)).astype(x.dtype)
