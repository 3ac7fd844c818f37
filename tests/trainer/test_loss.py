from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.loss import LossSums, SegmentIds, mean_gradients, microbatches, objective_sums
from tests.trainer.conftest import MakeRun

Z_LOSS = 0.25


def squares_objective(params: Any, tokens: jax.Array, segment_ids: SegmentIds, z_loss: float | jax.Array) -> tuple[jax.Array, LossSums]:
    """A loss with a hand-made gradient: (w · token)² wherever a token belongs to a document, and twice as much as the squared log."""
    assert segment_ids is not None
    counted = (segment_ids > 0).astype(jnp.float32)
    squares = jnp.sum(counted * (params["w"] * tokens) ** 2)
    return squares + z_loss * (2 * squares), LossSums(squares, 2 * squares, jnp.sum(counted))


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


@pytest.mark.parametrize("part", [2, 4])
def test_the_loss_of_each_part_is_kept_and_a_part_of_padding_has_none(rows: tuple[jax.Array, jax.Array], part: int):
    tokens, counted = np.asarray(rows[0], np.float64), np.asarray(rows[1]) * (np.arange(8) % (8 // part) != 1)[:, None]
    sums, _ = mean_gradients(
        squares_objective, {"w": jnp.float32(1.5)}, (rows[0], jnp.asarray(counted)), z_loss=Z_LOSS, microbatch_sequences=part
    )
    assert sums.part_losses is not None
    squares, weights = ((1.5 * tokens) ** 2 * counted).sum(axis=1), counted.sum(axis=1)
    expected = [squares[first :: 8 // part].sum() / max(weights[first :: 8 // part].sum(), 1) for first in range(8 // part)]
    np.testing.assert_allclose(sums.part_losses, [np.nan if first == 1 else loss for first, loss in enumerate(expected)], rtol=1e-6)


def test_a_batch_in_which_nothing_counts_has_no_gradient(rows: tuple[jax.Array, jax.Array]):
    nothing = rows[0], jnp.zeros_like(rows[1])
    _, gradients = mean_gradients(squares_objective, {"w": jnp.float32(1.5)}, nothing, z_loss=0.0, microbatch_sequences=None)
    assert float(gradients["w"]) == 0.0


def test_parts_take_every_nth_row_and_lose_none():
    tokens = jnp.arange(6)[:, None] * jnp.ones((1, 4), jnp.int32)
    parts, nothing = microbatches((tokens, None), 2)
    assert nothing is None
    np.testing.assert_array_equal(parts[..., 0], [[0, 3], [1, 4], [2, 5]])


def test_unequal_parts_are_refused(make_run: MakeRun):
    with pytest.raises(ConfigError, match="found 3 for a batch of 8"):
        microbatches((jnp.zeros((8, 4), jnp.int32), None), 3)
    with pytest.raises(ValidationError, match="must divide every larger batch, found 3 for 4 sequences from step 0"):
        make_run("unequal", execution={"microbatch_sequences": 3})
    make_run("equal", execution={"microbatch_sequences": 4})
    make_run("whole", execution={"microbatch_sequences": 100})


ROWS, LENGTH, WIDTH, VOCABULARY = 2, 9, 6, 11
CHUNKS = (None, 1, 2, 6, 8, 17, 18, 1000)
"""Of 18 tokens in two rows: whole; one, three and four positions of each row, which do and don't divide nine; all."""
in_chunks = pytest.mark.parametrize("chunk_tokens", CHUNKS)


@pytest.fixture
def hidden() -> np.ndarray:
    return np.random.default_rng(0).normal(0.3, 2.0, (ROWS, LENGTH, WIDTH)).astype(np.float32)


@pytest.fixture
def head() -> np.ndarray:
    return np.random.default_rng(1).normal(0.1, 1.0, (WIDTH, VOCABULARY)).astype(np.float32)


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(2).integers(0, VOCABULARY, (ROWS, LENGTH))


@pytest.fixture
def weights() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 2, (ROWS, LENGTH)).astype(np.float32)


class Reference:
    """The sums position by position in float64, and their gradients with respect to hidden states and head."""

    def __init__(self, hidden: np.ndarray, head: np.ndarray, tokens: np.ndarray, weights: np.ndarray | None = None):
        x = hidden.astype(np.float64)
        w = head.astype(np.float64)
        self.cross_entropy = self.squared_log_z = self.tokens = 0.0
        self.of_cross_entropy = np.zeros_like(x), np.zeros_like(w)
        self.of_squared_log_z = np.zeros_like(x), np.zeros_like(w)
        for row, t in np.ndindex(ROWS, LENGTH - 1):
            weight = 1.0 if weights is None else float(weights[row, t])
            logits = x[row, t] @ w
            target = int(tokens[row, t + 1])
            log_z = np.log(np.sum(np.exp(logits)))
            softmax = np.exp(logits - log_z)
            self.cross_entropy += weight * (log_z - logits[target])
            self.squared_log_z += weight * log_z**2
            self.tokens += weight
            self._add(self.of_cross_entropy, row, t, weight * (softmax - np.eye(VOCABULARY)[target]), x, w)
            self._add(self.of_squared_log_z, row, t, weight * 2 * log_z * softmax, x, w)

    @staticmethod
    def _add(gradient: tuple[np.ndarray, np.ndarray], row: int, t: int, of_logits: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
        gradient[0][row, t] += w @ of_logits
        gradient[1][...] += np.outer(x[row, t], of_logits)

    @property
    def sums(self) -> tuple[float, float, float]:
        return self.cross_entropy, self.squared_log_z, self.tokens


def sums_of(hidden: Any, head: Any, tokens: Any, **options: Any) -> LossSums:
    return objective_sums(jnp.asarray(hidden), jnp.asarray(head), jnp.asarray(tokens), 0.0, **options)[1]


@in_chunks
def test_sums_are_those_of_the_reference(chunk_tokens: int | None, hidden: Any, head: Any, tokens: Any, weights: Any):
    expected = Reference(hidden, head, tokens)
    np.testing.assert_allclose(sums_of(hidden, head, tokens, chunk_tokens=chunk_tokens)[:3], expected.sums, rtol=1e-6)
    objective, sums = objective_sums(hidden, head, tokens, 0.25, chunk_tokens=chunk_tokens)
    np.testing.assert_allclose(sums[:3], expected.sums, rtol=1e-6)
    assert float(objective) == pytest.approx(expected.cross_entropy + 0.25 * expected.squared_log_z, rel=1e-6)
    weighed = Reference(hidden, head, tokens, weights)
    np.testing.assert_allclose(
        sums_of(hidden, head, tokens, chunk_tokens=chunk_tokens, targets_weight=weights)[:3], weighed.sums, rtol=1e-6
    )


@in_chunks
@pytest.mark.parametrize(("weighed", "z_loss"), [(False, 0.0), (False, 0.25), (True, 0.25)])
def test_the_objective_has_the_gradients_of_the_reference(
    chunk_tokens: int | None, weighed: bool, z_loss: float, hidden: Any, head: Any, tokens: Any, weights: Any
):
    chosen = weights if weighed else None

    def value(x: jax.Array, w: jax.Array, z: jax.Array) -> jax.Array:
        objective, sums = objective_sums(x, w, tokens, z, chunk_tokens=chunk_tokens, targets_weight=chosen)
        return objective / sums.tokens

    reference = Reference(hidden, head, tokens, chosen)
    with jax.numpy_dtype_promotion("strict"):
        of_hidden, of_head, of_z_loss = jax.jit(jax.grad(value, (0, 1, 2)))(hidden, head, jnp.float32(z_loss))
    for got, first, second in zip((of_hidden, of_head), reference.of_cross_entropy, reference.of_squared_log_z, strict=True):
        np.testing.assert_allclose(got, (first + z_loss * second) / reference.tokens, rtol=1e-5, atol=1e-6)
    assert float(of_z_loss) == pytest.approx(reference.squared_log_z / reference.tokens, rel=1e-6)


@pytest.mark.parametrize("chunk_tokens", [None, 4])
def test_equal_logits_cost_the_logarithm_of_the_vocabulary(chunk_tokens: int | None, tokens: Any):
    one = np.ones((ROWS, LENGTH, 1), np.float32)
    large = np.full((1, VOCABULARY), 1e4, np.float32)
    sums = sums_of(one, large, tokens, chunk_tokens=chunk_tokens)
    assert float(sums.cross_entropy / sums.tokens) == pytest.approx(np.log(VOCABULARY), abs=1e-3)
    of_hidden, of_head = jax.grad(lambda x, w: objective_sums(x, w, tokens, 0.0, chunk_tokens=chunk_tokens)[0], (0, 1))(one, large)
    assert np.all(np.isfinite(of_head))
    assert np.all(np.abs(of_hidden) < 1e-2 * 1e4)


@pytest.mark.parametrize("chunk_tokens", [None, 4])
def test_bfloat16_products_are_summed_in_float32(chunk_tokens: int | None, hidden: Any, head: Any, tokens: Any):
    narrow = jnp.asarray(hidden, jnp.bfloat16)
    rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32) for x in (hidden, head)]
    reference = Reference(rounded[0], rounded[1], tokens)
    sums = sums_of(narrow, head, tokens, chunk_tokens=chunk_tokens)
    assert {value.dtype for value in sums[:3]} == {np.dtype("float32")}
    np.testing.assert_allclose(sums[:3], reference.sums, rtol=1e-5)
    with jax.numpy_dtype_promotion("strict"):
        gradients = jax.grad(lambda x, w: objective_sums(x, w, tokens, 0.25, chunk_tokens=chunk_tokens)[0], (0, 1))(narrow, head)
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
