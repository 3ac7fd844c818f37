"""Norms against NumPy in float64, over every weight, layer and group."""

import jax
import numpy as np
import pytest

from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import init_params
from phasewise.trainer.state import group_norms, slot_names, slot_squares, slots, total_norm
from tests.trainer.model.members import MEMBERS


def leaves(model: ModelConfig) -> dict[str, np.ndarray]:
    return {path[-1].key: np.asarray(leaf, np.float64) for path, leaf in jax.tree_util.tree_leaves_with_path(init_params(3, model))}


def test_each_slot_is_a_weight_of_a_layer(model: ModelConfig):
    found = np.sqrt(slot_squares(init_params(3, model), model))
    weights = leaves(model)
    for norm, (name, layer), label in zip(found, slots(model), slot_names(model), strict=True):
        weight = weights[name] if layer is None else weights[name][layer]
        assert norm == pytest.approx(float(np.sqrt((weight**2).sum())), rel=1e-5)
        assert label == (name if layer is None else f"{name}/{layer}")
    assert sum((weights[name] if layer is None else weights[name][layer]).size for name, layer in slots(model)) == sum(
        weight.size for weight in weights.values()
    )


def test_totals_and_groups_are_made_of_the_slots(model: ModelConfig):
    squares = slot_squares(init_params(3, model), model)
    weights = leaves(model)
    whole = sum(float((weight**2).sum()) for weight in weights.values())
    assert float(total_norm(squares)) == pytest.approx(whole**0.5, rel=1e-5)
    for norm, names in zip(group_norms(squares, model), MEMBERS.values(), strict=True):
        expected = sum(float((weights[name] ** 2).sum()) for name in names if name in weights)
        assert float(norm) == pytest.approx(expected**0.5, rel=1e-5)
