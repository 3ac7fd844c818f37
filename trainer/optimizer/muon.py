"""Muon: momentum, made nearly orthogonal, for the matrices of the blocks; Adam for every other weight."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from phasewise.trainer.config import Muon
from phasewise.trainer.interventions import clip_factor
from phasewise.trainer.model.params import Params
from phasewise.trainer.optimizer.adam import scale_by_adam
from phasewise.trainer.optimizer.groups import WeightRule, merge, select

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of X ← aX + b(XXᵀ)X + c(XXᵀ)²X (Jordan et al., 2024): small singular values grow fast, and end near 1, not at it."""


class MuonState(NamedTuple):
    """Momentum of the matrices of the blocks, and Adam's state of the other weights."""

    momentum: optax.TraceState
    adam: optax.ScaleByAdamState


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
