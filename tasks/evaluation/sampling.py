"""How the next token is chosen: the likeliest, or one drawn by a seed.

Shape letters: r rows, v vocab.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt


class Sampling(NamedTuple):
    """Greedy where `temperature` is 0; then the others mean nothing.

    Attributes:
        top_k: only so many of the likeliest tokens are drawn from; 0 is all.
        top_p: only the likeliest tokens that have this probability together are drawn from; 1 is all.
    """

    temperature: Any = 0.0
    top_k: Any = 0
    top_p: Any = 1.0


def row_keys(seed: int, contexts: Sequence[Sequence[int]], repeats: Sequence[int]) -> UInt[np.ndarray, "r two"]:
    """A random key for each row, from its tokens and how often the same were asked before: so no row's draw depends on the others."""
    asked = zip(contexts, repeats, strict=True)
    digests = [hashlib.sha256(repr((seed, repeat, list(context))).encode()).digest() for context, repeat in asked]
    return np.stack([np.frombuffer(digest[:8], "<u4") for digest in digests])


def choose_tokens(z: Float[Array, "r v"], sampling: Sampling, keys: UInt[Array, "r two"], step: Int[Array, ""]) -> Int[Array, " r"]:
    """The next token of each row. `step` counts the row's tokens: a draw depends on nothing else, whatever was computed at once."""

    def draw() -> Array:
        scaled = z / sampling.temperature
        kept = jnp.where(scaled >= _threshold(scaled, sampling), scaled, -jnp.inf)
        keys_now = jax.vmap(lambda key: jax.random.fold_in(jax.random.wrap_key_data(key), step))(keys)
        return jax.vmap(jax.random.categorical)(keys_now, kept).astype(jnp.int32)

    return jax.lax.cond(sampling.temperature > 0, draw, lambda: jnp.argmax(z, axis=-1).astype(jnp.int32))


def _threshold(scaled: Float[Array, "r v"], sampling: Sampling) -> Float[Array, "r one"]:
    """The least of the logits that are drawn from: first `top_k`, then `top_p` of what is left (Holtzman et al., 2020)."""
    ranked = -jnp.sort(-scaled, axis=-1)
    is_kept = (jnp.arange(scaled.shape[-1]) < sampling.top_k) | (sampling.top_k <= 0)
    probabilities = jax.nn.softmax(jnp.where(is_kept, ranked, -jnp.inf), axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    count = jnp.sum(is_kept & (before < sampling.top_p), axis=-1, keepdims=True)
    return jnp.take_along_axis(ranked, jnp.maximum(count - 1, 0), axis=-1)
