"""The digest of weights, and abstract states."""

import copy
from collections.abc import Callable

import jax
import numpy as np

from trainer.config import ModelConfig, RunConfig
from trainer.model.params import init_params
from trainer.state import abstract_state, init_state, params_digest

MakeRun = Callable[..., RunConfig]


def test_the_digest_is_of_the_values_wherever_they_are(model: ModelConfig):
    params = init_params(0, model)
    assert params_digest(params) == params_digest(jax.tree.map(np.array, params)) == params_digest(init_params(0, model))
    assert len(params_digest(params)) == 64


def test_the_digest_knows_one_bit_one_shape_one_name(model: ModelConfig):
    params = jax.tree.map(np.array, init_params(0, model))
    bit, shape, name = copy.deepcopy(params), copy.deepcopy(params), copy.deepcopy(params)
    bit["head"].view(np.uint32)[5, 7] ^= 1
    shape["head"] = shape["head"].reshape(-1, 64)
    name["heed"] = name.pop("head")
    assert len({params_digest(tree) for tree in (params, bit, shape, name)}) == 4


def test_an_abstract_state_is_the_shape_of_a_real_one(make_run: MakeRun):
    run = make_run("abstract")
    real, abstract = init_state(run), abstract_state(run, with_ema=True)
    assert jax.tree.structure(real) == jax.tree.structure(abstract)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), real) == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract)
    assert abstract_state(run, with_ema=False).ema is None
