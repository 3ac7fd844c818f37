from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from pydantic import ValidationError

from phasewise.trainer.loss import LossSums, SegmentIds, mean_gradients, objective_sums
from phasewise.trainer.sharding import MESH_AXES
from phasewise.trainer.step import batch_het
from tests.trainer.conftest import MakeRun

Z_LOSS = 0.25


def squares_objective(params: Any, tokens: jax.Array, segment_ids: SegmentIds, z_loss: float | jax.Array) -> tuple[jax.Array, LossSums]:
    """A loss with a hand-made gradient: (w · token)² wherever a token belongs to a document, and twice as much as the squared log."""
    assert segment_ids is not None
    counted = (segment_ids > 0).astype(jnp.float32)
    of_rows = jnp.sum(counted * (params["w"] * tokens) ** 2, axis=1)
    squares, rows = jnp.sum(of_rows), jnp.stack([of_rows, jnp.sum(counted, axis=1)])
    return squares + z_loss * (2 * squares), LossSums(squares, 2 * squares, jnp.sum(counted), rows=rows)


@pytest.fixture
def rows() -> tuple[jax.Array, jax.Array]:
    """Eight rows, whose tokens belong to a document in 5, 0, 3, … places: no two rows weigh the same."""
    rng = np.random.default_rng(0)
    used = np.array([5, 0, 3, 1, 6, 2, 6, 4])
    segment_ids = (np.arange(6) < used[:, None]).astype(np.int32)
    return jnp.asarray(rng.integers(1, 9, (8, 6)), jnp.float32), jnp.asarray(segment_ids)


@pytest.mark.parametrize("part", [None, 1, 2, 4, 8, 64])
def test_parts_count_by_their_tokens(rows: tuple[jax.Array, jax.Array], part: int | None):
    tokens = np.asarray(rows[0], np.float64)
    counted = np.asarray(rows[1])
    sums, gradients = mean_gradients(squares_objective, {"w": jnp.float32(1.5)}, rows, z_loss=Z_LOSS, microbatch_sequences=part)
    squares = np.sum(counted * tokens**2)
    assert float(sums.tokens) == 27
    assert float(sums.cross_entropy) == pytest.approx(1.5**2 * squares, rel=1e-6)
    assert float(sums.squared_log_z) == pytest.approx(2 * 1.5**2 * squares, rel=1e-6)
    assert float(gradients["w"]) == pytest.approx((1 + 2 * Z_LOSS) * 2 * 1.5 * squares / 27, rel=1e-6)


@pytest.mark.parametrize("part", [None, 2, 4])
def test_the_sums_of_each_row_are_in_the_order_of_the_batch(rows: tuple[jax.Array, jax.Array], part: int | None):
    sums, _ = mean_gradients(squares_objective, {"w": jnp.float32(1.5)}, rows, z_loss=Z_LOSS, microbatch_sequences=part)
    tokens, counted = (np.asarray(one, np.float64) for one in rows)
    assert sums.rows is not None
    np.testing.assert_allclose(sums.rows, [((1.5 * tokens) ** 2 * counted).sum(axis=1), counted.sum(axis=1)], rtol=1e-6)


def test_a_batch_in_which_nothing_counts_has_no_gradient_and_parts_take_every_nth_row(rows: tuple[jax.Array, jax.Array]):
    nothing = rows[0], jnp.zeros_like(rows[1])
    _, gradients = mean_gradients(squares_objective, {"w": jnp.float32(1.5)}, nothing, z_loss=0.0, microbatch_sequences=None)
    assert float(gradients["w"]) == 0.0


