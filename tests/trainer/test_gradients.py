"""Gradients of a batch in one go and in parts, with unequal numbers of tokens in the parts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import RunConfig
from phasewise.trainer.loss import LossSums, SegmentIds, mean_gradients, microbatches

MakeRun = Callable[..., RunConfig]
Z_LOSS = 0.25


def objective(params: Any, tokens: jax.Array, segment_ids: SegmentIds, z_loss: float | jax.Array) -> tuple[jax.Array, LossSums]:
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
    sums, gradients = mean_gradients(objective, {"w": jnp.float32(1.5)}, rows, z_loss=Z_LOSS, microbatch_sequences=part)
    squares = np.sum(counted * tokens**2)
    assert float(sums.tokens) == 27
    assert float(sums.cross_entropy) == pytest.approx(1.5**2 * squares, rel=1e-6)
    assert float(sums.squared_log_z) == pytest.approx(2 * 1.5**2 * squares, rel=1e-6)
    assert float(gradients["w"]) == pytest.approx((1 + 2 * Z_LOSS) * 2 * 1.5 * squares / 27, rel=1e-6)


@pytest.mark.parametrize("part", [2, 4])
def test_the_loss_of_each_part_is_kept_and_a_part_of_padding_has_none(rows: tuple[jax.Array, jax.Array], part: int):
    """Part i has the rows i, i + n, …; the second row of these is padding."""
    tokens, counted = np.asarray(rows[0], np.float64), np.asarray(rows[1]) * (np.arange(8) % (8 // part) != 1)[:, None]
    sums, _ = mean_gradients(objective, {"w": jnp.float32(1.5)}, (rows[0], jnp.asarray(counted)), z_loss=Z_LOSS, microbatch_sequences=part)
    assert sums.part_losses is not None
    squares, weights = ((1.5 * tokens) ** 2 * counted).sum(axis=1), counted.sum(axis=1)
    expected = [squares[first :: 8 // part].sum() / max(weights[first :: 8 // part].sum(), 1) for first in range(8 // part)]
    np.testing.assert_allclose(sums.part_losses, [np.nan if first == 1 else loss for first, loss in enumerate(expected)], rtol=1e-6)


def test_a_batch_that_is_not_cut_has_no_parts(rows: tuple[jax.Array, jax.Array]):
    for part in (None, 8):
        sums, _ = mean_gradients(objective, {"w": jnp.float32(1.5)}, rows, z_loss=0.0, microbatch_sequences=part)
        assert sums.part_losses is None


def test_a_batch_in_which_nothing_counts_has_no_gradient(rows: tuple[jax.Array, jax.Array]):
    nothing = rows[0], jnp.zeros_like(rows[1])
    _, gradients = mean_gradients(objective, {"w": jnp.float32(1.5)}, nothing, z_loss=0.0, microbatch_sequences=None)
    assert float(gradients["w"]) == 0.0


def test_types_are_not_widened_without_a_word(rows: tuple[jax.Array, jax.Array]):
    def careless(params: Any, tokens: jax.Array, segment_ids: SegmentIds, z_loss: float | jax.Array) -> tuple[jax.Array, LossSums]:
        widened = jnp.sum(params["w"].astype(jnp.bfloat16) * tokens)
        return widened, LossSums(widened, widened, jnp.float32(1.0))

    with pytest.raises(Exception, match="strict"):
        mean_gradients(careless, {"w": jnp.float32(1.5)}, rows, z_loss=0.0, microbatch_sequences=None)


def test_parts_take_every_nth_row_and_lose_none():
    """With contiguous rows a part would lie on some of the devices only."""
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
