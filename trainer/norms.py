"""Norms of trees of weights: one pass over the numbers gives the total, every group, and every weight of every layer."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trainer.config import ModelConfig
from trainer.metrics import PARAM_GROUPS
from trainer.model.params import Params, param_specs

LAYER_AXIS = "layer"


def slots(model: ModelConfig) -> tuple[tuple[str, int | None], ...]:
    """Weight and layer of each number that `slot_squares` gives; the layer is None for a weight that no layers share."""
    named = [(_name(path), spec) for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(model))]
    return tuple((name, layer) for name, spec in named for layer in (range(spec.shape[0]) if spec.axes[0] == LAYER_AXIS else (None,)))


def slot_squares(tree: Params, model: ModelConfig) -> Float[Array, " slot"]:
    """Sums of squares, in float32, in the order of `slots`; the tree has the shape of `param_specs`."""

    def squares(spec: Any, leaf: Array) -> Array:
        axes = range(1 if spec.axes[0] == LAYER_AXIS else 0, leaf.ndim)
        return jnp.atleast_1d(jnp.sum(jnp.square(leaf.astype(jnp.float32)), axis=tuple(axes)))

    return jnp.concatenate(jax.tree.leaves(jax.tree.map(squares, param_specs(model), tree)))


def total_norm(squares: Float[Array, " slot"]) -> Float[Array, ""]:
    """The L2 norm of the whole tree."""
    return jnp.sqrt(jnp.sum(squares))


def group_norms(squares: Float[Array, " slot"], model: ModelConfig) -> Float[Array, " group"]:
    """The L2 norm of each group of weights, in the order of `PARAM_GROUPS`."""
    members = [[number for number, (name, _) in enumerate(slots(model)) if name in names] for names in PARAM_GROUPS.values()]
    return jnp.sqrt(jnp.stack([jnp.sum(squares[jnp.asarray(numbers, jnp.int32)]) for numbers in members]))


def slot_names(model: ModelConfig) -> tuple[str, ...]:
    """What the norm of each slot is called behind the name of its kind: `query/3`, `head`."""
    return tuple(name if layer is None else f"{name}/{layer}" for name, layer in slots(model))


def _name(path: tuple[Any, ...]) -> str:
    return path[-1].key
