"""Every optimizer against the float64 reference over several updates, and what each weight's decay and rate are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import AdamC, AdamW, ModelConfig, Muon, NAdamW, Optimizer
from phasewise.trainer.model.params import Params, init_params
from phasewise.trainer.optimizer import build_optimizer, moments, weight_decays
from tests.trainer.optimizer.reference import Reference, in_numpy

ADAMW = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": ADAMW,
    "adamc": AdamC(kind="adamc", beta1=0.8, beta2=0.99, epsilon=1e-8, weight_decay=0.3, peak_learning_rate=0.02),
    "nadamw": NAdamW(kind="nadamw", beta1=0.95, beta2=0.9, epsilon=1e-6, weight_decay=0.2),
    "muon": Muon(
        kind="muon",
        momentum=0.98,
        nesterov=True,
        newton_schulz_steps=5,
        epsilon=1e-8,
        weight_decay=0.1,
        adam=AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.4),
        adam_learning_rate_scale=0.35,
        max_adam_grad_norm=0.5,
    ),
    "muon of four steps": Muon(
        kind="muon",
        momentum=0.9,
        nesterov=False,
        newton_schulz_steps=4,
        epsilon=1e-3,
        weight_decay=0.0,
        adam=ADAMW,
        adam_learning_rate_scale=1.0,
    ),
}
UPDATES = [(0.02, 1.0), (0.01, 0.5), (0.05, 2.5), (0.0, 0.0), (0.02, 1.0)]
"""Learning rate and decay scale of each update."""


@pytest.fixture(scope="module")
def lopsided(model: ModelConfig) -> ModelConfig:
    """No two sides of its matrices are alike, so that none can be taken for another."""
    return model.but(d_model=20, d_ff=44, num_query_heads=6, head_dim=6)


def random_like(params: Params, rng: np.random.Generator, scale: float = 1.0) -> Params:
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), jnp.float32), params)


@pytest.mark.parametrize("config", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_directions_are_those_of_the_reference(lopsided: ModelConfig, config: Optimizer):
    optimizer = build_optimizer(config, lopsided)
    rng = np.random.default_rng(0)
    params = random_like(init_params(0, lopsided), rng)
    state = optimizer.init(params)
    wanted = Reference(config, in_numpy(params))
    update = jax.jit(optimizer.update)
    for rate, decay_scale in UPDATES:
        grads = random_like(params, rng, scale=0.3)
        expected = wanted.update(in_numpy(grads), in_numpy(params), decay_scale)
        direction, state = update(grads, state, params, decay_scale)
        for name, found in in_numpy(direction).items():
            np.testing.assert_allclose(found, expected[name], rtol=0, atol=2e-5, err_msg=name)
        params = jax.tree.map(lambda weight, d, rate=rate: weight - rate * d, params, direction)
    first, second = (in_numpy(tree) for tree in moments(state, lopsided))
    assert first.keys() == second.keys() == wanted.m.keys()
    for name in wanted.m:
        np.testing.assert_allclose(first[name], wanted.m[name], rtol=0, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(np.sum(second[name]), np.sum(wanted.v[name]), rtol=1e-4, err_msg=name)


def directions(model: ModelConfig, grads: Any, config: Optimizer, *, updates: int) -> Any:
    """The direction of the last of so many equal updates."""
    optimizer = build_optimizer(config, model)
    params = init_params(0, model)
    state = optimizer.init(params)
    direction = None
    for _ in range(updates):
        direction, state = optimizer.update(grads, state, params, 1.0)
    return direction


@pytest.mark.parametrize("config", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_without_gradients_what_is_left_is_the_decay_of_what_decays(model: ModelConfig, config: Optimizer):
    """Matrices and head decay; gains and embedding do not."""
    params = init_params(0, model)
    found = directions(model, jax.tree.map(jnp.zeros_like, params), config, updates=1)
    of_head = config.adam.weight_decay * config.adam_learning_rate_scale if isinstance(config, Muon) else config.weight_decay
    for name in ("embedding", "final_norm"):
        np.testing.assert_array_equal(found[name], np.zeros_like(params[name]))
    np.testing.assert_allclose(found["head"], of_head * params["head"], rtol=1e-6)
    for name, weight in params["blocks"].items():
        np.testing.assert_allclose(found["blocks"][name], (0.0 if "norm" in name else config.weight_decay) * weight, rtol=1e-6)


def test_gains_of_queries_and_keys_do_not_decay_and_a_tied_head_has_no_decay_of_its_own(model: ModelConfig):
    other = model.but(qk_norm=True, tied_head=True)
    decays = weight_decays(ADAMW, other)
    assert decays["blocks"]["query_norm"] == decays["blocks"]["key_norm"] == decays["embedding"] == 0
    assert "head" not in decays


def test_equal_gradients_give_a_direction_of_one_from_the_first_update_on(model: ModelConfig):
    """Both moments are corrected for their start at zero."""
    grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, -3e-3), init_params(0, model))
    for updates in (1, 5):
        found = directions(model, grads, AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-12, weight_decay=0.0), updates=updates)
        for leaf in jax.tree.leaves(found):
            np.testing.assert_allclose(leaf, -1.0, rtol=1e-4)


def test_epsilon_is_outside_of_the_root(model: ModelConfig):
    grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e-3), init_params(0, model))
    found = directions(model, grads, AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=3e-3, weight_decay=0.0), updates=1)
    np.testing.assert_allclose(found["final_norm"], 1e-3 / (1e-3 + 3e-3), rtol=1e-4)


def test_the_kinds_of_adam_can_go_on_from_one_another_s_state(model: ModelConfig):
    """The record's Bison and Mantis went on with AdamC from AdamW's state."""
    shapes = [jax.eval_shape(build_optimizer(OPTIMIZERS[kind], model).init, init_params(0, model)) for kind in ("adamw", "adamc", "nadamw")]
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize("config", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_state_is_float32_whatever_the_model_computes_in(model: ModelConfig, config: Optimizer):
    bfloat16 = model.but(compute_dtype="bfloat16")
    state = jax.eval_shape(build_optimizer(config, bfloat16).init, init_params(0, bfloat16))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state) if leaf.ndim} == {"float32"}
