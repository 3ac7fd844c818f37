"""Norms of trees of weights: one pass over the numbers gives the total, every group, and every weight of every layer."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from phasewise.trainer.config import ModelConfig
from phasewise.trainer.metrics import PARAM_GROUPS, SPARSE_GROUPS
from phasewise.trainer.model.params import Params, param_specs
from phasewise.trainer.model.specs import ParamSpec


def slots(model: ModelConfig) -> tuple[tuple[str, int | None], ...]:
    """Weight and layer of each number that `slot_squares` gives; the layer is None for a weight that no layers share."""
    return tuple((name, layer) for name, spec in _named_specs(model) for layer in (spec.layers or (None,)))


def slot_squares(tree: Params, model: ModelConfig) -> Float[Array, " slot"]:
    """Sums of squares, in float32, in the order of `slots`; the tree has the shape of `param_specs`."""

    def squares(spec: ParamSpec, leaf: Array) -> Array:
        axes = range(1 if spec.layers else 0, leaf.ndim)
        return jnp.atleast_1d(jnp.sum(jnp.square(leaf.astype(jnp.float32)), axis=tuple(axes)))

    return jnp.concatenate(jax.tree.leaves(jax.tree.map(squares, param_specs(model), tree)))


def total_norm(squares: Float[Array, " slot"]) -> Float[Array, ""]:
    """The L2 norm of the whole tree."""
    return jnp.sqrt(jnp.sum(squares))


def groups(model: ModelConfig) -> tuple[str, ...]:
    """The groups of weights that a model's norms are of: all of `PARAM_GROUPS`, and of `SPARSE_GROUPS` those that it has."""
    found = {spec.group for _, spec in _named_specs(model)}
    return (*PARAM_GROUPS, *(group for group in SPARSE_GROUPS if group in found))


def group_norms(squares: Float[Array, " slot"], model: ModelConfig) -> Float[Array, " group"]:
    """The L2 norm of each group of weights, in the order of `groups`."""
    of_slots = [spec.group for _, spec in _named_specs(model) for _ in (spec.layers or (None,))]
    members = [[number for number, group in enumerate(of_slots) if group == wanted] for wanted in groups(model)]
    return jnp.sqrt(jnp.stack([jnp.sum(squares[jnp.asarray(numbers, jnp.int32)]) for numbers in members]))


def slot_names(model: ModelConfig) -> tuple[str, ...]:
    """What the norm of each slot is called behind the name of its kind: `query/3`, `head`."""
    return tuple(name if layer is None else f"{name}/{layer}" for name, layer in slots(model))


def _named_specs(model: ModelConfig) -> list[tuple[str, ParamSpec]]:
    return [(path[-1].key, spec) for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(model))]
