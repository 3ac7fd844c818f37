"""The router against a loop in NumPy; ties, the bias, and sums that parts of a batch add up to."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import Experts
from phasewise.trainer.kernels.experts import Routed
from phasewise.trainer.model import router
from phasewise.trainer.model.router import route
from tests.trainer.model import expert_reference as reference

TOKENS, D_MODEL, NUM_EXPERTS, NUM_ACTIVE, ROWS = 24, 16, 8, 3, 4
EXPERTS = Experts(
    num_experts=NUM_EXPERTS,
    num_active=NUM_ACTIVE,
    num_shared=0,
    d_expert=4,
    route_scale=2.5,
    num_dense_layers=0,
    balancing=None,
    sequence_loss=0.0,
)
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
    found = routed()
    expected = reference.route(X, WEIGHT, BIAS, NUM_ACTIVE, 2.5)
    np.testing.assert_array_equal(found.chosen, expected.chosen)
    np.testing.assert_allclose(found.gates, expected.gates, rtol=1e-5)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    assert (found.chosen.dtype, found.gates.dtype, found.scores.dtype) == (jnp.int32, jnp.float32, jnp.float32)


def test_the_bias_chooses_and_weighs_nothing():
    bias = np.full(NUM_EXPERTS, -100, np.float32)
    bias[[1, 4, 6]] = 100
    found = routed(bias=bias)
    assert set(np.asarray(found.chosen).ravel().tolist()) == {1, 4, 6}
    own = np.take_along_axis(np.asarray(found.scores), np.asarray(found.chosen), axis=1)
    np.testing.assert_allclose(found.gates, 2.5 * own / own.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(found.scores, routed().scores)


def test_gates_sum_to_the_route_scale_even_where_all_scores_are_tiny():
    weight = np.full((D_MODEL, NUM_EXPERTS), -1.0, np.float32)
    found = routed(x=np.full((2, D_MODEL), 1.5, np.float32), weight=weight)
    assert float(found.scores.max()) < 1e-10
    np.testing.assert_allclose(found.gates.sum(1), 2.5, rtol=1e-5)


def test_ties_go_to_the_lower_number():
    found = routed(weight=np.zeros_like(WEIGHT), bias=np.zeros_like(BIAS))
    np.testing.assert_array_equal(found.chosen, np.tile(np.arange(NUM_ACTIVE), (TOKENS, 1)))
    found = routed(weight=np.zeros_like(WEIGHT), bias=np.array([0, 1, 0, 0, 1, 0, 0, 0], np.float32))
    np.testing.assert_array_equal(found.chosen, np.tile([1, 4, 0], (TOKENS, 1)))


@pytest.mark.parametrize("parts", [2, 3, 8, 24])
def test_a_part_of_the_batch_chooses_as_the_whole_even_among_ties(parts: int):
    coarse = np.round(X), np.round(WEIGHT)
    whole = routed(*coarse, bias=np.zeros_like(BIAS))
    found = [routed(part, coarse[1], bias=np.zeros_like(BIAS)) for part in np.split(coarse[0], parts)]
    np.testing.assert_array_equal(np.concatenate([part.chosen for part in found]), whole.chosen)
    assert len(np.unique(np.asarray(whole.scores))) < whole.scores.size / 2, "there are ties"


def test_a_narrow_input_is_routed_in_float32():
    narrow = jnp.asarray(X, jnp.bfloat16)
    found = routed(x=narrow)
    expected = reference.route(np.asarray(narrow.astype(jnp.float32)), WEIGHT, BIAS, NUM_ACTIVE, 2.5)
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
    counted = jnp.arange(TOKENS) % 6 < 4
    found = routed()
    load = measure_load(found, jnp.int32(0), counted)
    kept = Routed(*(array[counted] for array in found))
    alone = measure_load(kept, jnp.int32(0))
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


def test_a_row_by_itself_is_not_the_batch_as_one():
    """Two rows, each with an expert of its own: the batch is in balance, its rows are not."""
    scores = jnp.asarray(np.repeat([[0.9, 0.1], [0.1, 0.9]], 3, axis=0), jnp.float32)
    chosen = jnp.asarray(np.repeat([[0], [1]], 3, axis=0), jnp.int32)
    found = Routed(chosen, jnp.ones((6, 1)), scores)
    np.testing.assert_allclose(sequence_loss(found, 1) / 6, 1.0, rtol=1e-6)
    np.testing.assert_allclose(sequence_loss(found, 2) / 6, 1.8, rtol=1e-6)


def test_the_loss_is_one_at_balance_and_pushes_scores_of_busy_experts_down():
    even = Routed(jnp.asarray([[0, 1], [2, 3]], jnp.int32), jnp.ones((2, 2)), jnp.full((2, 4), 0.3))
    np.testing.assert_allclose(sequence_loss(even, 1) / 2, 1.0, rtol=1e-6)

    def loss(scores: jax.Array) -> jax.Array:
        return sequence_loss(Routed(jnp.asarray([[0], [0]], jnp.int32), jnp.ones((2, 1)), scores), 1)

    of_scores = np.asarray(jax.grad(loss)(jnp.full((2, 4), 0.5)))
    assert np.all(of_scores[:, 0] > 0)
    assert np.all(of_scores[:, 1:] < 0)
