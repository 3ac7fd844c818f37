"""Cross-entropy and z-loss against NumPy in float64, and by finite differences."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.loss import LossSums, loss_sums


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0.3, 2.0, (2, 5, 7)).astype(np.float32)


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 7, (2, 5))


def sums_of(logits: Any, tokens: np.ndarray) -> LossSums:
    return loss_sums(jnp.asarray(logits), jnp.asarray(tokens))


def reference_sums(logits: np.ndarray, tokens: np.ndarray) -> tuple[float, float, int]:
    cross_entropy = squared = 0.0
    count = 0
    for row, ids in zip(logits.astype(np.float64), tokens, strict=True):
        for position in range(len(ids) - 1):
            log_z = np.log(np.sum(np.exp(row[position])))
            cross_entropy -= np.log(np.exp(row[position, ids[position + 1]]) / np.exp(log_z))
            squared += log_z**2
            count += 1
    return cross_entropy, squared, count


def test_sums_are_those_of_the_reference(logits: np.ndarray, tokens: np.ndarray):
    np.testing.assert_allclose(sums_of(logits, tokens), reference_sums(logits, tokens), rtol=1e-6)


def test_the_last_position_and_the_first_token_do_not_count(logits: np.ndarray, tokens: np.ndarray):
    before = sums_of(logits, tokens)
    logits[:, -1] += 100.0
    tokens[:, 0] = (tokens[:, 0] + 1) % 7
    assert sums_of(logits, tokens) == before


def test_sums_of_parts_add_up(logits: np.ndarray, tokens: np.ndarray):
    parts = [sums_of(logits[i : i + 1], tokens[i : i + 1]) for i in range(2)]
    np.testing.assert_allclose(np.sum(parts, axis=0), sums_of(logits, tokens), rtol=1e-6)


def test_equal_logits_cost_the_logarithm_of_the_vocabulary(tokens: np.ndarray):
    sums = sums_of(np.full((2, 5, 7), 1e4, np.float32), tokens)  # large ones must not overflow
    assert float(sums.cross_entropy / sums.tokens) == pytest.approx(np.log(7), abs=1e-3)


def test_bfloat16_logits_are_summed_in_float32(logits: np.ndarray, tokens: np.ndarray):
    sums = sums_of(logits.astype(jnp.bfloat16), tokens)
    assert {value.dtype for value in sums} == {np.dtype("float32")}
    rounded = np.asarray(logits.astype(jnp.bfloat16), np.float32)
    np.testing.assert_allclose(sums, reference_sums(rounded, tokens), rtol=1e-6)


@pytest.mark.parametrize(("part", "number"), [("cross_entropy", 0), ("squared_log_z", 1)])
def test_gradients_are_the_finite_differences_of_the_reference(part: str, number: int, logits: np.ndarray, tokens: np.ndarray):
    value: Callable[[LossSums], jax.Array] = lambda sums: getattr(sums, part)  # noqa: E731
    gradient = np.asarray(jax.grad(lambda x: value(sums_of(x, tokens)))(logits))
    exact = logits.astype(np.float64)
    for index in np.ndindex(logits.shape):
        step = np.zeros_like(exact)
        step[index] = 1e-5
        difference = (reference_sums(exact + step, tokens)[number] - reference_sums(exact - step, tokens)[number]) / 2e-5
        assert gradient[index] == pytest.approx(difference, abs=2e-5)
