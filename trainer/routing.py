"""What routers did in an update: the biases that follow from it, and what is measured of it. Everything here is over the whole batch."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from phasewise.trainer.config import ModelConfig, Smebu
from phasewise.trainer.model.balancing import dead_experts, load_shares, max_violation, next_bias
from phasewise.trainer.model.experts import Routing
from phasewise.trainer.model.layers import Stack, expert_layers, stacks
from phasewise.trainer.model.params import Params, param_specs

BIAS = "router_bias"
Momentum = dict[str, dict[str, Float[Array, "layer x"]]]
"""SMEBU's average of the steps of each bias, in a tree like the weights' that has the biases alone."""


class RoutingMetrics(NamedTuple):
    """What one update measured of its routers; `trainer.metrics` says what each is.

    Attributes:
        overflowed: of all layers together.
    """

    max_violations: Float[Array, " layer"]
    dead_experts: Int[Array, " layer"]
    router_entropies: Float[Array, " layer"]
    sequence_losses: Float[Array, " layer"]
    expert_loads: Float[Array, "layer x"]
    overflowed: Float[Array, ""]


def init_momentum(model: ModelConfig) -> Momentum | None:
    """Zeros, where the biases have a momentum."""
    if model.experts is None or not isinstance(model.experts.balancing, Smebu):
        return None
    specs = param_specs(model)
    return {stack.name: {BIAS: jnp.zeros(specs[stack.name][BIAS].shape, jnp.float32)} for stack in _stacks_with_experts(model)}


def move_biases(params: Params, momentum: Momentum | None, routing: Routing, model: ModelConfig) -> tuple[Params, Momentum | None]:
    """The weights with their routers' biases after an update, and the biases' momentum."""
    assert model.experts is not None
    layers = expert_layers(model)
    moved = dict(params)
    averages: Momentum = {}
    for stack in _stacks_with_experts(model):
        counts = routing.load.counts[jnp.asarray([layers.index(layer) for layer in stack.layers], jnp.int32)]
        before = None if momentum is None else momentum[stack.name][BIAS]
        bias, average = next_bias(params[stack.name][BIAS], before, counts, model.experts.balancing)
        moved[stack.name] = {**params[stack.name], BIAS: bias}
        if average is not None:
            averages[stack.name] = {BIAS: average}
    return moved, averages or None


def measure_routing(routing: Routing, model: ModelConfig) -> RoutingMetrics:
    """Of each layer with experts, in their order."""
    assert model.experts is not None
    load = routing.load
    tokens = jnp.maximum(load.tokens, 1).astype(jnp.float32)
    largest = jnp.log(jnp.float32(model.experts.num_experts))
    assigned = jnp.maximum(jnp.sum(load.assigned.astype(jnp.float32)), 1.0)
    return RoutingMetrics(
        max_violations=max_violation(load.counts),
        dead_experts=dead_experts(load.counts),
        router_entropies=load.entropy / tokens / largest,
        sequence_losses=routing.sequence_loss / tokens,
        expert_loads=load_shares(load.counts),
        overflowed=jnp.sum(load.overflowed.astype(jnp.float32)) / assigned,
    )


def _stacks_with_experts(model: ModelConfig) -> list[Stack]:
    return [stack for stack in stacks(model) if stack.kind.has_experts]
