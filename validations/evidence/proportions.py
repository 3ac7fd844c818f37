"""Tests of paired proportions, and the smallest difference that a test can detect."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import bdtrc, ndtr, ndtri

CONFIDENCE = 0.95  # confidence of every interval
HALF_AN_ITEM = 0.5  # continuity correction of an excess of items against the normal distribution
POWER = 0.8  # a difference is detectable if the test detects it in this share of random draws of the items
PLANNED_POWER = 0.82
"""Power to plan falls with: the rate of disagreements is only estimated from one pair of models, which costs up to 0.02."""
MANY_ITEMS = 3000  # above this number of items, numbers of disagreements with a probability below 10⁻¹² are left out
_BESIDE = 1e-9
"""Distance from the observed difference at which the search for an end of the interval begins: without disagreements the statistic is 0
only at the observed difference."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)


class Pairs(NamedTuple):
    """Number of items, and of items that only the checkpoint (`gained`) or only the parent (`lost`) has right."""

    items: int
    gained: int
    lost: int

    @property
    def difference(self) -> float:
        """The checkpoint's score minus the parent's."""
        return (self.gained - self.lost) / self.items

    @property
    def turned(self) -> "Pairs":
        """The pairs with the models swapped: a rise becomes a fall."""
        return Pairs(self.items, self.lost, self.gained)


@lru_cache(maxsize=100_000)
def difference_interval(pairs: Pairs, spread: float = 0.0) -> tuple[float, float]:
    """Return the 95 % interval of the difference between two scores on the same items, by Tango's score method.

    Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design", Statistics in Medicine
    17 (1998), equations 4 to 6. With a `spread`, the standard deviation of the difference between neighbouring checkpoints, each half
    becomes √(half² + (1.96 · spread)²): the two errors are independent (Newcombe, Statistics in Medicine 17 (1998), 2635).
    """
    from scipy.optimize import brentq  # the import takes half a second

    deviations = float(ndtri((1 + CONFIDENCE) / 2))

    def excess(difference: float, target: float) -> float:
        """Subtract `target` from the score statistic of a true difference, which falls as the difference grows."""
        variance = float(_variance(np.array(pairs.gained), np.array(pairs.lost), pairs.items, difference))
        return pairs.gained - pairs.lost - pairs.items * difference - target * math.sqrt(max(variance, 0.0))

    difference = pairs.difference
    low: Any = brentq(excess, -1.0, difference - _BESIDE, args=(deviations,), xtol=1e-10) if difference > -1 else -1.0
    high: Any = brentq(excess, difference + _BESIDE, 1.0, args=(-deviations,), xtol=1e-10) if difference < 1 else 1.0
    below, above = (math.hypot(half, deviations * spread) for half in (difference - low, high - difference))
    return max(-1.0, difference - below), min(1.0, difference + above)


def fall_p_values(lost: np.ndarray, gained: np.ndarray, *, items: int, max_fall: float = 0.0, spread: float = 0.0) -> np.ndarray:
    """Return the chance of such a fall or a larger one if the true fall is at most `max_fall`, a share of the items. One-sided.

    The largest of up to three p-values, so that no test's weakness rejects a model. McNemar's exact test (Psychometrika 12 (1947), 153)
    ignores `max_fall`. Tango's score test is at `max_fall` less half an item. With a spread, both errors share a normal distribution.
    If `max_fall` and `spread` are zero, only the exact test applies.
    """
    lost, gained = np.asarray(lost, np.int64), np.asarray(gained, np.int64)
    exact = np.where(lost > 0, bdtrc(np.maximum(lost - 1, 0), lost + gained, 0.5), 1.0)
    if not (max_fall or spread):
        return exact
    excess = lost - gained - items * max_fall - HALF_AN_ITEM
    variance = np.maximum(_variance(lost, gained, items, max_fall), 1e-12) + (items * spread) ** 2
    return np.maximum(exact, ndtr(-excess / np.sqrt(variance)))


def fall_p_value(pairs: Pairs, *, max_fall: float = 0.0, spread: float = 0.0) -> float:
    """Return `fall_p_values` of a single pair of models."""
    lost, gained = np.array([pairs.lost]), np.array([pairs.gained])
    return float(fall_p_values(lost, gained, items=pairs.items, max_fall=max_fall, spread=spread)[0])


def _variance(first: np.ndarray, second: np.ndarray, items: int, difference: float) -> np.ndarray:
    """Return the variance of first − second if the true shares differ by `difference`, at the likeliest such shares (Tango)."""
    linear = -first - second + (2 * items - first + second) * difference
    constant = -second * difference * (1 - difference)
    smaller = (np.sqrt(np.maximum(linear**2 - 8 * items * constant, 0.0)) - linear) / (4 * items)
    return items * (2 * smaller + difference * (1 - difference))


