"""Routers: the experts of each token, the load on them, the biases that balance it, and its metrics over the whole batch.

Shape letters: b batch, t position, d d_model, x expert, k chosen expert; n token (rows of a batch one after the other; or b row and t
position, see `trainer.sharding.join_rows`). Leading axes of biases and counts are layers.
Logits, scores, gates and sums are float32, whatever the type of the tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from phasewise.trainer.config import Balancing, Experts, ModelConfig, SignBalancing, Smebu
from phasewise.trainer.kernels.expert_parallel import apply_on_mesh
from phasewise.trainer.kernels.experts import Matrices, Routed
from phasewise.trainer.model.params import Params, expert_layers, param_specs, stacks
from phasewise.trainer.sharding import constrain, join_rows, map_tokens

BIAS = "router_bias"
EPSILON = 1e-20
"""Keeps the gates finite where all scores of a token underflow (as AFMoE of transformers has it)."""
Bias = Float[Array, "*layer x"]
Momentum = dict[str, dict[str, Float[Array, "layer x"]]]
"""SMEBU's average of the steps of each bias, in a tree like the weights' that has only the biases."""


class Load(NamedTuple):
    """Sums over tokens of one layer: those of the parts of a batch add up, and so do those of devices.

    Attributes:
        counts: tokens that have each expert. A token counts `num_active` times, once an expert.
        entropy: Σ over tokens of the entropy, in nats, of the token's scores divided by their sum. At most tokens · log(num_experts).
        overflowed: assignments beyond 1.25 times the mean load of an expert, in the parts of the batch that were computed at once. None of
            them was dropped. Padding is computed, too, and counts here.
        assigned: all assignments, those of padding among them.
    """

    counts: Int[Array, " x"]
    entropy: Float[Array, ""]
    tokens: Int[Array, ""]
    overflowed: Int[Array, ""]
    assigned: Int[Array, ""]


class Routing(NamedTuple):
    """The router's sums over a part of a batch in one layer; parts add up. With a first axis, of several layers.

    Attributes:
        sequence_loss: `sequence_loss` below, without its weight. It alone has gradients.
    """

    load: Load
    sequence_loss: Float[Array, "*layer"]


class RoutingMetrics(NamedTuple):
    """The routers' metrics of one update (`trainer.metrics`); `overflowed` is of all layers together."""

    max_violations: Float[Array, " layer"]
    dead_experts: Int[Array, " layer"]
    router_entropies: Float[Array, " layer"]
    sequence_losses: Float[Array, " layer"]
    expert_loads: Float[Array, "layer x"]
    overflowed: Float[Array, ""]


def mix_experts(
    x: Float[Array, "b t d"], weights: Params, experts: Experts, *, counted: Bool[Array, "b t"] | None, kernel: str
) -> tuple[Float[Array, "b t d"], Routing]:
    """Return Σ of the gated experts of each token (Trinity report, eq. 15, without the shared expert), and the router's sums.

    Args:
        counted: False for tokens that are padding; None counts all.
        kernel: `Execution.expert_kernel`.
    """
    flat = join_rows(x)
    is_counted = None if counted is None else counted.reshape(flat.shape[:-1])
    router = constrain(weights["router"], None, None)  # whole everywhere: a token's logits are summed on its own device
    routed = route(flat, router, weights[BIAS], experts)
    matrices = Matrices(weights["expert_gate"], weights["expert_up"], weights["expert_down"])
    mixed, overflowed = apply_on_mesh(flat, routed, matrices, kernel=kernel)
    routing = Routing(measure_load(routed, overflowed, is_counted), sequence_loss(routed, x.shape[0], is_counted))
    return mixed.reshape(x.shape), routing


