import numpy as np
import pytest

from experiments.studies.gate_noise import ABILITIES, ITEMS, Gate, ability_after, coverage, draw_pairs, false_refusals, power, true_score

PAIRS = 400


def test_few_checkpoints_as_good_as_their_parent_are_refused_but_without_a_shared_rate_too_many():
    for gate, fall in ((Gate(max_fall=0.0, max_rise=None), 0.0), (Gate(), 0.01)):
        refused = false_refusals(np.random.default_rng(1), gate, PAIRS, fall=fall)
        assert refused.share <= gate.rate + 2 * refused.error, str(refused)
    refused = false_refusals(np.random.default_rng(1), Gate(max_fall=0.0, max_rise=None, rate=0.05 * len(ITEMS)), PAIRS)
    assert refused.share > 0.08, str(refused)


@pytest.mark.parametrize("place", [1, 3])
def test_the_stated_fall_is_seen_eight_times_in_ten(place: int):
    fall, seen = power(np.random.default_rng(2), Gate(), place, PAIRS)
    assert 0.05 < fall < 0.3
    assert 0.8 - 2 * seen.error <= seen.share <= 0.9, str(seen)


@pytest.mark.parametrize(("place", "fall"), [(1, 0.0), (3, 0.0), (3, 0.1)])
def test_intervals_hold_the_true_difference(place: int, fall: float):
    held = coverage(np.random.default_rng(3), place, 2 * PAIRS, fall=fall)
    assert 0.93 - held.error <= held.share <= 0.97 + held.error, str(held)


def test_pairs_are_drawn_as_it_is_said():
    ability = ABILITIES[3]
    drawn = draw_pairs(np.random.default_rng(4), 500, 200, (ability, ability_after(0.1, ability)))
    assert np.mean([pair.difference for pair in drawn]) == pytest.approx(-0.1, abs=0.004)
    assert true_score(-20.0) == pytest.approx(0.25)
    independent = 2 * true_score(ability) * (1 - true_score(ability))
    assert np.mean([pair.gained + pair.lost for pair in drawn]) / 200 < 0.7 * independent
