"""The update before the learning rate, by the kind of optimizer."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from phasewise.trainer.config import AdamC, AdamW, ModelConfig, Muon, NAdamW, Optimizer
from phasewise.trainer.interventions import clip_factor
from phasewise.trainer.model.params import Params, ParamSpec, param_specs

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of X ← aX + b(XXᵀ)X + c(XXᵀ)²X (Jordan et al., 2024): small singular values grow fast, and end near 1, not at it."""


class MuonState(NamedTuple):
    """Momentum of the matrices of the blocks, and Adam's state of the other weights."""

    momentum: optax.TraceState
    adam: optax.ScaleByAdamState


@dataclass(frozen=True)
class WeightRule:
    """How one weight is updated.

    Attributes:
        stacked: the first axis counts layers.
        stacking_axes: how many leading axes count layers and experts; behind them is one matrix each.
        matrix_inputs: for what is Muon's where the optimizer is Muon, how many axes of the matrix it reads from; the others it writes to.
            None is Adam's.
        decays: whether weight decay applies.
    """

    stacked: bool
    stacking_axes: int
    matrix_inputs: int | None
    decays: bool


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


def scale_by_muon(config: Muon, rules: dict[str, Any]) -> optax.GradientTransformation:
    """Directions of both groups, without decay; that of Adam's group is multiplied by `adam_learning_rate_scale`.

    As Levanter's Muon of mid-2025 has it, which the record's run used: the momentum is a sum (m ← momentum · m + g; Nesterov:
    momentum · m + g once more), each layer's matrix is taken by itself with heads and head_dim as one dimension, query, key, value, gate
    and up apart, and the result is multiplied by √max(1, outputs / inputs) (KellerJordan/Muon; not the 0.2 · √max(outputs, inputs) that
    Levanter offers as an option). `optax.contrib.scale_by_muon` averages and corrects the bias instead, which differs in early updates.
    """
    momentum = optax.trace(config.momentum, config.nesterov)
    adam = scale_by_adam(config.adam)
    matrix_rules = select(rules, rules, matrices=True)

    def init(params: Params) -> MuonState:
        parts = [select(params, rules, matrices=matrices) for matrices in (True, False)]
        return MuonState(momentum.init(parts[0]), adam.init(parts[1]))  # pyright: ignore[reportArgumentType]  # optax names only bases

    def update(updates: Params, state: MuonState, params: Params | None = None) -> tuple[Params, MuonState]:
        matrices, momentum_state = momentum.update(select(updates, rules, matrices=True), state.momentum)
        others = select(updates, rules, matrices=False)
        if config.max_adam_grad_norm is not None:
            others = optax.tree.scale(clip_factor(optax.tree.norm(others), config.max_adam_grad_norm), others)
        others, adam_state = adam.update(others, state.adam)
        matrices = jax.tree.map(lambda x, rule: orthogonal_direction(x, rule, config), matrices, matrix_rules)
        others = optax.tree.scale(config.adam_learning_rate_scale, others)
        return merge(matrices, others), MuonState(momentum_state, adam_state)  # pyright: ignore[reportArgumentType]  # see above

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]  # see above


def orthogonal_direction(momentum: Float[Array, "layer *matrix"], rule: WeightRule, config: Muon) -> Float[Array, "layer *matrix"]:
    """Each matrix of each layer as a direction, each expert's by itself: see `orthogonal_directions`."""
    assert rule.matrix_inputs is not None
    return orthogonal_directions(momentum, config, batch_axes=rule.stacking_axes - 1, input_axes=rule.matrix_inputs)


def orthogonal_directions(
    momentum: Float[Array, "layer *matrices"], config: Muon, *, batch_axes: int, input_axes: int
) -> Float[Array, "layer *matrices"]:
    """Each matrix with its singular values near √max(1, outputs / inputs).

    One layer at a time: the products need it whole on every device, and all layers of a weight together are more than one holds. What
    a layer has several of, such as experts, are matrices each by itself, taken at once.

    Args:
        batch_axes: so many axes behind that of the layers number the matrices of a layer.
        input_axes: so many behind those are what a matrix reads from; the others it writes to.
    """
    batch = momentum.shape[1 : 1 + batch_axes]
    inputs = math.prod(momentum.shape[1 + batch_axes : 1 + batch_axes + input_axes])
    outputs = math.prod(momentum.shape[1 + batch_axes + input_axes :])
    assert min(input_axes, momentum.ndim - 1 - batch_axes - input_axes) > 0, f"{momentum.shape}: no axis is left for a side of the matrix"
    scale = max(1.0, outputs / inputs) ** 0.5

    def of_matrix(matrix: Float[Array, "r c"]) -> Float[Array, "r c"]:
        return scale * orthogonalise(matrix, config.newton_schulz_steps, config.epsilon)

    of_layer = of_matrix
    for _ in range(batch_axes):
        of_layer = jax.vmap(of_layer)
    return jax.lax.map(lambda layer: of_layer(layer.reshape(*batch, inputs, outputs)).reshape(layer.shape), momentum)


