"""The law of mixtures: on losses that follow one, its optimum beside all mixtures of a small block, and its stated interval."""

from itertools import product

import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.mixing_law import MixingLaw, best_counts, draw_mixtures, fit_law, predicted_gain

TRUE = MixingLaw(np.array([1.0, 2.0, 0.5]), np.array([[-2.0, 0.3, 0.1], [0.5, -3.0, 0.4], [0.2, 0.6, -1.0]]))
NATURAL = np.array([0.6, 0.3, 0.1])


def test_draws_fill_the_block_around_the_natural_mixture_and_a_larger_swarm_begins_alike():
    drawn = draw_mixtures(NATURAL, 64, 200, seed=1)
    assert (drawn.sum(axis=1) == 64).all()
    assert (drawn >= 0).all()
    assert np.abs(drawn.mean(axis=0) / 64 - NATURAL).max() < 0.05
    assert (draw_mixtures(NATURAL, 64, 10, seed=1) == drawn[:10]).all()
    assert len(np.unique(drawn, axis=0)) > 100


def test_the_law_of_losses_that_follow_one_is_found():
    shares = draw_mixtures(NATURAL, 256, 60, seed=2) / 256
    found = fit_law(shares, TRUE.losses(shares))
    unseen = draw_mixtures(np.full(3, 1 / 3), 256, 50, seed=3) / 256
    assert np.allclose(found.losses(unseen), TRUE.losses(unseen), atol=2e-3)
    with pytest.raises(DataError, match="expected at least 5 runs, found 4"):
        fit_law(shares[:4], TRUE.losses(shares[:4]))


@pytest.mark.parametrize("most", [(16, 16, 16), (7, 16, 16), (16, 4, 4)])
@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 0, 0), (0.2, 0.1, 0.7)])
@pytest.mark.parametrize("least", [(1, 1, 1), (0, 1, 0)])
def test_the_best_counts_are_the_best_of_all(most: tuple[int, ...], weights: tuple[float, ...], least: tuple[int, ...]):
    every = np.array(
        [counts for counts in product(*(range(low, high + 1) for low, high in zip(least, most, strict=True))) if sum(counts) == 16]
    )
    found = best_counts(TRUE, np.array(weights), np.array([9, 5, 2]), np.array(least), np.array(most))
    values = TRUE.losses(every / 16) @ np.array(weights)
    assert TRUE.losses(found / 16) @ np.array(weights) == pytest.approx(values.min())
    assert (found.sum(), (found >= least).all(), (found <= most).all()) == (16, True, True)


def test_bounds_without_a_mixture_are_refused():
    with pytest.raises(DataError, match="expected bounds that admit 16 sequences in a block, found 3 to 12"):
        best_counts(TRUE, np.ones(3), np.array([9, 5, 2]), np.ones(3, int), np.array([4, 4, 4]))


def test_the_interval_covers_the_gain_of_single_trainings():
    rng, covered, gains = np.random.default_rng(0), 0, []
    weights, pair = np.full(3, 1 / 3), (NATURAL, np.array([0.3, 0.3, 0.4]))
    for seed in range(4):
        shares = draw_mixtures(NATURAL, 256, 40, seed) / 256
        losses = TRUE.losses(shares) + 0.03 * rng.standard_normal((40, 3))
        gain = predicted_gain(shares, losses, fit_law(shares, losses), weights, pair, seed=seed)
        trained = (TRUE.losses(np.stack(pair)) + 0.03 * rng.standard_normal((2, 3))) @ weights
        covered += gain.low <= trained[0] - trained[1] <= gain.high
        gains.append(gain.mean)
        assert gain.rank_correlation > 0.8
    assert covered >= 2
    before, after = TRUE.losses(np.stack(pair)) @ weights
    assert np.mean(gains) == pytest.approx(before - after, abs=0.03)
