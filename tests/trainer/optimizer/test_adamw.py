"""The direction alone: decay where the mask says so, scaled by nothing but itself."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.config import AdamW, ModelConfig
from trainer.model.params import init_params
from trainer.optimizer.adamw import build_optimizer


def directions(model: ModelConfig, grads: Any, config: AdamW, *, updates: int) -> Any:
    """The direction of the last of so many equal updates."""
    optimizer, params = build_optimizer(config, model), init_params(0, model)
    state, direction = optimizer.init(params), None
    for _ in range(updates):
        direction, state = optimizer.update(grads, state, params)
    return direction


def test_without_gradients_what_is_left_is_the_decay_of_what_decays(model: ModelConfig):
    params = init_params(0, model)
    found = directions(
        model, jax.tree.map(jnp.zeros_like, params), AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.25), updates=1
    )
    for name in ("embedding", "final_norm"):
        np.testing.assert_array_equal(found[name], np.zeros_like(params[name]))
    np.testing.assert_allclose(found["head"], 0.25 * params["head"], rtol=1e-6)
    for name, weight in params["blocks"].items():
        np.testing.assert_allclose(found["blocks"][name], 0.0 * weight if "norm" in name else 0.25 * weight, rtol=1e-6)


def test_equal_gradients_give_a_direction_of_one_from_the_first_update_on(model: ModelConfig):
    """Both moments are corrected for their start at zero."""
    grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, -3e-3), init_params(0, model))
    for updates in (1, 5):
        found = directions(model, grads, AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-12, weight_decay=0.0), updates=updates)
        for leaf in jax.tree.leaves(found):
            np.testing.assert_allclose(leaf, -1.0, rtol=1e-4)


def test_epsilon_stands_outside_of_the_root(model: ModelConfig):
    grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e-3), init_params(0, model))
    found = directions(model, grads, AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=3e-3, weight_decay=0.0), updates=1)
    np.testing.assert_allclose(found["final_norm"], 1e-3 / (1e-3 + 3e-3), rtol=1e-4)
