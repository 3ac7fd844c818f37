"""Next-token cross-entropy with z-loss."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class LossSums(NamedTuple):
    """Sums over tokens, in nats: parts of a batch add up, and the division comes once at the end."""

    cross_entropy: Float[Array, ""]
    squared_log_z: Float[Array, ""]
    tokens: Float[Array, ""]


def loss_sums(logits: Float[Array, "b t v"], tokens: Int[Array, "b t"]) -> LossSums:
    """Each position but the last predicts the token after it.

    `squared_log_z` is the sum of logsumexp(logits)², which z-loss weighs (PaLM, §5).
    """
    predictions = logits[:, :-1].astype(jnp.float32)
    targets = tokens[:, 1:]
    log_z = jax.nn.logsumexp(predictions, axis=-1)
    is_target = jnp.arange(predictions.shape[-1]) == targets[..., None]
    chosen = jnp.sum(jnp.where(is_target, predictions, 0.0), axis=-1)  # not a gather: its gradient would be a scatter
    return LossSums(jnp.sum(log_z - chosen), jnp.sum(log_z**2), jnp.asarray(targets.size, jnp.float32))
