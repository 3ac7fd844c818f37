"""Which experts each token has, and what that says of the load on them.

Shape letters: n token (rows of a batch one after the other; or b row and t position, see `trainer.kernels.rows.join_rows`), d d_model,
x expert, k chosen expert.
Logits, scores, gates and sums are float32, whatever the type of the tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import Experts
from phasewise.trainer.kernels.rows import map_tokens

EPSILON = 1e-20
"""Keeps the gates finite where all scores of a token underflow (as AFMoE of transformers has it)."""


class Routed(NamedTuple):
    """What the router decided for each token.

    Attributes:
        chosen: the experts of a token, best first; all different.
        gates: the weight of each of them in the result. They sum to `route_scale`.
        scores: sigmoid of the logits of all experts, without the bias.
    """

    chosen: Int[Array, "*n k"]
    gates: Float[Array, "*n k"]
    scores: Float[Array, "*n x"]


class Load(NamedTuple):
    """Sums over tokens of one layer: those of the parts of a batch add up, and so do those of devices.

    Attributes:
        counts: tokens that have each expert. A token counts `num_active` times, once an expert.
        entropy: Σ over tokens of the entropy, in nats, of the token's scores divided by their sum. At most tokens · log(num_experts).
        tokens: how many there were.
        overflowed: assignments beyond 1.25 times the mean load of an expert, in the parts of the batch that were computed at once. None of
            them was dropped. Padding is computed, too, and counts here.
        assigned: all assignments, those of padding among them.
    """

    counts: Int[Array, " x"]
    entropy: Float[Array, ""]
    tokens: Int[Array, ""]
    overflowed: Int[Array, ""]
    assigned: Int[Array, ""]


def route(x: Float[Array, "*n d"], weight: Float[Array, "d x"], bias: Float[Array, " x"], experts: Experts) -> Routed:
    """The `num_active` experts of the largest score + bias, and gates from the scores alone (Trinity report, eqs 16–18).

    A tie goes to the expert of the lower number (`jax.lax.top_k` says so). A token's logits are sums over the whole of d_model in full
    float32 precision, on the device that has the token: so the choice does not depend on how a mesh cuts the batch. No gradient
    goes through the choice, and none to the bias.
    """
    x32 = x.astype(jnp.float32)
    logits = jnp.matmul(x32, weight.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)  # a TPU would take bfloat16
    scores = jax.nn.sigmoid(logits)
    biased = jax.lax.stop_gradient(scores + bias.astype(jnp.float32))
    chosen = map_tokens(lambda scores: jax.lax.top_k(scores, experts.num_active)[1], biased)
    picked = _one_hot(chosen, experts.num_experts)
    own = jnp.sum(jnp.where(picked, scores[..., None, :], jnp.float32(0)), axis=-1)  # a gather, whose gradient would be a scatter
    gates = jnp.float32(experts.route_scale) * own / (jnp.sum(own, axis=-1, keepdims=True) + jnp.float32(EPSILON))
    return Routed(chosen.astype(jnp.int32), gates, scores)


def measure_load(routed: Routed, overflowed: Int[Array, ""], counted: Bool[Array, "*n"] | None = None) -> Load:
    """The sums of one part of a batch; without gradients.

    Args:
        overflowed: as `trainer.kernels.experts.apply_experts` gives it.
        counted: False for tokens that are padding: they have experts, but must not move the balance. None counts all.
    """
    routed = jax.lax.stop_gradient(routed)
    *tokens, num_experts = routed.scores.shape
    counted = jnp.ones(tokens, jnp.bool_) if counted is None else counted
    picked = _one_hot(routed.chosen, num_experts) & counted[..., None, None]
    shares = score_shares(routed)
    entropy = -jnp.sum(jnp.where(counted[..., None], jax.scipy.special.xlogy(shares, shares), jnp.float32(0)))
    counts = jnp.sum(picked, axis=tuple(range(picked.ndim - 1)), dtype=jnp.int32)
    return Load(counts, entropy, jnp.sum(counted, dtype=jnp.int32), overflowed, jnp.asarray(routed.chosen.size, jnp.int32))


def sequence_loss(routed: Routed, rows: int, counted: Bool[Array, "*n"] | None = None) -> Float[Array, ""]:
    """Σ over rows of tokens · Σᵢ fᵢ Pᵢ. Parts of a batch add up; divided by all tokens, it is the mean of the rows' losses.

    Of one row: P is the mean over its tokens of their scores divided by their sum, f the share of its tokens that have expert i, times
    num_experts / num_active (DeepSeek-V3, eqs 17–20; Trinity report, eqs 29–32). f is not differentiated. Where the load is even, a row's
    loss is 1; the weight (`Experts.sequence_loss`) is not in it.

    Args:
        rows: of how many rows of equal length the tokens are.
        counted: as in `measure_load`.
    """
    num_experts = routed.scores.shape[-1]
    tokens = routed.scores.size // num_experts
    assert tokens % rows == 0, f"{tokens} tokens are not {rows} rows of equal length"
    kept = jnp.ones((rows, tokens // rows, 1), jnp.float32) if counted is None else counted.reshape(rows, -1, 1).astype(jnp.float32)
    picked = _one_hot(routed.chosen, num_experts).any(axis=-2).reshape(rows, -1, num_experts)
    counts = jnp.sum(jnp.where(picked, kept, jnp.float32(0)), axis=1)
    assigned = jnp.maximum(jnp.sum(counts, axis=-1, keepdims=True), jnp.float32(1))
    probability_sums = jnp.sum(kept * score_shares(routed).reshape(rows, -1, num_experts), axis=1)
    return jnp.sum(jax.lax.stop_gradient(num_experts * counts / assigned) * probability_sums)


def score_shares(routed: Routed) -> Float[Array, "*n x"]:
    """Each token's scores divided by their sum: a distribution over all experts."""
    return routed.scores / (jnp.sum(routed.scores, axis=-1, keepdims=True) + jnp.float32(EPSILON))


def _one_hot(chosen: Int[Array, "*n k"], num_experts: int) -> Bool[Array, "*n k x"]:
    return chosen[..., None] == jnp.arange(num_experts, dtype=chosen.dtype)
