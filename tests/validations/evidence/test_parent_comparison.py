import math
from typing import Any

import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence import parent_comparison
from phasewise.validations.evidence.parent_comparison import choice_probability, compare, favoured_by_schedule, likelihood_change
from phasewise.validations.evidence.proportions import Pairs
from tests.validations.made_answers import grouped_result, guessed_result, scored_result, setting

STEADY = {"end": 1e-3, "peak": 1e-3, "optimizer": "adamw"}


def point(end: float, peak: float, optimizer: str = "adamw") -> dict[str, Any]:
    return {"end": end, "peak": peak, "optimizer": optimizer}


def evaluation(phase: str = "kestrel", schedule: dict[str, Any] | None = STEADY, **changed: Any) -> dict[str, Any]:
    result = guessed_result(right=80, first=100)
    result["setting"] = setting("continuation", 200) | changed
    return {"phase": phase, "results": [result], "schedule": schedule}


def compared(ours: dict[str, Any], parent: dict[str, Any] | None):
    return compare("continuation acc", ours["results"][0], ours, parent)


def test_what_was_put_alike_at_the_same_point_is_compared():
    found = compared(evaluation("ocelot"), evaluation())
    assert (found.against, found.limited, found.differs, found.why_not) == ("kestrel", "", "", "")
    assert (found.asks_fall, found.asks_rise) == (True, True)


@pytest.mark.parametrize(("changed", "said"), [
    ({"version": "2.0"}, "version of the benchmark 1.0, the parent's 2.0"), ({"shots": 5}, "examples in the prompt 0, the parent's 5"),
    ({"filter": "flexible-extract"}, "filter of the answers none, the parent's flexible-extract"),
    ({"items": 300, "asked": 300}, "number of items 200, the parent's 300; items that were asked 200, the parent's 300"),
    ({"asked": 100}, "items that were asked 200, the parent's 100"),
    ({"items_digest": "others"}, "other items (items of, the parent's others)"),
    ({"prompts_digest": "others"}, "other prompts (prompts , the parent's others)"),
    ({"precision": "bfloat16"}, "precision float32, the parent's bfloat16"), ({"temperature": 0.7}, "temperature None, the parent's 0.7"),
])  # fmt: skip
def test_each_part_of_the_setting_that_differs_is_named_and_nothing_is_compared(changed: dict[str, Any], said: str):
    found = compared(evaluation("ocelot"), evaluation(**changed))
    assert (found.differs, found.asks_fall, found.asks_rise) == (said, False, False)


def test_a_parent_that_was_never_asked_it_is_no_error_and_one_of_before_settings_were_kept_is():
    never, none = compared(evaluation("ocelot"), evaluation() | {"results": []}), compared(evaluation(), None)
    assert (never.against, never.why_not, none.against) == ("kestrel", "kestrel was never measured on it", None)
    for found in (never, none):
        assert (found.differs, found.asks_fall, found.asks_rise) == ("", False, False)
    parent = evaluation()
    del parent["results"][0]["setting"]
    assert compared(evaluation("ocelot"), parent).differs == "the parent's evaluation does not say how it was put"
    assert compared(evaluation("ocelot"), evaluation(schedule=None)).differs.startswith("the evaluation of kestrel does not say at which")


@pytest.mark.parametrize("parent", [None, evaluation()])
def test_the_first_items_alone_are_no_score(parent: dict[str, Any] | None):
    found = compared(evaluation("ocelot", asked=100), parent)
    assert found.limited == "only 100 of its 200 items were asked, which are the first and no sample"
    assert (found.asks_fall, found.asks_rise) == (False, False)


@pytest.mark.parametrize(("here", "parent", "favours"), [
    (point(1e-3, 1e-3), point(1e-3, 1e-3), "neither"),
    (point(1.7e-3, 1.7e-3), point(1e-3, 1e-3), "neither"),  # a peak that is not twice as high
    (point(1.7e-5, 1.7e-3), point(1.7e-3, 1.7e-3), "checkpoint"),  # a cooldown after a steady phase
    (point(1.7e-3, 1.7e-3), point(1.7e-4, 1.7e-3), "parent"),  # a phase that warms up again
    (point(4e-4, 1e-3), point(1e-4, 1e-3), "parent"),  # in mid-decay beside an annealed one
    (point(1e-4, 1e-3), point(4e-4, 1e-3), "checkpoint"),
    (point(4e-4, 1e-3), point(2e-4, 1e-3), "neither"),  # both in mid-decay, within a factor of two
    (point(1.5e-4, 1e-3), point(4e-4, 1e-3), "checkpoint"),
    (point(1e-5, 1e-5), point(1e-5, 1e-3), "neither"),  # it goes on at the rate at which its parent ended
    (point(0.0, 1e-3), point(1e-4, 1e-3), "neither"),  # both annealed
    (point(0.02, 0.02, "muon"), point(1e-3, 1e-3), "neither"),  # rates of two kinds of optimizer say nothing of each other
    (point(2e-4, 0.002, "muon"), point(1e-3, 1e-3), "checkpoint"),
])  # fmt: skip
def test_who_is_further_down_its_learning_rate_is_favoured(here: dict[str, Any], parent: dict[str, Any], favours: str):
    assert favoured_by_schedule(here, parent) == favours
    found = compared(evaluation("ocelot", here), evaluation("kestrel", parent))
    assert (found.asks_fall, found.asks_rise) == (favours != "parent", favours != "checkpoint")
    assert bool(found.why_not) == (favours != "neither")


