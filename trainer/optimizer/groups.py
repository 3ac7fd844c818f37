"""How each weight is updated, read from the declarations of the weights."""

from dataclasses import dataclass
from typing import Any

import jax

from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import param_specs
from phasewise.trainer.model.specs import ParamSpec


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
