"""How each weight is updated: one table, read from the declarations of the weights."""

from dataclasses import dataclass
from typing import Any, TypeVar

import jax

from trainer.config import ModelConfig
from trainer.metrics import PARAM_GROUPS
from trainer.model.params import ParamSpec, param_specs

T = TypeVar("T")
MATRIX_GROUPS = ("attention", "mlp")
"""The groups of `PARAM_GROUPS` that are matrices of the blocks: Muon's where the optimizer is Muon. Every other weight is Adam's."""


@dataclass(frozen=True)
class WeightRule:
    """How one weight is updated.

    Attributes:
        group: the one of `PARAM_GROUPS` that names the weight.
        stacked: the first axis counts layers.
        matrix_inputs: for a matrix of the blocks, how many axes behind that of the layers it reads from; the others it writes to.
        decays: whether weight decay applies.
    """

    group: str
    stacked: bool
    matrix_inputs: int | None
    decays: bool


def weight_rules(model: ModelConfig) -> dict[str, Any]:
    """The table: a tree like the weights'."""
    return jax.tree_util.tree_map_with_path(_rule, param_specs(model))


def _rule(path: tuple[Any, ...], spec: ParamSpec) -> WeightRule:
    name = path[-1].key
    groups = [group for group, names in PARAM_GROUPS.items() if name in names]
    assert len(groups) == 1, f"{name} must be in one group of PARAM_GROUPS, found {groups}"
    is_matrix = groups[0] in MATRIX_GROUPS
    return WeightRule(groups[0], spec.axes[0] == "layer", _matrix_inputs(spec) if is_matrix else None, spec.decays)


def _matrix_inputs(spec: ParamSpec) -> int:
    """A matrix reads from d_model where that comes first, and else from all but the last axis."""
    assert spec.axes[0] == "layer", f"the matrices of the blocks are stacked, found axes {spec.axes}"
    return 1 if spec.axes[1] == "d_model" else len(spec.axes) - 2


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
