"""Routers: the experts of each token, the load on them, the biases that balance it, and its metrics over the whole batch.

Shape letters: b batch, t position, d d_model, x expert, k chosen expert, n token (all rows of a batch in one axis, or b row and t position,
see `trainer.sharding.join_rows`). Leading axes of biases and counts are layers. Logits, scores, gates and sums are always float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import Balancing, Experts, ModelConfig, SignBalancing, Smebu
from phasewise.trainer.kernels.expert_parallel import apply_on_mesh
from phasewise.trainer.kernels.experts import Matrices, Routed
from phasewise.trainer.model.params import Params, expert_layers, stacks
from phasewise.trainer.sharding import constrain, join_rows, map_shards

BIAS = "router_bias"
EPSILON = 1e-20  # keeps the gates finite if all scores of a token underflow (as in AFMoE of transformers)
Bias = Float[Array, "*layer x"]
Momentum = dict[str, dict[str, Float[Array, "layer x"]]]
"""SMEBU's average of the steps of each bias, in the weights' tree with only the biases."""


class Load(NamedTuple):
    """Sums over the tokens of one layer. The sums of micro-batches and of devices add up."""

    counts: Int[Array, " x"]  # tokens of each expert. A token counts once for each of its `num_active` experts
    # Σ over tokens of the entropy, in nats, of the token's scores divided by their sum. At most tokens · log(num_experts)
    entropy: Float[Array, ""]
    tokens: Int[Array, ""]
    # assignments beyond 1.25 times the mean load of an expert, in each micro-batch. The kernel also computes them. Includes padding
    overflowed: Int[Array, ""]
    assigned: Int[Array, ""]  # all assignments, with padding


class Routing(NamedTuple):
    """The router's sums over a micro-batch in one layer, or in several layers with a first axis. Micro-batches add up."""

    load: Load
    sequence_loss: Float[Array, "*layer"]  # `sequence_loss` below, without its weight. The only field with gradients


class RoutingMetrics(NamedTuple):
    """The routers' metrics of one update (`trainer.metrics`). `overflowed` is over all layers."""

    max_violations: Float[Array, " layer"]
    dead_experts: Int[Array, " layer"]
    router_entropies: Float[Array, " layer"]
    sequence_losses: Float[Array, " layer"]
    expert_loads: Float[Array, "layer x"]
    overflowed: Float[Array, ""]


def mix_experts(
    x: Float[Array, "b t d"], weights: Params, experts: Experts, *, counted: Bool[Array, "b t"] | None, kernel: str
) -> tuple[Float[Array, "b t d"], Routing]:
    """Return Σ of the gated experts of each token (Trinity report, eq. 15, without the shared expert), and the router's sums."""
    flat = join_rows(x)
    is_counted = None if counted is None else counted.reshape(flat.shape[:-1])
    router = constrain(weights["router"], None, None)  # replicated, so that each device sums its tokens' logits
    routed = route(flat, router, weights[BIAS], experts)
    matrices = Matrices(weights["expert_gate"], weights["expert_up"], weights["expert_down"])
    mixed, overflowed = apply_on_mesh(flat, routed, matrices, kernel=kernel)
    routing = Routing(measure_load(routed, overflowed, is_counted), sequence_loss(routed, x.shape[0], is_counted))
    return mixed.reshape(x.shape), routing


def route(x: Float[Array, "*n d"], weight: Float[Array, "d x"], bias: Float[Array, " x"], experts: Experts) -> Routed:
    """Return the `num_active` experts of the largest score + bias, and gates from the scores without the bias (Trinity report, eqs 16-18).

    On a tie the lower expert number wins (`jax.lax.top_k`). One device sums a token's logits over the whole of d_model in full float32
    precision, so the choice does not depend on the mesh. The choice and the bias have no gradient.
    """
    x32 = x.astype(jnp.float32)
    logits = jnp.matmul(x32, weight.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)  # a TPU would take bfloat16
    scores = jax.nn.sigmoid(logits)
    biased = jax.lax.stop_gradient(scores + bias.astype(jnp.float32))
    # on the tokens of each device, which the compiler would gather for `top_k`
    letters = "bt"[: x.ndim - 1] + "."
    chosen = map_shards(lambda scores: jax.lax.top_k(scores, experts.num_active)[1], biased, letters=(letters,))
    picked = chosen[..., None] == jnp.arange(experts.num_experts, dtype=chosen.dtype)
    own = jnp.sum(jnp.where(picked, scores[..., None, :], jnp.float32(0)), axis=-1)  # a gather's gradient would be a scatter
    gates = jnp.float32(experts.route_scale) * own / (jnp.sum(own, axis=-1, keepdims=True) + jnp.float32(EPSILON))
    return Routed(chosen.astype(jnp.int32), gates, scores)


