import math
from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom

from phasewise.validations.evidence import proportions
from phasewise.validations.evidence.proportions import Pairs, difference_interval, fall_p_value, fall_p_values, smallest_fall

SIZES = [Pairs(30, 3, 2), Pairs(96, 12, 16), Pairs(128, 4, 2), Pairs(44, 0, 1), Pairs(60, 20, 1)]


def score(pairs: Pairs, difference: float) -> float:
    """The score statistic with the likeliest shares found by search, and not by a formula."""
    other = pairs.items - pairs.gained - pairs.lost

    def unlikely(lost: float) -> float:
        shares = (lost + difference, lost, 1 - 2 * lost - difference)
        counts = (pairs.gained, pairs.lost, other)
        return -sum(count * math.log(max(share, 1e-300)) for count, share in zip(counts, shares, strict=True))

    low, high = max(0.0, -difference), (1 - difference) / 2
    lost = minimize_scalar(unlikely, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    variance = pairs.items * (2 * lost + difference - difference**2)
    return (pairs.gained - pairs.lost - pairs.items * difference) / math.sqrt(variance)


@pytest.mark.parametrize("pairs", SIZES)
def test_the_ends_of_the_interval_are_where_the_score_test_turns(pairs: Pairs):
    low, high = difference_interval(pairs)
    assert low < pairs.difference < high
    assert difference_interval(pairs.turned) == pytest.approx((-high, -low))
    assert (score(pairs, low), score(pairs, high)) == pytest.approx((1.959964, -1.959964), abs=1e-3)


@pytest.mark.parametrize(("pairs", "low", "high"), [
    (Pairs(30, 0, 0), -0.1135, 0.1135),  # z² / (n + z²), as Wilson's interval has it where nothing is seen
    (Pairs(30, 30, 0), 0.7727, 1.0), (Pairs(30, 0, 30), -1.0, -0.7727),
])  # fmt: skip
def test_an_interval_at_the_edge_has_a_width(pairs: Pairs, low: float, high: float):
    assert difference_interval(pairs) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


def test_a_spread_widens_both_halves():
    pairs = Pairs(96, 12, 16)
    low, high = difference_interval(pairs)
    wider = difference_interval(pairs, spread=0.05)
    for end, before in zip(wider, (low, high), strict=True):
        assert abs(end - pairs.difference) == pytest.approx(math.hypot(before - pairs.difference, 1.959964 * 0.05), rel=1e-6)


def shares_of(items: int, disagreeing: float, fall: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    disagreements, lost = np.array([pair for pair in product(range(items + 1), repeat=2) if pair[1] <= pair[0]]).T
    often = binom.pmf(disagreements, items, disagreeing) * binom.pmf(lost, disagreements, (1 + fall / disagreeing) / 2)
    return lost, disagreements - lost, often


@pytest.mark.parametrize("items", [30, 100])
@pytest.mark.parametrize("max_fall", [0.0, 0.01, 0.25])
@pytest.mark.parametrize("level", [0.05, 0.05 / 8])
def test_a_fall_that_is_allowed_is_refused_no_oftener_than_the_level_says(items: int, max_fall: float, level: float):
    for disagreeing in (max_fall + 0.01, max_fall + 0.1, 0.5):
        lost, gained, often = shares_of(items, disagreeing, max_fall)
        refused = often[fall_p_values(lost, gained, items=items, max_fall=max_fall) <= level].sum()
        assert refused <= level * (1 if max_fall == 0 else 1.15)


@pytest.mark.parametrize("max_fall", [0.0, 0.01, 0.25])
@pytest.mark.parametrize("pairs", [Pairs(96, 12, 16), Pairs(100, 3, 3), Pairs(60, 9, 9)])
def test_the_smallest_fall_is_shown_eight_times_in_ten(pairs: Pairs, max_fall: float):
    level = 0.01
    fall = smallest_fall(pairs, level=level, max_fall=max_fall)
    base = 2 * math.sqrt((pairs.gained + 0.5) * (pairs.lost + 0.5)) / (pairs.items + 1)
    for one, above in ((fall + 1e-4, True), (fall - 1e-3, False)):
        lost, gained, often = shares_of(pairs.items, math.hypot(base, one), one)
        shown = often[fall_p_values(lost, gained, items=pairs.items, max_fall=max_fall) <= level].sum()
        assert (shown >= proportions.PLANNED_POWER) == above


def test_more_items_more_agreement_and_fewer_tests_show_less_and_too_few_items_nothing():
    fall = smallest_fall(Pairs(100, 6, 6), level=0.01)
    for pairs, level in ((Pairs(400, 24, 24), 0.01), (Pairs(100, 2, 2), 0.01), (Pairs(100, 6, 6), 0.05)):
        assert smallest_fall(pairs, level=level) < fall
    assert smallest_fall(Pairs(100, 6, 6), level=0.01, max_fall=0.02) > fall
    assert smallest_fall(Pairs(100, 6, 6), level=0.01, spread=0.05) > fall
    assert math.isnan(smallest_fall(Pairs(5, 0, 0), level=0.01))
    assert math.isnan(proportions.smallest_margin(2, 0.25, level=0.005))


def test_a_long_benchmark_takes_the_same_sum_in_its_middle(monkeypatch: pytest.MonkeyPatch):
    pairs = Pairs(3200, 150, 150)
    fast = smallest_fall(pairs, level=0.01)
    smallest_fall.cache_clear()
    monkeypatch.setattr(proportions, "MANY_ITEMS", 10_000)
    assert smallest_fall(pairs, level=0.01) == pytest.approx(fast, abs=1e-6)
    smallest_fall.cache_clear()


def test_the_smallest_margin_above_a_guesser_is_shown_eight_times_in_ten():
    margin = proportions.smallest_margin(96, 0.25, level=0.005)
    least = next(count for count in range(97) if binom.sf(count - 1, 96, 0.25) <= 0.005)
    assert binom.sf(least - 1, 96, 0.25 + margin) == pytest.approx(proportions.POWER, abs=1e-4)


def test_the_exact_test_is_the_tail_of_fair_coins():
    assert fall_p_value(Pairs(50, gained=1, lost=7)) == pytest.approx(9 / 256)
    assert fall_p_value(Pairs(50, gained=7, lost=0)) == 1.0


def test_holm_multiplies_the_smallest_by_all_and_keeps_the_order_and_nan_lets_no_other_pass():
    nan = math.nan
    for p_values, adjusted in (([0.04, 0.01, 0.03], [0.06, 0.03, 0.06]), ([0.6, 0.7], [1.0, 1.0]), ([], []), ([0.5, nan], [nan, nan])):
        assert proportions.holm(p_values) == pytest.approx(adjusted, nan_ok=True)
