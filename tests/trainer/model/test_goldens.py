"""Values that `transformers` computed, checked wherever the tests run; `make_goldens.py` made them."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.model.hugging_face import places, read_folder, to_tensors
from tests.trainer.model.parity import ours

GOLDENS = Path(__file__).with_name("goldens")
NAMES = ("llama", "llama-tied", "qwen3", "qwen3-window", "afmoe")


def test_these_are_the_goldens_and_they_are_small():
    assert {folder.name for folder in GOLDENS.iterdir()} == set(NAMES)
    assert all(path.stat().st_size < 100_000 for path in GOLDENS.rglob("*"))


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_are_those_of_transformers(name: str):
    params, config = read_folder(GOLDENS / name)
    expected = np.load(GOLDENS / name / "expected.npz")
    logits, gradients = ours(params, jnp.asarray(expected["tokens"]), config)
    assert expected["logits"].std() > 0.5  # else the tolerance would say little
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-4)
    found = dict(to_tensors(gradients, config))
    kept = [place.tensor for place in places(config) if place.tensor in expected]
    assert len(kept) == {"llama": 6, "llama-tied": 6, "qwen3": 8, "qwen3-window": 8, "afmoe": 13}[name]
    for tensor in kept:
        assert np.abs(found[tensor] - expected[tensor]).max() < 1e-3 * np.abs(expected[tensor]).max(), tensor
