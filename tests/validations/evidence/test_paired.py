import math
from typing import Any

import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.parent_comparison import choice_probability, likelihood_change, pair_items, spread_of
from phasewise.validations.evidence.proportions import Pairs
from tests.validations.made_answers import grouped_result, scored_result


def result(right: list[bool]) -> dict[str, Any]:
    return scored_result(np.zeros((len(right), 4)), right=np.array(right))


def test_items_are_paired_by_their_names_and_not_by_their_places():
    ours, theirs = result([True, True, False, False, True]), result([True, False, True, False, False])
    assert pair_items(ours, theirs) == Pairs(5, gained=2, lost=1)
    theirs["answers"] = theirs["answers"][::-1]
    assert pair_items(ours, theirs) == Pairs(5, gained=2, lost=1)


def test_other_items_are_refused():
    ours, theirs = result([True] * 4), result([True] * 5)
    with pytest.raises(DataError, match="found 4 and 5 items, 1 of them in one alone, such as continuation-4"):
        pair_items(ours, theirs)


def test_the_probability_is_among_the_choices_of_the_item():
    answer = {"log_likelihoods": [-1000.0, -1000.0 + math.log(3)], "gold": 1}
    assert choice_probability(answer) == pytest.approx(0.75)
    assert math.isnan(choice_probability({"log_likelihoods": [-1.0], "gold": 0}))
    assert math.isnan(choice_probability({"log_likelihoods": [-1.0, math.nan], "gold": 0}))


def test_right_answers_that_became_less_likely_are_seen_where_no_score_moved():
    rng = np.random.default_rng(3)
    before = rng.normal(0, 1, (200, 4)) + np.array([2.0, 0, 0, 0])
    after = before + np.array([-0.3, 0, 0, 0]) + rng.normal(0, 0.2, (200, 4))
    right = np.ones(200, bool)
    change = likelihood_change(scored_result(after, right=right), scored_result(before, right=right))
    assert change.fall_p_value < 1e-6
    assert change.low < change.difference < change.high < 0
    back = likelihood_change(scored_result(before, right=right), scored_result(after, right=right))
    assert back.fall_p_value > 1 - 1e-6
    assert back.difference == pytest.approx(-change.difference)


def test_a_group_counts_once():
    """Four times the same items, as groups of four, say no more than one of each: the interval is not half as wide."""
    rng = np.random.default_rng(5)
    before, after = (rng.normal(0, 1, (50, 1, 4)) for _ in range(2))
    sure, flags = np.ones((50, 4), bool), np.zeros((50, 4), bool)

    def grouped(scores: np.ndarray) -> dict[str, Any]:
        """Item i of a group has its right choice at i: the scores are turned so that each item is as the first."""
        return grouped_result(np.stack([np.roll(scores[:, 0], at, axis=1) for at in range(4)], axis=1), right=sure, baseline_right=flags)

    alone = likelihood_change(scored_result(after[:, 0], right=sure[:, 0]), scored_result(before[:, 0], right=sure[:, 0]))
    together = likelihood_change(grouped(after), grouped(before))
    assert together == pytest.approx(alone)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_where_nothing_moved_nothing_fell(shift: float):
    scores = np.tile([1.0, 0.0, 0.0, 0.0], (20, 1))
    change = likelihood_change(scored_result(scores + np.array([shift, 0, 0, 0])), scored_result(scores))
    assert change.fall_p_value == 1.0


def test_where_every_item_fell_alike_it_fell():
    scores = np.tile([1.0, 0.0, 0.0, 0.0], (20, 1))
    assert likelihood_change(scored_result(scores - np.array([0.5, 0, 0, 0])), scored_result(scores)).fall_p_value == 0.0


def test_a_broken_score_is_not_measured():
    broken = scored_result(np.array([[0.0, math.nan, 0, 0], [1.0, 0, 0, 0]]), right=np.array([True, True]))
    assert all(map(math.isnan, likelihood_change(broken, result([True, True]))))


def test_a_steady_climb_is_no_spread():
    assert spread_of([0.1, 0.2, 0.3, 0.4]) == pytest.approx(0.0, abs=1e-12)
    assert spread_of([0.5, 0.52, 0.48, 0.5]) == pytest.approx(math.sqrt(0.00072 / 2))
    with pytest.raises(DataError, match="at least three of them, found 2"):
        spread_of([0.1, 0.2])