def orthogonalise(matrix: Float[Array, "r c"], steps: int, epsilon: float) -> Float[Array, "r c"]:
    """About U Vᵀ of the matrix's U S Vᵀ by Newton–Schulz steps, on the short side; it is first divided by its norm + `epsilon`."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalise(matrix.mT, steps, epsilon).mT
    a, b, c = NEWTON_SCHULZ

    def step(_: int, x: Float[Array, "r c"]) -> Float[Array, "r c"]:
        gram = x @ x.mT
        return a * x + (b * gram + c * (gram @ gram)) @ x

    return jax.lax.fori_loop(0, steps, step, matrix / (jnp.linalg.norm(matrix) + epsilon))


def scale_by_adam(config: AdamW | AdamC | NAdamW) -> optax.GradientTransformation:
    """Bias-corrected m / (√v + epsilon) (Kingma and Ba, 2015, Algorithm 1), and for NAdamW with Nesterov's momentum.

    Nesterov's is optax's: m' = beta1 · m / (1 - beta1^(t+1)) + (1 - beta1) · g / (1 - beta1^t), v as Adam's (Dozat, 2016, Algorithm 2
    without its further factor beta2 on v). Levanter's `nesterov` flag, which the record's NAdamW run used, is the same part.
    """
    return optax.scale_by_adam(
        b1=config.beta1, b2=config.beta2, eps=config.epsilon, eps_root=0.0, mu_dtype=None, nesterov=config.kind == "nadamw"
    )


def weight_rules(model: ModelConfig) -> dict[str, Any]:
    """The table: a tree like the weights'."""
    return jax.tree.map(_rule, param_specs(model))


def _rule(spec: ParamSpec) -> WeightRule:
    is_muons = spec.updated_by == "muon"
    assert not is_muons or (spec.layers and spec.inputs is not None), f"Muon takes stacked matrices, found {spec}"
    return WeightRule(bool(spec.layers), spec.num_stacking_axes, spec.inputs if is_muons else None, spec.decays)


def select(tree: dict[str, Any], rules: dict[str, Any], *, matrices: bool) -> dict[str, Any]:
    """The part of a tree of weights that is Muon's, or the part that is not, under the same names."""
    chosen: dict[str, Any] = {}
    for name, rule in rules.items():
        if isinstance(rule, dict):
            if inside := select(tree[name], rule, matrices=matrices):
                chosen[name] = inside
        elif (rule.matrix_inputs is not None) == matrices:
            chosen[name] = tree[name]
    return chosen


def merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two parts of a tree of weights as one; no weight is in both."""
    merged = {**first, **second}
    for name in first.keys() & second.keys():
        merged[name] = merge(first[name], second[name])
    return dict(sorted(merged.items()))


def build_optimizer(config: Optimizer, model: ModelConfig) -> BuiltOptimizer:
    """AdamW (Loshchilov and Hutter, 2019), AdamC (Defazio, 2025), NAdamW (Dozat, 2016) or Muon (Jordan et al., 2024)."""
    rules = weight_rules(model)
    directions: Any = scale_by_muon(config, rules) if isinstance(config, Muon) else scale_by_adam(config)
    decays = weight_decays(config, model)

    def update(grads: Params, state: OptimizerState, params: Params, decay_scale: Any = 1.0) -> tuple[Params, OptimizerState]:
        direction, state = directions.update(grads, state)
        return jax.tree.map(lambda d, weight, decay: d + (decay_scale * decay) * weight if decay else d, direction, params, decays), state

    return BuiltOptimizer(directions.init, update)


def weight_decays(config: Optimizer, model: ModelConfig) -> Params:
    """Each weight's decay, in units of the run's learning rate; 0 where it does not decay."""
    rules = weight_rules(model)
    if not isinstance(config, Muon):
        return jax.tree.map(lambda rule: config.weight_decay * rule.decays, rules)
    of_others = config.adam.weight_decay * config.adam_learning_rate_scale
    return jax.tree.map(lambda rule: rule.decays * (of_others if rule.matrix_inputs is None else config.weight_decay), rules)


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
    return {
        name: _fill(blank, found.get(name, {})) if isinstance(blank, dict) else found.get(name, blank) for name, blank in blanks.items()
    }


def _tree(tree: Any) -> Params:
    assert isinstance(tree, dict)
    return tree
