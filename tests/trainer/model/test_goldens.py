from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.hugging_face import places, read_folder, to_tensor
from phasewise.trainer.model.params import Params
from tests.trainer.model.families import logits

GOLDENS = Path(__file__).with_name("goldens")
NAMES = ("llama", "llama-tied", "qwen3", "qwen3-window", "afmoe")


@partial(jax.jit, static_argnames="config")
def ours(params: Params, tokens: jax.Array, config: ModelConfig) -> tuple[jax.Array, Params]:

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        found = logits(params, tokens, config)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(found[:, :-1]), tokens[:, 1:, None], axis=-1)
        return -jnp.mean(chosen), found

    gradients, found = jax.grad(loss, has_aux=True)(params)
    return found, gradients


def test_these_are_the_goldens_and_they_are_small():
    assert {folder.name for folder in GOLDENS.iterdir()} == set(NAMES)
    assert all(path.stat().st_size < 100_000 for path in GOLDENS.rglob("*"))


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_are_those_of_transformers(name: str):
    params, config = read_folder(GOLDENS / name)
    expected = np.load(GOLDENS / name / "expected.npz")
    values, gradients = ours(params, jnp.asarray(expected["tokens"]), config)
    assert expected["logits"].std() > 0.5  # else the tolerance would say little
    np.testing.assert_allclose(values, expected["logits"], rtol=0, atol=1e-4)
    kept = [place for place in places(config) if place.tensor in expected]
    assert len(kept) == {"llama": 6, "llama-tied": 6, "qwen3": 8, "qwen3-window": 8, "afmoe": 13}[name]
    for place in kept:
        found, wanted = to_tensor(gradients, place), expected[place.tensor]
        assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max(), place.tensor
