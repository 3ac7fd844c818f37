"""The bias after an update: the report's rules in closed form, and what must hold of every load."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.trainer.config import Balancing, SignBalancing, Smebu
from phasewise.trainer.model.router import Load, Routing, lack, measure_routing, next_bias

SIGN = SignBalancing(kind="sign", rate=0.001)
SMEBU = Smebu(kind="smebu", rate=5e-4, sharpness=2.0, momentum=0.5)
COUNTS = st.lists(st.integers(0, 10_000), min_size=7, max_size=7)
jitted_step = jax.jit(next_bias, static_argnums=3)


def step(counts: object, balancing: Balancing) -> np.ndarray:
    """The bias after one update from zero."""
    loads = jnp.asarray(counts, jnp.int32)
    zeros = jnp.zeros(loads.shape)
    return np.asarray(jitted_step(zeros, zeros if balancing.kind == "smebu" else None, loads, balancing)[0])


def test_smebu_in_closed_form():
    smebu = Smebu(kind="smebu", rate=0.1, sharpness=2.0, momentum=0.5)
    counts = jnp.array([4, 3, 1, 8], jnp.int32)
    clamped = 0.1 * np.tanh(2 * (4 - np.array([4, 3, 1, 8])) / 4)
    direction = clamped - clamped.mean()
    bias, momentum = next_bias(jnp.zeros(4), jnp.zeros(4), counts, smebu)
    np.testing.assert_allclose(bias, direction / 2, atol=1e-8)
    np.testing.assert_allclose(bias, [-0.0051, 0.0181, 0.0402, -0.0532], atol=1e-4)  # as printed
    bias, momentum = next_bias(bias, momentum, counts, smebu)
    assert momentum is not None
    np.testing.assert_allclose(momentum, direction * 3 / 4, atol=1e-8)
    np.testing.assert_allclose(bias, direction * 5 / 4, atol=1e-8)


def test_sign_in_closed_form():
    bias, momentum = next_bias(jnp.array([0.1, 0.2, 0.3, 0.4]), None, jnp.array([4, 3, 1, 8], jnp.int32), SIGN)
    assert momentum is None
    np.testing.assert_allclose(bias, np.array([0.1, 0.2, 0.3, 0.4]) + 0.001 * (np.array([0, 1, 1, -1]) - 0.25), atol=1e-8)


def test_without_balancing_nothing_moves():
    bias = jnp.array([0.5, -0.5])
    assert next_bias(bias, None, jnp.array([9, 0], jnp.int32), None) == (bias, None)


@pytest.mark.parametrize("balancing", [SIGN, SMEBU])
@settings(max_examples=60)
@given(counts=COUNTS)
def test_what_holds_of_every_load(balancing: Balancing, counts: list[int]):
    found = step(counts, balancing)
    assert np.all(np.isfinite(found))
    assert abs(found.sum()) < 1e-7 * len(counts)
    assert np.all(np.abs(found) <= 2 * balancing.rate)
    shuffled = np.random.default_rng(0).permutation(len(counts))
    np.testing.assert_allclose(step(np.array(counts)[shuffled], balancing), found[shuffled], atol=1e-8)
    np.testing.assert_allclose(step(7 * np.array(counts), balancing), found, atol=1e-8)
    busiest, idlest = int(np.argmax(counts)), int(np.argmin(counts))
    assert found[idlest] >= found[busiest]


@pytest.mark.parametrize("balancing", [SIGN, SMEBU])
@pytest.mark.parametrize("count", [0, 1, 2**24 + 1, 134_217_727])
def test_an_even_load_moves_nothing_whatever_float32_cannot_hold(balancing: Balancing, count: int):
    np.testing.assert_array_equal(step([count] * 3, balancing), 0)


def test_one_token_more_or_less_is_seen_among_a_hundred_million():
    np.testing.assert_allclose(step([100_000_000, 99_999_999, 100_000_001], SIGN), [0, 0.001, -0.001], atol=1e-9)
    np.testing.assert_allclose(lack(jnp.array([100_000_000, 99_999_999, 100_000_001, 100_000_002], jnp.int32)), [0.5, 1.5, -0.5, -1.5])


def test_layers_are_taken_apart():
    counts = [[4, 3, 1, 8], [5, 5, 5, 5], [0, 0, 16, 0]]
    for balancing in (SIGN, SMEBU):
        np.testing.assert_array_equal(step(counts, balancing), [step(layer, balancing) for layer in counts])


def test_figures_of_the_balance():
    counts = jnp.array([[4, 3, 1, 8], [5, 5, 5, 5], [0, 0, 16, 0], [0, 0, 0, 0]], jnp.int32)
    ones, none = jnp.ones(4), jnp.zeros(4, jnp.int32)
    model: Any = SimpleNamespace(experts=SimpleNamespace(num_experts=4))
    found = measure_routing(Routing(Load(counts, ones, none + 1, none, none), ones), model)
    np.testing.assert_allclose(found.max_violations, [1, 0, 3, 0])
    np.testing.assert_array_equal(found.dead_experts, [0, 0, 3, 4])
    np.testing.assert_allclose(found.expert_loads[:3], np.array(counts[:3]) / np.array([[16], [20], [16]]))
