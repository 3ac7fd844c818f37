"""The update before the learning rate, by the kind of optimizer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from phasewise.trainer.config import ModelConfig, Muon, Optimizer
from phasewise.trainer.model.params import Params, param_specs
from phasewise.trainer.model.specs import ParamSpec
from phasewise.trainer.optimizer.adam import scale_by_adam
from phasewise.trainer.optimizer.groups import merge, weight_rules
from phasewise.trainer.optimizer.muon import MuonState, scale_by_muon

OptimizerState = optax.ScaleByAdamState | MuonState
"""Adam's for AdamW, AdamC and NAdamW, which can go on from one another's; Muon's own."""


class BuiltOptimizer(NamedTuple):
    """What the step asks of an optimizer.

    Attributes:
        init: weights → state.
        update: gradients, state, weights, decay scale → direction, state. The direction has its weight decay, and is to be multiplied by
            minus the learning rate. The decay scale multiplies the decay of every weight (`trainer.schedule.decay_scale`).
    """

    init: Callable[[Params], OptimizerState]
    update: Callable[[Params, OptimizerState, Params, Any], tuple[Params, OptimizerState]]


def build_optimizer(config: Optimizer, model: ModelConfig) -> BuiltOptimizer:
    """AdamW (Loshchilov and Hutter, 2019), AdamC (Defazio, 2025), NAdamW (Dozat, 2016) or Muon (Jordan et al., 2024)."""
    rules = weight_rules(model)
    directions: Any = scale_by_muon(config, rules) if isinstance(config, Muon) else scale_by_adam(config)
    decays = weight_decays(config, model)

    def update(grads: Params, state: OptimizerState, params: Params, decay_scale: Any = 1.0) -> tuple[Params, OptimizerState]:
        direction, state = directions.update(grads, state)
        return add_decay(direction, params, decays, decay_scale), state

    return BuiltOptimizer(directions.init, update)


def weight_decays(config: Optimizer, model: ModelConfig) -> Params:
    """Each weight's decay, in units of the run's learning rate; 0 where it does not decay."""
    rules = weight_rules(model)
    if not isinstance(config, Muon):
        return jax.tree.map(lambda rule: config.weight_decay * rule.decays, rules)
    of_others = config.adam.weight_decay * config.adam_learning_rate_scale
    return jax.tree.map(lambda rule: rule.decays * (of_others if rule.matrix_inputs is None else config.weight_decay), rules)


def add_decay(direction: Params, params: Params, decays: Params, scale: Any) -> Params:
    """direction + scale · decay · weight."""
    return jax.tree.map(lambda d, weight, decay: d + (scale * decay) * weight if decay else d, direction, params, decays)


def moments(state: OptimizerState, model: ModelConfig) -> tuple[Params, Params]:
    """The averages of gradients (Muon's momentum) and of their squares, in trees like the weights'.

    For a weight without an average of squares the tree has one zero a layer.
    """
    if isinstance(state, optax.ScaleByAdamState):
        return _tree(state.mu), _tree(state.nu)

    def nothing(spec: ParamSpec) -> jax.Array:
        return jnp.zeros(spec.shape[:1] if spec.layers else ())

    blanks = jax.tree.map(nothing, param_specs(model))
    return merge(_tree(state.momentum.trace), _tree(state.adam.mu)), _fill(blanks, _tree(state.adam.nu))


def _fill(blanks: Params, found: Params) -> Params:
    """`found`, and what it lacks from `blanks`."""
    return {
        name: _fill(blank, found.get(name, {})) if isinstance(blank, dict) else found.get(name, blank) for name, blank in blanks.items()
    }


def _tree(tree: Any) -> Params:
    """Optax calls every tree an array tree; those of the weights are dictionaries."""
    assert isinstance(tree, dict)
    return tree
