"""The update before the learning rate, for each kind of optimizer."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from phasewise.trainer.config import AdamC, AdamW, ModelConfig, Muon, NAdamW, Optimizer
from phasewise.trainer.interventions import clip_factor
from phasewise.trainer.model.params import Params, param_specs

NEWTON_SCHULZ = {
    "jordan": ((3.4445, -4.7750, 2.0315),),
    "dion": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}
"""Coefficients of X ← aX + b(XXᵀ)X + c(XXᵀ)²X: small singular values grow fast and end near 1.
One triple for all steps (Jordan et al., 2024), or one for each step (`dion/muon.py` of microsoft/dion)."""


class MuonState(NamedTuple):
    """Momentum of the matrices of the layers, and Adam's state of the other weights."""

    momentum: optax.TraceState
    adam: optax.ScaleByAdamState


OptimizerState = optax.ScaleByAdamState | MuonState  # AdamW, AdamC and NAdamW share Adam's state, so a phase can switch between them


class BuiltOptimizer(NamedTuple):
    """An optimizer for the step.

    Attributes:
        init: weights → state.
        update: gradients, state, weights, decay scale → direction with weight decay, state. The step multiplies the direction by minus the
            learning rate. The decay scale is a factor of every weight's decay (`trainer.interventions.Scheduled`).
    """

    init: Callable[[Params], OptimizerState]
    update: Callable[[Params, OptimizerState, Params, Any], tuple[Params, OptimizerState]]


def build_optimizer(config: Optimizer, model: ModelConfig) -> BuiltOptimizer:
    """Build AdamW (Loshchilov and Hutter, 2019), AdamC (Defazio, 2025), NAdamW (Dozat, 2016) or Muon (Jordan et al., 2024)."""
    specs = param_specs(model)
    if isinstance(config, Muon):
        directions: Any = _scale_by_muon(config, specs)
        of_others = config.adam.weight_decay * config.adam_learning_rate_scale
        decays = jax.tree.map(lambda spec: spec.decays * (config.weight_decay if spec.updated_by == "muon" else of_others), specs)
    else:
        directions = _scale_by_adam(config)
        decays = jax.tree.map(lambda spec: config.weight_decay * spec.decays, specs)

    def update(grads: Params, state: OptimizerState, params: Params, decay_scale: Any = 1.0) -> tuple[Params, OptimizerState]:
        direction, state = directions.update(grads, state)
        return jax.tree.map(lambda d, weight, decay: d + (decay_scale * decay) * weight if decay else d, direction, params, decays), state

    return BuiltOptimizer(directions.init, update)


def _scale_by_adam(config: AdamW | AdamC | NAdamW) -> optax.GradientTransformation:
    """Bias-corrected m / (√v + epsilon) (Kingma and Ba, 2015, Algorithm 1), for NAdamW with Nesterov's momentum.

    Nesterov's momentum is m' = beta1 · m / (1 - beta1^(t+1)) + (1 - beta1) · g / (1 - beta1^t) (Dozat, 2016, Algorithm 2 without the
    factor beta2 on v), as with Levanter's `nesterov` flag in the published NAdamW run.
    """
    return optax.scale_by_adam(
        b1=config.beta1, b2=config.beta2, eps=config.epsilon, eps_root=0.0, mu_dtype=None, nesterov=config.kind == "nadamw"
    )


def _scale_by_muon(config: Muon, specs: dict[str, Any]) -> optax.GradientTransformation:
    """Directions without decay. The direction of Adam's weights is multiplied by `adam_learning_rate_scale`.

    The rule is Levanter's Muon of mid-2025, used in the published run. The momentum is a sum: m ← momentum · m + g, and once more for
    Nesterov. Each layer's query, key, value, gate and up are separate matrices, with heads and head_dim as one dimension. The factor is
    √max(1, outputs / inputs) (KellerJordan/Muon), not Levanter's optional 0.2 · √max(outputs, inputs). `optax.contrib.scale_by_muon`
    averages with bias correction, which differs in early updates.
    """
    for spec in jax.tree.leaves(specs):
        assert spec.updated_by != "muon" or (spec.layers and spec.inputs is not None), f"Muon takes stacked matrices, found {spec}"
    momentum = optax.trace(config.momentum, config.nesterov)
    adam = _scale_by_adam(config.adam)
    matrix_specs = _select(specs, specs, matrices=True)

    def init(params: Params) -> MuonState:
        state = momentum.init(_select(params, specs, matrices=True)), adam.init(_select(params, specs, matrices=False))
        return MuonState(*state)  # pyright: ignore[reportArgumentType]  # see below

    def update(updates: Params, state: MuonState, params: Params | None = None) -> tuple[Params, MuonState]:
        matrices, momentum_state = momentum.update(_select(updates, specs, matrices=True), state.momentum)
        others = _select(updates, specs, matrices=False)
        if config.max_adam_grad_norm is not None:
            others = optax.tree.scale(clip_factor(optax.tree.norm(others), config.max_adam_grad_norm), others)
        others, adam_state = adam.update(others, state.adam)
        matrices = jax.tree.map(
            lambda x, spec: orthogonal_directions(x, config, batch_axes=spec.num_stacking_axes - 1, input_axes=spec.inputs),
            matrices,
            matrix_specs,
        )
        others = optax.tree.scale(config.adam_learning_rate_scale, others)
        return _join(specs, matrices, others), MuonState(momentum_state, adam_state)  # pyright: ignore[reportArgumentType]  # see above

    return optax.GradientTransformation(
        init,  # pyright: ignore[reportArgumentType]  # optax names only bases
        update,  # pyright: ignore[reportArgumentType]  # see above
    )