def test_batch_het_is_over_micro_batches_of_every_nth_row_or_over_devices_and_leaves_out_padding():
    rows = jnp.stack([jnp.arange(8.0), jnp.ones(8)])
    mesh: Any = AbstractMesh((2, 2, 1, 1, 1), MESH_AXES)
    assert batch_het(rows, None, None) is batch_het(rows, 8, None) is None
    assert batch_het(rows, 4, None) == batch_het(rows, 4, mesh) == 0.5  # rows 0, 2, 4, 6 and 1, 3, 5, 7
    assert batch_het(rows, None, mesh) == 6.5 - 3.5  # rows 0, 1 and 2, 3 and so on
    assert batch_het(rows.at[:, 6:].set(0), None, mesh) == 4.5 - 2.5


def test_unequal_parts_are_refused(make_run: MakeRun):
    for part in (4, 100):
        make_run("equal", execution={"microbatch_sequences": part})
    with pytest.raises(ValidationError, match="must divide every larger batch, found 3 for 4 sequences from step 0"):
        make_run("unequal", execution={"microbatch_sequences": 3})


ROWS, LENGTH, WIDTH, VOCABULARY = 2, 9, 6, 11
HIDDEN = np.random.default_rng(0).normal(0.3, 2.0, (ROWS, LENGTH, WIDTH)).astype(np.float32)
HEAD = np.random.default_rng(1).normal(0.1, 1.0, (WIDTH, VOCABULARY)).astype(np.float32)
TOKENS = np.random.default_rng(2).integers(0, VOCABULARY, (ROWS, LENGTH))
WEIGHTS = np.random.default_rng(3).integers(0, 2, (ROWS, LENGTH)).astype(np.float32)
CHUNKS = (None, 1, 2, 6, 8, 17, 18, 1000)
"""Of 18 tokens in two rows: whole; one, three and four positions of each row, which do and don't divide nine; all."""


class Reference:
    """The sums position by position in float64, and their gradients with respect to hidden states and head."""

    def __init__(self, hidden: np.ndarray, head: np.ndarray, weights: np.ndarray | None):
        x, w = hidden.astype(np.float64), head.astype(np.float64)
        self.cross_entropy = self.squared_log_z = self.tokens = 0.0
        self.rows = np.zeros((2, ROWS))
        self.of_cross_entropy = np.zeros_like(x), np.zeros_like(w)
        self.of_squared_log_z = np.zeros_like(x), np.zeros_like(w)
        for row, t in np.ndindex(ROWS, LENGTH - 1):
            weight = 1.0 if weights is None else float(weights[row, t])
            logits, target = x[row, t] @ w, int(TOKENS[row, t + 1])
            log_z = np.log(np.sum(np.exp(logits)))
            softmax = np.exp(logits - log_z)
            self.cross_entropy += weight * (log_z - logits[target])
            self.squared_log_z += weight * log_z**2
            self.tokens += weight
            self.rows[:, row] += weight * (log_z - logits[target]), weight
            for gradient, of_logits in (
                (self.of_cross_entropy, weight * (softmax - np.eye(VOCABULARY)[target])),
                (self.of_squared_log_z, weight * 2 * log_z * softmax),
            ):
                gradient[0][row, t] += w @ of_logits
                gradient[1][...] += np.outer(x[row, t], of_logits)

    @property
    def sums(self) -> tuple[float, float, float]:
        return self.cross_entropy, self.squared_log_z, self.tokens