def measure_load(routed: Routed, overflowed: Int[Array, ""], counted: Bool[Array, "*n"] | None = None) -> Load:
    """Return the sums of one micro-batch, without gradients. `counted` is False for padding, and None counts all tokens."""
    routed = jax.lax.stop_gradient(routed)
    *tokens, num_experts = routed.scores.shape
    counted = jnp.ones(tokens, jnp.bool_) if counted is None else counted
    picked = (routed.chosen[..., None] == jnp.arange(num_experts, dtype=routed.chosen.dtype)) & counted[..., None, None]
    shares = routed.scores / (jnp.sum(routed.scores, axis=-1, keepdims=True) + jnp.float32(EPSILON))
    entropy = -jnp.sum(jnp.where(counted[..., None], jax.scipy.special.xlogy(shares, shares), jnp.float32(0)))
    counts = jnp.sum(picked, axis=tuple(range(picked.ndim - 1)), dtype=jnp.int32)
    return Load(counts, entropy, jnp.sum(counted, dtype=jnp.int32), overflowed, jnp.asarray(routed.chosen.size, jnp.int32))


def sequence_loss(routed: Routed, rows: int, counted: Bool[Array, "*n"] | None = None) -> Float[Array, ""]:
    """Return Σ over rows of tokens · Σᵢ fᵢ Pᵢ. Micro-batches add up. Divided by all tokens, it is the mean of the rows' losses.

    For one row, P is the mean over its tokens of their scores divided by their sum, and f is the share of its tokens with expert i, times
    num_experts / num_active (DeepSeek-V3, eqs 17-20, Trinity report, eqs 29-32). f has no gradient. With an even load a row's loss is 1,
    without the weight (`Experts.sequence_loss`).
    """
    num_experts = routed.scores.shape[-1]
    tokens = routed.scores.size // num_experts
    assert tokens % rows == 0, f"{tokens} tokens are not {rows} rows of equal length"
    kept = jnp.ones((rows, tokens // rows, 1), jnp.float32) if counted is None else counted.reshape(rows, -1, 1).astype(jnp.float32)
    picked = (routed.chosen[..., None] == jnp.arange(num_experts, dtype=routed.chosen.dtype)).any(axis=-2)
    counts = jnp.sum(jnp.where(picked.reshape(rows, -1, num_experts), kept, jnp.float32(0)), axis=1)
    assigned = jnp.maximum(jnp.sum(counts, axis=-1, keepdims=True), jnp.float32(1))
    shares = routed.scores / (jnp.sum(routed.scores, axis=-1, keepdims=True) + jnp.float32(EPSILON))
    probability_sums = jnp.sum(kept * shares.reshape(rows, -1, num_experts), axis=1)
    return jnp.sum(jax.lax.stop_gradient(num_experts * counts / assigned) * probability_sums)


def init_momentum(model: ModelConfig) -> Momentum | None:
    """Return zeros if the biases have a momentum."""
    if model.experts is None or not isinstance(model.experts.balancing, Smebu):
        return None
    with_experts = [stack for stack in stacks(model) if stack.kind.has_experts]
    return {stack.name: {BIAS: jnp.zeros((len(stack.layers), model.experts.num_experts), jnp.float32)} for stack in with_experts}


def move_biases(params: Params, momentum: Momentum | None, routing: Routing, model: ModelConfig) -> tuple[Params, Momentum | None]:
    """Return the weights with their routers' biases after an update, and the biases' momentum."""
    assert model.experts is not None
    layers = expert_layers(model)
    moved = dict(params)
    averages: Momentum = {}
    for stack in stacks(model):
        if not stack.kind.has_experts:
            continue
        counts = routing.load.counts[jnp.asarray([layers.index(layer) for layer in stack.layers], jnp.int32)]
        before = None if momentum is None else momentum[stack.name][BIAS]
        bias, average = next_bias(params[stack.name][BIAS], before, counts, model.experts.balancing)
        moved[stack.name] = {**params[stack.name], BIAS: bias}
        if average is not None:
            averages[stack.name] = {BIAS: average}
    return moved, averages or None


def next_bias(bias: Bias, momentum: Bias | None, counts: Int[Array, "*layer x"], balancing: Balancing | None) -> tuple[Bias, Bias | None]:
    """Return bias and momentum after an update with these counts over all micro-batches and devices.

    Sign (Wang et al., 2024, Trinity report, eqs 19-22): ± rate, up for an expert with fewer tokens than the mean, less the mean step.
    SMEBU (eqs 23-28): rate · tanh(sharpness · relative lack), less the mean step, averaged by the momentum.
    With an even load, or without tokens, a step is 0. The sum of the bias is constant up to rounding. The counts of a layer together are
    below 2³¹.
    """
    if balancing is None:
        return bias, momentum
    if isinstance(balancing, SignBalancing):
        assert momentum is None, "sign balancing has no momentum"
        step = jnp.float32(balancing.rate) * jnp.sign(lack(counts))
        return bias + (step - jnp.mean(step, axis=-1, keepdims=True)), None
    assert momentum is not None, "SMEBU needs its momentum"
    sharpened = jnp.float32(balancing.sharpness) * lack(counts)
    mean = jnp.maximum(jnp.sum(counts, axis=-1, keepdims=True), 1).astype(jnp.float32) / counts.shape[-1]
    clamped = jnp.tanh(sharpened / mean)
    step = jnp.float32(balancing.rate) * clamped
    beta = jnp.float32(balancing.momentum)
    averaged = beta * momentum + (1 - beta) * (step - jnp.mean(step, axis=-1, keepdims=True))
    return bias + averaged, averaged


def lack(counts: Int[Array, "*layer x"]) -> Bias:
    """Return mean - count: exactly 0 at balance, with the right sign also for counts that float32 cannot represent."""
    num_experts = counts.shape[-1]
    total = jnp.sum(counts, axis=-1, keepdims=True)
    return (total // num_experts - counts).astype(jnp.float32) + (total % num_experts).astype(jnp.float32) / num_experts


def measure_routing(routing: Routing, model: ModelConfig) -> RoutingMetrics:
    """Return the metrics of each layer with experts, in layer order.

    MaxVio is the busiest expert's excess over the mean, as a share of the mean (Wang et al., 2024, Trinity report, eq. 42). It is 0 at
    balance, and num_experts / num_active - 1 if every token has the same experts.
    """
    assert model.experts is not None
    load, counts = routing.load, routing.load.counts
    tokens = jnp.maximum(load.tokens, 1).astype(jnp.float32)
    assigned = jnp.maximum(jnp.sum(load.assigned.astype(jnp.float32)), 1.0)
    mean = jnp.maximum(jnp.sum(counts, axis=-1, keepdims=True), 1).astype(jnp.float32) / counts.shape[-1]
    return RoutingMetrics(
        max_violations=jnp.max(-lack(counts), axis=-1) / mean[..., 0],
        dead_experts=jnp.sum(counts == 0, axis=-1, dtype=jnp.int32),
        router_entropies=load.entropy / tokens / jnp.log(jnp.float32(model.experts.num_experts)),
        sequence_losses=routing.sequence_loss / tokens,
        expert_loads=counts.astype(jnp.float32) / (mean * counts.shape[-1]),
        overflowed=jnp.sum(load.overflowed.astype(jnp.float32)) / assigned,
    )
