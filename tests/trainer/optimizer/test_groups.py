"""Every weight has one rule, in every kind of model."""

from dataclasses import replace

import jax
import pytest

from phasewise.trainer import optimizer
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import init_params, param_specs
from phasewise.trainer.optimizer import merge, select, weight_rules

MATRICES = {"query": 1, "key": 1, "value": 1, "output": 2, "gate": 1, "up": 1, "down": 1}
"""How many axes each reads from."""


@pytest.fixture(params=[(False, False), (True, False), (False, True), (True, True)], ids=["llama", "qk-norm", "tied", "both"])
def any_model(model: ModelConfig, request: pytest.FixtureRequest) -> ModelConfig:
    qk_norm, tied_head = request.param
    return model.but(qk_norm=qk_norm, tied_head=tied_head)


def test_matrices_of_the_blocks_are_muon_s_and_nothing_else_is(any_model: ModelConfig):
    found = {path[-1].key: rule.matrix_inputs for path, rule in jax.tree_util.tree_leaves_with_path(weight_rules(any_model))}
    assert {name: inputs for name, inputs in found.items() if inputs is not None} == MATRICES


def test_what_is_stacked_counts_layers_first(any_model: ModelConfig):
    rules = weight_rules(any_model)
    assert all(rule.stacked for rule in rules["blocks"].values())
    assert not any(rule.stacked for name, rule in rules.items() if name != "blocks")


def test_both_parts_together_are_the_whole(any_model: ModelConfig):
    params = init_params(0, any_model)
    rules = weight_rules(any_model)
    matrices, others = (select(params, rules, matrices=which) for which in (True, False))
    assert len(jax.tree.leaves(matrices)) + len(jax.tree.leaves(others)) == len(jax.tree.leaves(params))
    merged = merge(matrices, others)
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    assert all(a is b for a, b in zip(jax.tree.leaves(merged), jax.tree.leaves(params), strict=True))


def test_muon_takes_no_weight_that_is_no_stacked_matrix(model: ModelConfig, monkeypatch: pytest.MonkeyPatch):
    table = param_specs(model)
    monkeypatch.setattr(optimizer, "param_specs", lambda config: {"head": replace(table["head"], updated_by="muon")})
    with pytest.raises(AssertionError, match="Muon takes stacked matrices"):
        weight_rules(model)