@pytest.mark.parametrize("broken", [point(2e-3, 1e-3), point(-1e-3, 1e-3), point(0.0, 0.0), point(float("nan"), 1e-3)])
def test_a_rate_that_is_none_is_refused(broken: dict[str, Any]):
    with pytest.raises(DataError, match="a learning rate between 0 and the phase's peak"):
        favoured_by_schedule(broken, STEADY)


def result(right: list[bool]) -> dict[str, Any]:
    return scored_result(np.zeros((len(right), 4)), right=np.array(right))


def test_items_are_paired_by_their_names_and_not_by_their_places_and_others_are_refused():
    ours, theirs = result([True, True, False, False, True]), result([True, False, True, False, False])
    for other in (theirs, theirs | {"answers": theirs["answers"][::-1]}):
        assert parent_comparison.pair_items(ours, other) == Pairs(5, gained=2, lost=1)
    with pytest.raises(DataError, match="found 4 and 5 items, 1 of them in one alone, such as continuation-4"):
        parent_comparison.pair_items(result([True] * 4), theirs)


def test_the_probability_is_among_the_choices_of_the_item():
    for scores, gold, share in (([-1000.0, -1000.0 + math.log(3)], 1, 0.75), ([-1.0], 0, math.nan), ([-1.0, math.nan], 0, math.nan)):
        assert choice_probability({"log_likelihoods": scores, "gold": gold}) == pytest.approx(share, nan_ok=True)


def test_right_answers_that_became_less_likely_are_seen_where_no_score_moved():
    rng = np.random.default_rng(3)
    before, ahead = rng.normal(0, 1, (200, 4)), np.array([1.0, 0, 0, 0])
    before += 2 * ahead
    after = before - 0.3 * ahead + rng.normal(0, 0.2, (200, 4))
    right = np.ones(200, bool)
    change = likelihood_change(scored_result(after, right=right), scored_result(before, right=right))
    assert change.fall_p_value < 1e-6
    assert change.low < change.difference < change.high < 0
    back = likelihood_change(scored_result(before, right=right), scored_result(after, right=right))
    assert back.fall_p_value > 1 - 1e-6
    assert back.difference == pytest.approx(-change.difference)


def test_a_group_counts_once():
    rng = np.random.default_rng(5)
    before, after = (rng.normal(0, 1, (50, 1, 4)) for _ in range(2))
    sure, flags = np.ones((50, 4), bool), np.zeros((50, 4), bool)

    def grouped(scores: np.ndarray) -> dict[str, Any]:
        """Item i of a group has its right choice at i: the scores are turned so that each item is as the first."""
        return grouped_result(np.stack([np.roll(scores[:, 0], at, axis=1) for at in range(4)], axis=1), right=sure, baseline_right=flags)

    alone = likelihood_change(scored_result(after[:, 0], right=sure[:, 0]), scored_result(before[:, 0], right=sure[:, 0]))
    together = likelihood_change(grouped(after), grouped(before))
    assert together == pytest.approx(alone)


def test_where_every_item_moved_alike_chance_has_no_part_and_a_broken_score_is_not_measured():
    scores = np.tile([1.0, 0.0, 0.0, 0.0], (20, 1))
    for shift, p_value in ((0.0, 1.0), (1.0, 1.0), (-0.5, 0.0)):
        after, before = scored_result(scores + np.array([shift, 0, 0, 0])), scored_result(scores)
        for answer in (*after["answers"], *before["answers"]):
            answer["group"] = "of two" if answer["id"].endswith("0") else None
        assert likelihood_change(after, before).fall_p_value == p_value
    broken = scored_result(np.array([[0.0, math.nan, 0, 0], [1.0, 0, 0, 0]]), right=np.array([True, True]))
    assert all(map(math.isnan, likelihood_change(broken, result([True, True]))))


def test_a_steady_climb_is_no_spread():
    assert parent_comparison.spread_of([0.1, 0.2, 0.3, 0.4]) == pytest.approx(0.0, abs=1e-12)
    assert parent_comparison.spread_of([0.5, 0.52, 0.48, 0.5]) == pytest.approx(math.sqrt(0.00072 / 2))
    with pytest.raises(DataError, match="at least three of them, found 2"):
        parent_comparison.spread_of([0.1, 0.2])