@pytest.mark.parametrize("chunk_tokens", CHUNKS)
@pytest.mark.parametrize(("weights", "z_loss"), [(None, 0.0), (None, 0.25), (WEIGHTS, 0.25)], ids=["plain", "z-loss", "weighed"])
def test_sums_and_gradients_are_those_of_the_reference(chunk_tokens: int | None, weights: Any, z_loss: float):
    def value(x: jax.Array, w: jax.Array, z: jax.Array) -> tuple[jax.Array, tuple[jax.Array, LossSums]]:
        objective, sums = objective_sums(x, w, jnp.asarray(TOKENS), z, chunk_tokens=chunk_tokens, targets_weight=weights)
        return objective / sums.tokens, (objective, sums)

    expected = Reference(HIDDEN, HEAD, weights)
    with jax.numpy_dtype_promotion("strict"):
        gradients, (objective, sums) = jax.jit(jax.grad(value, (0, 1, 2), has_aux=True))(HIDDEN, HEAD, jnp.float32(z_loss))
    np.testing.assert_allclose(sums[:3], expected.sums, rtol=1e-6)
    np.testing.assert_allclose(sums.rows, expected.rows, rtol=1e-6)
    without_rows = jax.jit(jax.grad(lambda *given: value(*given)[0], (0, 1, 2)))(HIDDEN, HEAD, jnp.float32(z_loss))
    assert jax.tree.all(jax.tree.map(np.array_equal, gradients, without_rows)), "the sums of the rows change no bit of a gradient"
    assert float(objective) == pytest.approx(expected.cross_entropy + z_loss * expected.squared_log_z, rel=1e-6)
    for got, first, second in zip(gradients[:2], expected.of_cross_entropy, expected.of_squared_log_z, strict=True):
        np.testing.assert_allclose(got, (first + z_loss * second) / expected.tokens, rtol=1e-5, atol=1e-6)
    assert float(gradients[2]) == pytest.approx(expected.squared_log_z / expected.tokens, rel=1e-6)


@pytest.mark.parametrize("chunk_tokens", [None, 4])
def test_large_logits_do_not_overflow(chunk_tokens: int | None):
    def value(x: jax.Array, w: jax.Array) -> tuple[jax.Array, LossSums]:
        return objective_sums(x, w, jnp.asarray(TOKENS), 0.0, chunk_tokens=chunk_tokens)

    large = np.full((1, VOCABULARY), 1e4, np.float32)
    (of_hidden, of_head), sums = jax.grad(value, (0, 1), has_aux=True)(np.ones((ROWS, LENGTH, 1), np.float32), large)
    assert float(sums.cross_entropy / sums.tokens) == pytest.approx(np.log(VOCABULARY), abs=1e-3)
    assert np.all(np.isfinite(of_head))
    assert np.all(np.abs(of_hidden) < 1e-2 * 1e4)


@pytest.mark.parametrize("chunk_tokens", [None, 4])
def test_bfloat16_products_are_summed_in_float32(chunk_tokens: int | None):
    def value(x: jax.Array, w: jax.Array) -> tuple[jax.Array, LossSums]:
        return objective_sums(x, w, jnp.asarray(TOKENS), 0.25, chunk_tokens=chunk_tokens)

    hidden, head = (np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32) for x in (HIDDEN, HEAD))
    reference = Reference(hidden, head, None)
    with jax.numpy_dtype_promotion("strict"):
        gradients, sums = jax.grad(value, (0, 1), has_aux=True)(jnp.asarray(HIDDEN, jnp.bfloat16), jnp.asarray(HEAD))
    assert {value.dtype for value in sums[:3]} == {np.dtype("float32")}
    np.testing.assert_allclose(sums[:3], reference.sums, rtol=1e-5)
    assert (gradients[0].dtype, gradients[1].dtype) == (jnp.bfloat16, jnp.float32)
    for got, first, second in zip(gradients, reference.of_cross_entropy, reference.of_squared_log_z, strict=True):
        expected = first + 0.25 * second
        assert np.linalg.norm(np.asarray(got, np.float64) - expected) < 2**-7 * np.linalg.norm(expected)


def test_logits_of_a_chunk_are_all_that_exists():
    rows, length, width, vocabulary = 4, 256, 8, 2048

    def temporary_bytes(chunk_tokens: int | None) -> int:
        shapes = [((rows, length, width), jnp.float32), ((width, vocabulary), jnp.float32), ((rows, length), jnp.int32)]
        arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
        run = jax.jit(jax.grad(lambda x, w, ids: objective_sums(x, w, ids, 1e-4, chunk_tokens=chunk_tokens)[0], (0, 1)))
        analysis = run.lower(*arguments).compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    logits_bytes = rows * length * vocabulary * 4
    assert temporary_bytes(64) < logits_bytes / 2 < temporary_bytes(None)
