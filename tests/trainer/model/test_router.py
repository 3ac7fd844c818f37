from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.trainer.config import Balancing, Experts, Smebu
from phasewise.trainer.kernels.experts import Routed
from phasewise.trainer.model import router
from phasewise.trainer.model.router import Load, Routing, lack, measure_routing, next_bias, route
from tests.trainer.model import expert_reference as reference
from tests.trainer.model import families
from tests.trainer.model.families import SIGN, SMEBU

COUNTS = st.lists(st.integers(0, 10_000), min_size=7, max_size=7)
jitted_step = jax.jit(next_bias, static_argnums=3)


def step(counts: object, balancing: Balancing) -> np.ndarray:
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
    assert next_bias(bias, None, jnp.array([4, 3, 1, 8], jnp.int32), None) == (bias, None)  # without balancing nothing moves


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


TOKENS, D_MODEL, NUM_EXPERTS, NUM_ACTIVE, ROWS = 24, 16, 8, 3, 4
EXPERTS = families.EXPERTS.but(num_experts=8, num_active=3, num_shared=0, d_expert=4, route_scale=2.5, balancing=None)
measure_load = jax.jit(router.measure_load)
sequence_loss = jax.jit(router.sequence_loss, static_argnums=1)


def some(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = some(0, TOKENS, D_MODEL)
WEIGHT = some(1, D_MODEL, NUM_EXPERTS)
BIAS = some(2, NUM_EXPERTS)


def routed(x: Any = X, weight: Any = WEIGHT, bias: Any = BIAS, experts: Experts = EXPERTS) -> Routed:
    with jax.numpy_dtype_promotion("strict"):
        return jax.jit(route, static_argnums=3)(jnp.asarray(x), jnp.asarray(weight), jnp.asarray(bias), experts)


def test_as_in_a_loop_over_tokens():
    found, expected = routed(), reference.route(X, WEIGHT, BIAS, NUM_ACTIVE, 2.5)
    np.testing.assert_array_equal(found.chosen, expected.chosen)
    np.testing.assert_allclose(found.gates, expected.gates, rtol=1e-5)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    assert (found.chosen.dtype, found.gates.dtype, found.scores.dtype) == (jnp.int32, jnp.float32, jnp.float32)


def test_ties_go_to_the_lower_number():
    found = routed(weight=np.zeros_like(WEIGHT), bias=np.zeros_like(BIAS))
    np.testing.assert_array_equal(found.chosen, np.tile(np.arange(NUM_ACTIVE), (TOKENS, 1)))
    found = routed(weight=np.zeros_like(WEIGHT), bias=np.array([0, 1, 0, 0, 1, 0, 0, 0], np.float32))
    np.testing.assert_array_equal(found.chosen, np.tile([1, 4, 0], (TOKENS, 1)))


def test_a_narrow_input_is_routed_in_float32():
    narrow = jnp.asarray(X, jnp.bfloat16)
    found, expected = routed(x=narrow), reference.route(np.asarray(narrow.astype(jnp.float32)), WEIGHT, BIAS, NUM_ACTIVE, 2.5)
    np.testing.assert_array_equal(found.chosen, expected.chosen)
    np.testing.assert_allclose(found.gates, expected.gates, rtol=1e-5)


def test_gradients_go_through_the_gates_alone():
    above = some(3, TOKENS, NUM_ACTIVE)

    def of_gates(weight: jax.Array, bias: jax.Array) -> jax.Array:
        return jnp.sum(route(jnp.asarray(X), weight, bias, EXPERTS).gates * above)

    of_weight, of_bias = jax.jit(jax.grad(of_gates, argnums=(0, 1)))(jnp.asarray(WEIGHT), jnp.asarray(BIAS))
    np.testing.assert_array_equal(of_bias, 0)
    step, direction = 1e-4, some(4, D_MODEL, NUM_EXPERTS).astype(np.float64)
    chosen = reference.route(X, WEIGHT, BIAS, NUM_ACTIVE, 2.5).chosen

    def again(weight: np.ndarray) -> float:
        own = np.take_along_axis(reference.route(X, weight, BIAS, NUM_ACTIVE, 2.5).scores, chosen, axis=1)
        return float(np.sum(2.5 * own / own.sum(1, keepdims=True) * above))

    expected = (again(WEIGHT + step * direction) - again(WEIGHT - step * direction)) / (2 * step)
    np.testing.assert_allclose(np.sum(np.asarray(of_weight) * direction), expected, rtol=1e-3)


def test_sums_of_the_load_add_up_over_parts():
    found = routed()
    whole = measure_load(found, jnp.int32(5))
    np.testing.assert_array_equal(whole.counts, np.bincount(np.asarray(found.chosen).ravel(), minlength=NUM_EXPERTS))
    shares = np.asarray(found.scores, np.float64) / np.asarray(found.scores, np.float64).sum(1, keepdims=True)
    np.testing.assert_allclose(whole.entropy, -np.sum(shares * np.log(shares)), rtol=1e-5)
    assert (int(whole.tokens), int(whole.overflowed)) == (TOKENS, 5)
    halves = [measure_load(Routed(*(jnp.split(array, [10])[half] for array in found)), jnp.int32(half)) for half in (0, 1)]
    summed = jax.tree.map(jnp.add, *halves)
    np.testing.assert_array_equal(summed.counts, whole.counts)
    np.testing.assert_allclose(summed.entropy, whole.entropy, rtol=1e-6)
    assert (int(summed.tokens), int(summed.overflowed)) == (TOKENS, 1)


def test_padding_has_experts_but_no_load():
    counted, found = jnp.arange(TOKENS) % 6 < 4, routed()
    kept = Routed(*(array[counted] for array in found))
    load, alone = measure_load(found, jnp.int32(0), counted), measure_load(kept, jnp.int32(0))
    np.testing.assert_array_equal(load.counts, alone.counts)
    np.testing.assert_allclose(load.entropy, alone.entropy, rtol=1e-6)
    assert int(load.tokens) == int(alone.tokens) == 16
    np.testing.assert_allclose(sequence_loss(found, ROWS, counted), sequence_loss(kept, ROWS), rtol=1e-6)


def test_the_loss_of_a_row_is_that_of_the_report_and_parts_add_up():
    found = routed()
    expected = reference.sequence_loss(reference.route(X, WEIGHT, BIAS, NUM_ACTIVE, 2.5), ROWS)
    np.testing.assert_allclose(sequence_loss(found, ROWS) / TOKENS, np.mean(expected), rtol=1e-5)
    first, second = (Routed(*(jnp.split(array, [TOKENS // ROWS])[half] for array in found)) for half in (0, 1))
    np.testing.assert_allclose(sequence_loss(first, 1) + sequence_loss(second, ROWS - 1), sequence_loss(found, ROWS), rtol=1e-6)
    np.testing.assert_allclose(sequence_loss(first, 1) / (TOKENS // ROWS), expected[0], rtol=1e-5)
