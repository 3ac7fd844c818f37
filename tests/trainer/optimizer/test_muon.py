"""What orthogonalising does to singular values, and that layers and heads are kept apart as they should be."""

import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import AdamW, ModelConfig, Muon
from phasewise.trainer.optimizer import orthogonal_direction, orthogonal_directions, orthogonalise, weight_rules
from tests.trainer.model.families import SPARSE

MUON = Muon(
    kind="muon",
    momentum=0.95,
    nesterov=True,
    newton_schulz_steps=5,
    epsilon=1e-8,
    weight_decay=0.1,
    adam=AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1),
    adam_learning_rate_scale=1.0,
)


def matrix(rng: np.random.Generator, values: list[float], rows: int, columns: int) -> np.ndarray:
    """With these singular values and random directions."""
    left, right = (np.linalg.qr(rng.normal(size=(size, len(values))))[0] for size in (rows, columns))
    return (left * np.array(values)) @ right.T


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (6, 17), (17, 6)])
def test_singular_values_come_near_one_and_directions_stay(rows: int, columns: int):
    values = [100.0, 60.0, 30.0, 10.0, 5.0, 2.0]  # after division by the norm the smallest is 0.016
    given = matrix(np.random.default_rng(0), values, rows, columns)
    found = np.asarray(orthogonalise(jnp.asarray(given, jnp.float32), 5, 1e-8), np.float64)
    left, _, right = np.linalg.svd(given, full_matrices=False)
    kept = left.T @ found @ right.T
    np.testing.assert_allclose(kept, np.diag(np.diag(kept)), atol=1e-4)
    assert np.all((np.diag(kept) > 0.65) & (np.diag(kept) < 1.25))


def test_a_scale_of_the_gradient_changes_nothing():
    given = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    np.testing.assert_allclose(orthogonalise(jnp.asarray(1e3 * given), 5, 1e-8), orthogonalise(jnp.asarray(given), 5, 1e-8), atol=1e-5)


def test_a_matrix_of_zeros_stays_so():
    np.testing.assert_array_equal(orthogonalise(jnp.zeros((3, 4)), 5, 1e-8), np.zeros((3, 4)))


@pytest.mark.parametrize("name", ["query", "key", "value", "output", "gate", "up", "down"])
def test_each_layer_is_taken_by_itself_and_widened_matrices_get_more(model: ModelConfig, name: str):
    lopsided = model.but(d_model=8, d_ff=40, num_query_heads=6, head_dim=6)
    shapes = {
        "query": (8, 6, 6),
        "key": (8, 2, 6),
        "value": (8, 2, 6),
        "output": (6, 6, 8),
        "gate": (8, 40),
        "up": (8, 40),
        "down": (40, 8),
    }
    outputs = {"query": 36, "key": 12, "value": 12, "output": 8, "gate": 40, "up": 40, "down": 8}[name]
    inputs = np.prod(shapes[name]) // outputs
    rule = weight_rules(lopsided)["blocks"][name]
    stacked = np.random.default_rng(2).normal(size=(2, *shapes[name])).astype(np.float32)
    both = np.asarray(orthogonal_direction(jnp.asarray(stacked), rule, MUON))
    alone = [np.asarray(orthogonal_direction(jnp.asarray(layer[None]), rule, MUON))[0] for layer in stacked]
    np.testing.assert_allclose(both, alone, atol=1e-6)
    singular = np.linalg.svd(both[0].reshape(inputs, outputs), compute_uv=False)
    assert 0.65 < singular.min() / max(1, outputs / inputs) ** 0.5 < singular.max() / max(1, outputs / inputs) ** 0.5 < 1.25


@pytest.mark.parametrize(("inputs", "outputs"), [(6, 10), (10, 6)])
def test_each_expert_is_a_matrix_of_its_own(inputs: int, outputs: int):
    momentum = np.random.default_rng(3).normal(size=(2, 3, inputs, outputs)).astype(np.float32)
    momentum *= np.array([1, 100, 0.01], np.float32)[:, None, None]  # flattened, the second would leave nothing to the others
    found = np.asarray(orthogonal_directions(jnp.asarray(momentum), MUON, batch_axes=1, input_axes=1))
    for layer, expert in np.ndindex(2, 3):
        alone = orthogonal_directions(jnp.asarray(momentum[layer, expert][None]), MUON, batch_axes=0, input_axes=1)[0]
        np.testing.assert_allclose(found[layer, expert], alone, atol=1e-5)
    singular = np.linalg.svd(found, compute_uv=False) / max(1, outputs / inputs) ** 0.5
    assert 0.6 < singular.min() < singular.max() < 1.25


def test_heads_of_an_expert_are_one_dimension_of_its_matrix():
    momentum = np.random.default_rng(4).normal(size=(2, 3, 6, 2, 4)).astype(np.float32)
    found = orthogonal_directions(jnp.asarray(momentum), MUON, batch_axes=1, input_axes=1)
    flat = orthogonal_directions(jnp.asarray(momentum.reshape(2, 3, 6, 8)), MUON, batch_axes=1, input_axes=1)
    np.testing.assert_array_equal(np.asarray(found).reshape(2, 3, 6, 8), flat)


def test_without_a_batch_it_is_the_direction_of_a_layer(model: ModelConfig):
    rule = weight_rules(model)["blocks"]["up"]
    momentum = jnp.asarray(np.random.default_rng(5).normal(size=(2, 32, 48)), jnp.float32)
    found = orthogonal_directions(momentum, MUON, batch_axes=0, input_axes=1)
    np.testing.assert_array_equal(orthogonal_direction(momentum, rule, MUON), found)


@pytest.mark.parametrize(("batch_axes", "input_axes"), [(1, 2), (2, 1), (0, 3)])
def test_a_matrix_has_two_sides(batch_axes: int, input_axes: int):
    with pytest.raises(AssertionError, match="no axis is left for a side"):
        orthogonal_directions(jnp.ones((2, 3, 4, 5)), MUON, batch_axes=batch_axes, input_axes=input_axes)


def test_the_rule_of_a_weight_takes_each_expert_by_itself(model: ModelConfig):
    """From the table of weights on: what the optimizer does with a sparse model's experts is what it does with each alone."""
    rules = weight_rules(model.but(**SPARSE))["blocks"]
    for name, shape in {"expert_gate": (2, 4, 6, 8), "expert_down": (2, 4, 8, 6)}.items():
        momentum = jnp.asarray(np.random.default_rng(3).normal(size=shape), jnp.float32)
        found = np.asarray(orthogonal_direction(momentum, rules[name], MUON))
        alone = orthogonal_directions(momentum[1, 2][None], MUON, batch_axes=0, input_axes=1)[0]
        np.testing.assert_allclose(found[1, 2], alone, atol=1e-5)