def _select(tree: dict[str, Any], specs: dict[str, Any], *, matrices: bool) -> dict[str, Any]:
    """The weights of a tree that Muon updates (`matrices`) or does not update."""
    chosen: dict[str, Any] = {}
    for name, spec in specs.items():
        if isinstance(spec, dict):
            if inside := _select(tree[name], spec, matrices=matrices):
                chosen[name] = inside
        elif (spec.updated_by == "muon") == matrices:
            chosen[name] = tree[name]
    return chosen


def _join(specs: dict[str, Any], *trees: Any) -> Params:
    """Parts of a tree of weights as one tree. A later part has priority."""
    leaves = {path: leaf for tree in trees for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[path], specs)


def orthogonal_directions(
    momentum: Float[Array, "layer *matrices"], config: Muon, *, batch_axes: int, input_axes: int
) -> Float[Array, "layer *matrices"]:
    """Return each matrix with singular values near √max(1, outputs / inputs).

    One layer at a time: every device needs whole matrices for the products, and all layers of a weight exceed its memory. The matrices of
    one layer, such as experts, are computed together.

    Args:
        batch_axes: axes after the first that count the matrices of a layer.
        input_axes: next axes, the inputs of a matrix. The remaining axes are its outputs.
    """
    batch = momentum.shape[1 : 1 + batch_axes]
    inputs = math.prod(momentum.shape[1 + batch_axes : 1 + batch_axes + input_axes])
    outputs = math.prod(momentum.shape[1 + batch_axes + input_axes :])
    scale = max(1.0, outputs / inputs) ** 0.5
    settings = {"steps": config.newton_schulz_steps, "epsilon": config.epsilon, "coefficients": config.newton_schulz_coefficients}
    of_layer: Callable[[Array], Array] = partial(orthogonalise, **settings)
    for _ in range(batch_axes):
        of_layer = jax.vmap(of_layer)
    return jax.lax.map(lambda layer: (scale * of_layer(layer.reshape(*batch, inputs, outputs))).reshape(layer.shape), momentum)


def orthogonalise(matrix: Float[Array, "r c"], steps: int, epsilon: float, coefficients: str = "jordan") -> Float[Array, "r c"]:
    """Approximate U Vᵀ of the matrix U S Vᵀ by Newton–Schulz steps on the short side, after division by its norm + `epsilon`."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalise(matrix.mT, steps, epsilon, coefficients).mT
    table = NEWTON_SCHULZ[coefficients]

    def step(number: int, x: Float[Array, "r c"]) -> Float[Array, "r c"]:
        a, b, c = table[0] if len(table) == 1 else jnp.asarray(table, x.dtype)[number]
        gram = x @ x.mT
        return a * x + (b * gram + c * (gram @ gram)) @ x

    return jax.lax.fori_loop(0, steps, step, matrix / (jnp.linalg.norm(matrix) + epsilon))


def moments(state: OptimizerState, model: ModelConfig) -> tuple[Any, Any]:
    """Return trees of the first moment (Muon's momentum) and the second moment. A weight without a second moment has one zero per layer."""
    if isinstance(state, optax.ScaleByAdamState):
        return state.mu, state.nu
    specs = param_specs(model)
    zeros = jax.tree.map(lambda spec: jnp.zeros(spec.shape[:1] if spec.layers else ()), specs)
    return _join(specs, state.momentum.trace, state.adam.mu), _join(specs, zeros, state.adam.nu)