def score_interval(right: float, items: int, ungraded: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of a score, Wilson's (Journal of the American Statistical Association 22 (1927), 209).

    The lower end takes all ungraded items as wrong, and the upper end as right. `right` has no ungraded item.
    """
    deviations = float(ndtri((1 + CONFIDENCE) / 2))
    ends: list[float] = []
    for share, sign in ((right / items, -1), ((right + ungraded) / items, 1)):
        half = deviations * math.sqrt(share * (1 - share) / items + (deviations / (2 * items)) ** 2)
        ends.append((share + deviations**2 / (2 * items) + sign * half) / (1 + deviations**2 / items))
    return max(0.0, ends[0]), min(1.0, ends[1])


class MeanTest(NamedTuple):
    """The 95 % interval of a mean, and the p-value of a one-sided test."""

    low: float
    high: float
    p_value: float


def mean_test(values: np.ndarray, *, mean: float = 0.0, alternative: Literal["less", "greater"]) -> MeanTest:
    """Run the t-test of a mean (Student, Biometrika 6 (1908), 1). NaN for fewer than two values, or if a value is not finite."""
    from scipy.stats import ttest_1samp  # the import takes half a second

    if len(values) < 2 or not np.isfinite(values).all():
        return MeanTest(math.nan, math.nan, math.nan)
    if np.ptp(values) == 0:
        value = float(values[0])
        is_shown = value < mean if alternative == "less" else value > mean
        return MeanTest(value, value, 0.0 if is_shown else 1.0)
    interval: Any = ttest_1samp(values, 0.0).confidence_interval(CONFIDENCE)
    test: Any = ttest_1samp(values, mean, alternative=alternative)
    return MeanTest(float(interval.low), float(interval.high), float(test.pvalue))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for comparison with one error rate of all tests (Holm, Scandinavian Journal of Statistics 6 (1979), 65).

    The chance to reject any true hypothesis is at most the rate, however the tests depend on each other. A NaN makes all of them NaN:
    a failed test must not improve the others.
    """
    adjusted = [math.nan] * len(p_values)
    if any(map(math.isnan, p_values)):
        return adjusted
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = min(1.0, max(largest, (len(order) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


@lru_cache(maxsize=20_000)
def smallest_fall(pairs: Pairs, *, level: float, max_fall: float = 0.0, spread: float = 0.0) -> float:
    """Return the smallest true fall, as a share of the items, that `fall_p_values` detects with a power of 80 %, else NaN.

    The power is exact: McNemar's test given the rate of disagreements (Connor, Biometrics 43 (1987), 207), summed over all outcomes. The
    rate is taken from this pair: a fall of δ turns ψ₀ = 2√(gained · lost) / items into √(ψ₀² + δ²), as a shift of all disagreements by the
    same log-odds does. Half an item is added to each count, so that zero observed disagreements do not mean a zero rate. `level` is the
    error rate of this test, after the rate is shared among the tests of a gate.
    """
    from scipy.optimize import brentq  # the import takes half a second

    # A fall keeps the product of the two counts, so the product describes the pair before the fall.
    base = 2 * math.sqrt((pairs.gained + 0.5) * (pairs.lost + 0.5)) / (pairs.items + 1)
    critical = _critical_losses(pairs.items, level, max_fall, spread)

    def lacking(fall: float) -> float:
        if not spread:
            return _power_of_items(fall, base, critical) - PLANNED_POWER
        falls = np.clip(fall + spread * _NODES, -1.0, 1.0)
        powers = [_power_of_items(float(one), base, critical) for one in falls]
        return float(np.dot(_WEIGHTS, powers) / _WEIGHTS.sum()) - PLANNED_POWER

    if lacking(1.0) < 0:
        return math.nan
    fall: Any = brentq(lacking, max_fall, 1.0, xtol=1e-6) if lacking(max_fall) < 0 else max_fall
    return float(fall)


@lru_cache(maxsize=20_000)
def smallest_margin(items: int, baseline: float, *, level: float) -> float:
    """Return the smallest margin above a guesser's baseline that the exact binomial test detects with a power of 80 %, else NaN."""
    from scipy.optimize import brentq  # the import takes half a second

    counts = np.arange(items + 1)
    shows = np.flatnonzero(np.where(counts > 0, bdtrc(np.maximum(counts - 1, 0), items, baseline), 1.0) <= level)
    if not len(shows):
        return math.nan
    least = int(shows[0])
    share: Any = brentq(lambda share: float(bdtrc(least - 1, items, share)) - POWER, baseline, 1.0, xtol=1e-6)
    return float(share) - baseline


@lru_cache(maxsize=1_000)
def _critical_losses(items: int, level: float, max_fall: float, spread: float) -> np.ndarray:
    """Map the number of disagreements to the fewest losses that the test detects, or to number + 1 if it detects none."""
    disagreements = np.arange(items + 1)
    low, high = np.zeros(items + 1, np.int64), disagreements + 1
    while (low < high).any():
        middle = (low + high) // 2
        lost = np.minimum(middle, disagreements)
        shown = fall_p_values(lost, disagreements - lost, items=items, max_fall=max_fall, spread=spread) <= level
        shown |= middle > disagreements
        low, high = np.where(shown, low, middle + 1), np.where(shown, middle, high)
    return low


def _power_of_items(fall: float, base: float, critical: np.ndarray) -> float:
    from scipy.stats import binom  # the import takes half a second

    items = len(critical) - 1
    disagreeing = min(1.0, math.hypot(base, fall))
    likely = np.arange(items + 1)
    if items > MANY_ITEMS:
        low, high = binom.ppf([1e-12, 1 - 1e-12], items, disagreeing).astype(int)
        likely = np.arange(max(low, 0), min(high, items) + 1)
    share_lost = min(1.0, (1 + fall / disagreeing) / 2)
    return float(np.dot(binom.pmf(likely, items, disagreeing), binom.sf(critical[likely] - 1, likely, share_lost)))
