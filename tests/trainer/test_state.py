import copy

import jax
import numpy as np
import pytest

from phasewise.trainer.config import ModelConfig, sequences_between
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.interventions import Rolling
from phasewise.trainer.model.params import init_params
from phasewise.trainer.state import (
    abstract_state,
    init_rolling,
    init_state,
    norms_of,
    params_digest,
    slot_names,
    slot_squares,
)
from tests.trainer.conftest import MakeRun
from tests.trainer.model.families import MEMBERS


def test_a_phase_s_tokens_are_those_of_its_batches(make_run: MakeRun):
    run = make_run(
        "tokens", start_step=4, learning_rate=[{"kind": "constant", "start_step": 4, "end_step": 24, "start": 1e-3, "end": 1e-3}]
    )
    tokens = sequences_between(run.batch, 4, 24) * 32
    assert tokens == sum(Loader(run).batch(step).tokens.size for step in range(4, 24)) == (6 * 4 + 14 * 8) * 32


def leaves(model: ModelConfig) -> dict[str, np.ndarray]:
    return {path[-1].key: np.asarray(leaf, np.float64) for path, leaf in jax.tree_util.tree_leaves_with_path(init_params(3, model))}


def test_each_slot_is_a_weight_of_a_layer(model: ModelConfig):
    found = np.sqrt(slot_squares(init_params(3, model), model))
    weights = leaves(model)
    num_weights = 0
    for norm, label in zip(found, slot_names(model), strict=True):
        name, _, layer = label.partition("/")
        weight = weights[name][int(layer)] if layer else weights[name]
        assert norm == pytest.approx(float(np.sqrt((weight**2).sum())), rel=1e-5)
        num_weights += weight.size
    assert num_weights == sum(weight.size for weight in weights.values())


def test_totals_and_groups_are_made_of_the_slots(model: ModelConfig):
    squares = slot_squares(init_params(3, model), model)
    weights = leaves(model)
    whole = sum(float((weight**2).sum()) for weight in weights.values())
    norms = norms_of({"param": squares}, model)
    assert float(norms["param_norm"]) == pytest.approx(whole**0.5, rel=1e-5)
    np.testing.assert_allclose(norms["param_slots"], np.sqrt(squares), rtol=1e-6)
    for norm, names in zip(norms["param_norms"], MEMBERS.values(), strict=True):
        expected = sum(float((weights[name] ** 2).sum()) for name in names if name in weights)
        assert float(norm) == pytest.approx(expected**0.5, rel=1e-5)


def test_the_digest_is_of_the_values_wherever_they_are(model: ModelConfig):
    params = init_params(0, model)
    assert params_digest(params) == params_digest(jax.tree.map(np.array, params)) == params_digest(init_params(0, model))
    assert len(params_digest(params)) == 64


def test_the_digest_knows_one_bit_one_shape_one_name(model: ModelConfig):
    params = jax.tree.map(np.array, init_params(0, model))
    bit = copy.deepcopy(params)
    shape = copy.deepcopy(params)
    name = copy.deepcopy(params)
    bit["head"].view(np.uint32)[5, 7] ^= 1
    shape["head"] = shape["head"].reshape(-1, 64)
    name["heed"] = name.pop("head")
    assert len({params_digest(tree) for tree in (params, bit, shape, name)}) == 4


def test_an_abstract_state_is_the_shape_of_a_real_one(make_run: MakeRun):
    run = make_run("abstract")
    real = init_state(run)
    abstract = abstract_state(run, with_ema=True)
    assert jax.tree.structure(real) == jax.tree.structure(abstract)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), real) == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract)
    assert abstract_state(run, with_ema=False).ema is None


def test_windows_are_there_where_the_phase_has_the_intervention_at_any_step(make_run: MakeRun):
    plain = make_run("plain state")
    limit = {"window": 16, "min_samples": 8, "sigmas": 2.0}
    values = plain.stability.model_dump(mode="json")
    later = make_run("later state", stability={**values, "max_update_norm": [[0, None], [20, limit]]})
    elsewhere = make_run("elsewhere", stability={**values, "skip_step": [[0, None], [30, limit]]})
    skipping = make_run("skipping", stability={**values, "skip_step": [[0, limit], [1, None]]})
    assert init_rolling(plain) == init_rolling(elsewhere) == Rolling()
    rolling = init_rolling(later)
    assert rolling.losses is rolling.grad_norms is None
    assert rolling.update_norms is not None
    assert rolling.update_norms.values.shape == (16,)
    assert init_rolling(skipping).losses is not None
    assert init_rolling(skipping).grad_norms is not None
    real = init_state(skipping)
    abstract = abstract_state(skipping, with_ema=True)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), real) == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract)
