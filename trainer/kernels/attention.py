"""Attention behind one function. Today XLA everywhere; Splash on TPU and cuDNN on GPU take their place here."""

import jax.numpy as jnp
from jax.nn import softmax
from jaxtyping import Array, Float, Int

MASKED = -1e30


def attend(
    query: Float[Array, "b t h e"],
    key: Float[Array, "b s k e"],
    value: Float[Array, "b s k e"],
    segment_ids: Int[Array, "b t"],
    *,
    kernel: str = "auto",
    sliding_window: int | None = None,
) -> Float[Array, "b t h e"]:
    """Causal grouped-query attention within documents, scaled by 1/√e; scores and softmax in float32.

    Args:
        query, key, value: `h` is a multiple of `k`; query head i reads kv head i // (h / k).
        segment_ids: equal numbers mark positions of the same document.
        sliding_window: a position sees so many, itself included.
    """
    b, t, h, e = query.shape
    k = key.shape[2]
    g = h // k
    # Query heads that share a kv head become rows of one matrix: batched products of a useful size on every backend.
    rows = query.reshape(b, t, k, g, e).transpose(0, 2, 3, 1, 4).reshape(b, k, g * t, e)
    scores = jnp.einsum("bkqe,bske->bkqs", rows, key, preferred_element_type=jnp.float32) * e**-0.5
    visible = jnp.tril(jnp.ones((t, t), bool)) & (segment_ids[:, :, None] == segment_ids[:, None, :])
    if sliding_window is not None:
        visible &= ~jnp.tril(jnp.ones((t, t), bool), -sliding_window)
    scores = jnp.where(visible[:, None, None], scores.reshape(b, k, g, t, t), MASKED)
    weights = softmax(scores, axis=-1).reshape(b, k, g * t, t).astype(query.dtype)
    mixed = jnp.einsum("bkqs,bske->bkqe", weights, value)
    return mixed.reshape(b, k, g, t, e).transpose(0, 3, 1, 2, 4).reshape(b, t, h, e)