def route(x: Float[Array, "*n d"], weight: Float[Array, "d x"], bias: Float[Array, " x"], experts: Experts) -> Routed:
    """Return the `num_active` experts of the largest score + bias, and gates from the scores alone (Trinity report, eqs 16–18).

    A tie goes to the expert of the lower number (`jax.lax.top_k`). A token's logits are sums over the whole of d_model in full float32
    precision, on the device that has the token: so the choice does not depend on how a mesh cuts the batch. No gradient goes through the
    choice, and none to the bias.
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
    """Return the sums of one part of a batch, without gradients.

    Args:
        overflowed: from `trainer.kernels.experts.apply_experts`.
        counted: False for padding: it has experts, but must not move the balance. None counts all.
    """
    routed = jax.lax.stop_gradient(routed)
    *tokens, num_experts = routed.scores.shape
    counted = jnp.ones(tokens, jnp.bool_) if counted is None else counted
    picked = _one_hot(routed.chosen, num_experts) & counted[..., None, None]
    shares = _score_shares(routed)
    entropy = -jnp.sum(jnp.where(counted[..., None], jax.scipy.special.xlogy(shares, shares), jnp.float32(0)))
    counts = jnp.sum(picked, axis=tuple(range(picked.ndim - 1)), dtype=jnp.int32)
    return Load(counts, entropy, jnp.sum(counted, dtype=jnp.int32), overflowed, jnp.asarray(routed.chosen.size, jnp.int32))


def sequence_loss(routed: Routed, rows: int, counted: Bool[Array, "*n"] | None = None) -> Float[Array, ""]:
    """Return Σ over rows of tokens · Σᵢ fᵢ Pᵢ. Parts of a batch add up; divided by all tokens, it is the mean of the rows' losses.

    Of one row: P is the mean over its tokens of their scores divided by their sum, f the share of its tokens that have expert i, times
    num_experts / num_active (DeepSeek-V3, eqs 17–20; Trinity report, eqs 29–32). f is not differentiated. Where the load is even, a row's
    loss is 1; the weight (`Experts.sequence_loss`) is not in it.

    Args:
        rows: the number of rows, of equal length, in the tokens.
        counted: as in `measure_load`.
    """
    num_experts = routed.scores.shape[-1]
    tokens = routed.scores.size // num_experts
    assert tokens % rows == 0, f"{tokens} tokens are not {rows} rows of equal length"
    kept = jnp.ones((rows, tokens // rows, 1), jnp.float32) if counted is None else counted.reshape(rows, -1, 1).astype(jnp.float32)
    picked = _one_hot(routed.chosen, num_experts).any(axis=-2).reshape(rows, -1, num_experts)
    counts = jnp.sum(jnp.where(picked, kept, jnp.float32(0)), axis=1)
    assigned = jnp.maximum(jnp.sum(counts, axis=-1, keepdims=True), jnp.float32(1))
    probability_sums = jnp.sum(kept * _score_shares(routed).reshape(rows, -1, num_experts), axis=1)
    return jnp.sum(jax.lax.stop_gradient(num_experts * counts / assigned) * probability_sums)


def _score_shares(routed: Routed) -> Float[Array, "*n x"]:
    return routed.scores / (jnp.sum(routed.scores, axis=-1, keepdims=True) + jnp.float32(EPSILON))


def _one_hot(chosen: Int[Array, "*n k"], num_experts: int) -> Bool[Array, "*n k x"]:
    return chosen[..., None] == jnp.arange(num_experts, dtype=chosen.dtype)


def in_layer_order(routings: dict[tuple[int, ...], Routing]) -> Routing | None:
    """Return the routings of several stacks (by the numbers of their layers) as one, its first axis in the order of the layers."""
    if not routings:
        return None
    numbers = [layer for layers in routings for layer in layers]
    order = jnp.asarray(sorted(range(len(numbers)), key=numbers.__getitem__), jnp.int32)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[order], *routings.values())


def init_momentum(model: ModelConfig) -> Momentum | None:
    """Return zeros if the biases have a momentum."""
    if model.experts is None or not isinstance(model.experts.balancing, Smebu):
        return None
    specs = param_specs(model)
    names = [stack.name for stack in stacks(model) if stack.kind.has_experts]
    return {name: {BIAS: jnp.zeros(specs[name][BIAS].shape, jnp.float32)} for name in names}


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
    """Return bias and momentum after an update whose whole batch, over all parts and devices, gave these counts.

    Sign (Wang et al., 2024; Trinity report, eqs 19–22): ± rate, up where an expert had fewer tokens than the mean, less the mean step.
    SMEBU (eqs 23–28): rate · tanh(sharpness · relative lack), less the mean step, averaged by the momentum.
    Where the load is even, or there were no tokens, a step is 0. The sum of the bias does not change but by rounding.

    Args:
        momentum: of SMEBU, zeros at first; else None.
        counts: integers; all of a layer together fewer than 2³¹.
        balancing: None leaves the bias as it is.
    """
    if balancing is None:
        return bias, momentum
    if isinstance(balancing, SignBalancing):
        assert momentum is None, "sign balancing has no momentum"
        step = jnp.float32(balancing.rate) * jnp.sign(lack(counts))
        return bias + (step - jnp.mean(step, axis=-1, keepdims=True)), None
    assert momentum is not None, "SMEBU needs its momentum"
    clamped = jnp.tanh(jnp.float32(balancing.sharpness) * lack(counts) / _mean_count(counts))
    step = jnp.float32(balancing.rate) * clamped
    beta = jnp.float32(balancing.momentum)
    averaged = beta * momentum + (1 - beta) * (step - jnp.mean(step, axis=-1, keepdims=True))
    return bias + averaged, averaged


def lack(counts: Int[Array, "*layer x"]) -> Bias:
    """Return mean − count: exactly 0 at balance, and of the right sign everywhere, also for counts that float32 cannot hold."""
    num_experts = counts.shape[-1]
    total = jnp.sum(counts, axis=-1, keepdims=True)
    return (total // num_experts - counts).astype(jnp.float32) + (total % num_experts).astype(jnp.float32) / num_experts


def _mean_count(counts: Int[Array, "*layer x"]) -> Float[Array, "*layer 1"]:
    total = jnp.sum(counts, axis=-1, keepdims=True)
    return jnp.maximum(total, 1).astype(jnp.float32) / counts.shape[-1]


def measure_routing(routing: Routing, model: ModelConfig) -> RoutingMetrics:
    """Return the metrics of each layer with experts, in their order.

    MaxVio is how far the busiest expert is above the mean, as a share of it (Wang et al., 2024; Trinity report, eq. 42): 0 at balance,
    num_experts / num_active − 1 where every token has the same experts.
    """
    assert model.experts is not None
    load, counts = routing.load, routing.load.counts
    tokens = jnp.maximum(load.tokens, 1).astype(jnp.float32)
    assigned = jnp.maximum(jnp.sum(load.assigned.astype(jnp.float32)), 1.0)
    mean = _mean_count(counts)
    return RoutingMetrics(
        max_violations=jnp.max(-lack(counts), axis=-1) / mean[..., 0],
        dead_experts=jnp.sum(counts == 0, axis=-1, dtype=jnp.int32),
        router_entropies=load.entropy / tokens / jnp.log(jnp.float32(model.experts.num_experts)),
        sequence_losses=routing.sequence_loss / tokens,
        expert_loads=counts.astype(jnp.float32) / (mean * counts.shape[-1]),
        overflowed=jnp.sum(load.overflowed.astype(jnp.float32)) / assigned,
    )
