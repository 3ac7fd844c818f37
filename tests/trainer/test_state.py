import copy

import jax
import numpy as np
import pytest

from phasewise.trainer.config import ModelConfig, sequences_between
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.interventions import Rolling
from phasewise.trainer.model.params import init_params
from phasewise.trainer.step import abstract_state, init_rolling, init_state, norms_of, params_digest, slot_names, slot_squares
from tests.trainer.conftest import MakeRun
from tests.trainer.model.families import MEMBERS


def test_a_phase_s_tokens_are_those_of_its_batches(make_run: MakeRun):
    rate = [{"kind": "constant", "start_step": 4, "end_step": 24, "start": 1e-3, "end": 1e-3}]
    run = make_run("tokens", start_step=4, learning_rate=rate)
    tokens = sequences_between(run.batch, 4, 24) * 32
    assert tokens == sum(Loader(run).batch(step).tokens.size for step in range(4, 24)) == (6 * 4 + 14 * 8) * 32


def leaves(model: ModelConfig) -> dict[str, np.ndarray]:
    return {path[-1].key: np.asarray(leaf, np.float64) for path, leaf in jax.tree_util.tree_leaves_with_path(init_params(3, model))}


def shapes(state: object) -> object:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)


def test_each_slot_is_a_weight_of_a_layer_and_totals_and_groups_are_made_of_them(model: ModelConfig):
    squares, weights, num_weights = slot_squares(init_params(3, model), model), leaves(model), 0
    for norm, label in zip(np.sqrt(squares), slot_names(model), strict=True):
        name, _, layer = label.partition("/")
        weight = weights[name][int(layer)] if layer else weights[name]
        assert norm == pytest.approx(float(np.sqrt((weight**2).sum())), rel=1e-5)
        num_weights += weight.size
    assert num_weights == sum(weight.size for weight in weights.values())
    of = {name: float((weight**2).sum()) for name, weight in weights.items()}
    norms = norms_of({"param": squares}, model)
    assert float(norms["param_norm"]) == pytest.approx(sum(of.values()) ** 0.5, rel=1e-5)
    np.testing.assert_allclose(norms["param_slots"], np.sqrt(squares), rtol=1e-6)
    for norm, names in zip(norms["param_norms"], MEMBERS.values(), strict=True):
        assert float(norm) == pytest.approx(sum(of.get(name, 0.0) for name in names) ** 0.5, rel=1e-5)


def test_the_digest_is_of_the_values_wherever_they_are_and_knows_one_bit_one_shape_one_name(model: ModelConfig):
    params = jax.tree.map(np.array, init_params(0, model))
    assert params_digest(params) == params_digest(init_params(0, model))
    assert len(params_digest(params)) == 64
    bit, shape, name = (copy.deepcopy(params) for _ in range(3))
    bit["head"].view(np.uint32)[5, 7] ^= 1
    shape["head"] = shape["head"].reshape(-1, 64)
    name["heed"] = name.pop("head")
    assert len({params_digest(tree) for tree in (params, bit, shape, name)}) == 4


def test_windows_are_there_where_the_phase_has_the_intervention_at_any_step_and_in_its_abstract_state(make_run: MakeRun):
    plain = make_run("plain state")
    limit = {"window": 16, "min_samples": 8, "sigmas": 2.0}
    values = plain.stability.model_dump(mode="json")
    later = make_run("later state", stability={**values, "max_update_norm": [[0, None], [20, limit]]})
    elsewhere = make_run("elsewhere", stability={**values, "skip_step": [[0, None], [30, limit]]})
    skipping = make_run("skipping", stability={**values, "skip_step": [[0, limit], [1, None]]})
    by_norm = make_run("by norm", stability={**values, "skip_step": [[0, None], [3, {**limit, "skip_on": "update_norm"}]]})
    assert init_rolling(plain) == init_rolling(elsewhere) == Rolling()
    rolling = init_rolling(later)
    assert rolling.losses is rolling.grad_norms is None
    assert rolling.update_norms is not None
    assert rolling.update_norms.values.shape == (16,)
    assert None not in (init_rolling(skipping).losses, init_rolling(skipping).grad_norms)
    assert [name for name, window in init_rolling(by_norm)._asdict().items() if window is not None] == ["skip_update_norms"]
    for run in (plain, skipping, by_norm):
        assert shapes(init_state(run)) == shapes(abstract_state(run, with_ema=True))
    assert abstract_state(plain, with_ema=False).ema is None
