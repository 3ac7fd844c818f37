"""The digest of weights, and abstract states."""

import copy
from collections.abc import Callable

import jax
import numpy as np

from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.interventions import Rolling
from phasewise.trainer.model.params import init_params
from phasewise.trainer.state import abstract_state, init_rolling, init_state, params_digest

MakeRun = Callable[..., RunConfig]


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
    """Also where it starts switched off: it will find its history."""
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
