"""The smallest difference that a test would show: what a gate can see, and what it cannot."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import bdtrc, ndtr, ndtri

# scipy's stubs leave its functions untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false


CONFIDENCE = 0.95
"""Of every interval."""
HALF_AN_ITEM = 0.5
"""Taken off an excess before it is compared with the normal distribution: counts move by whole items."""


_BESIDE = 1e-9
"""So far beside the difference that was seen the search for an end begins: where no item disagrees, the statistic is 0 there alone."""


class Pairs(NamedTuple):
    """How two models answered the same items."""

    items: int
    gained: int
    lost: int

    @property
    def difference(self) -> float:
        """The checkpoint's score less the parent's."""
        return (self.gained - self.lost) / self.items

    @property
    def turned(self) -> "Pairs":
        """The same with the two models in each other's place: a rise is then a fall."""
        return Pairs(self.items, self.lost, self.gained)


@lru_cache(maxsize=100_000)
def difference_interval(pairs: Pairs, spread: float = 0.0) -> tuple[float, float]:
    """The 95 % interval of the difference between two scores on the same items, by Tango's score method.

    Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design", Statistics in Medicine
    17 (1998), equations 4 to 6. All differences are in it that the score test at 5 % does not reject.

    Args:
        spread: standard deviation of the difference from one checkpoint to the next, beside that of the items. Each half of the interval
            becomes √(half² + (1.96 · spread)²): the two errors are independent (Newcombe, Statistics in Medicine 17 (1998), 2635).

    Returns:
        The lower and the upper end, between −1 and 1.
    """
    deviations = float(ndtri((1 + CONFIDENCE) / 2))
    difference = pairs.difference
    low = _where_score_is(pairs, deviations, -1.0, difference - _BESIDE) if difference > -1 else -1.0
    high = _where_score_is(pairs, -deviations, difference + _BESIDE, 1.0) if difference < 1 else 1.0
    below, above = (math.hypot(half, deviations * spread) for half in (difference - low, high - difference))
    return max(-1.0, difference - below), min(1.0, difference + above)


def fall_p_values(lost: np.ndarray, gained: np.ndarray, *, items: int, max_fall: float = 0.0, spread: float = 0.0) -> np.ndarray:
    """How often at least so large a fall is seen where the true fall is no larger than `max_fall`. One-sided.

    The largest of two or three p-values, so that none of their weaknesses refuses a model: the exact test of McNemar (Psychometrika 12
    (1947), 153), which ignores `max_fall`; Tango's score test at `max_fall`, less half an item; and with a spread the normal distribution
    with both errors in it. Where `max_fall` and `spread` are zero the exact test is the only one, and nothing is approximate.

    Args:
        lost, gained: items, as arrays of one shape.
        max_fall: the difference that is allowed, as a share of the items.
        spread: as in `difference_interval`.
    """
    lost, gained = np.asarray(lost, np.int64), np.asarray(gained, np.int64)
    exact = np.where(lost > 0, bdtrc(np.maximum(lost - 1, 0), lost + gained, 0.5), 1.0)
    if not (max_fall or spread):
        return exact
    excess = lost - gained - items * max_fall - HALF_AN_ITEM
    variance = np.maximum(_variance(lost, gained, items, max_fall), 1e-12) + (items * spread) ** 2
    return np.maximum(exact, ndtr(-excess / np.sqrt(variance)))


def fall_p_value(pairs: Pairs, *, max_fall: float = 0.0, spread: float = 0.0) -> float:
    """`fall_p_values` of one pair of models."""
    lost, gained = np.array([pairs.lost]), np.array([pairs.gained])
    return float(fall_p_values(lost, gained, items=pairs.items, max_fall=max_fall, spread=spread)[0])


class MeanTest(NamedTuple):
    """The 95 % interval of a mean, and the p-value of a one-sided test of it."""

    low: float
    high: float
    p_value: float


def mean_test(values: np.ndarray, *, mean: float = 0.0, alternative: Literal["less", "greater"]) -> MeanTest:
    """The t-test of a mean (Student, Biometrika 6 (1908), 1). All are NaN if a value is not finite or there are fewer than two."""
    from scipy.stats import ttest_1samp  # half a second, which only a gate needs

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
    """P-values that may each be compared with the error rate of all tests together (Holm, Scandinavian Journal of Statistics 6 (1979), 65).

    With them the chance that any true hypothesis is rejected is at most the rate, however the tests hang together. A NaN makes all of them
    NaN: what could not be computed may not make the others look better.
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


def _where_score_is(pairs: Pairs, target: float, low: float, high: float) -> float:
    """The true difference in between at which the score statistic has this value: it falls as the difference grows."""
    from scipy.optimize import brentq  # half a second, which only a gate needs

    def above(difference: float) -> float:
        variance = float(_variance(np.array(pairs.gained), np.array(pairs.lost), pairs.items, difference))
        excess = pairs.gained - pairs.lost - pairs.items * difference
        return excess - target * math.sqrt(max(variance, 0.0))

    end: Any = brentq(above, low, high, xtol=1e-10)
    return float(end)


def _variance(first: np.ndarray, second: np.ndarray, items: int, difference: float) -> np.ndarray:
    """Of first − second, where the shares behind them differ by `difference`: the likeliest such shares are a root of a square (Tango)."""
    linear = -first - second + (2 * items - first + second) * difference
    constant = -second * difference * (1 - difference)
    smaller = (np.sqrt(np.maximum(linear**2 - 8 * items * constant, 0.0)) - linear) / (4 * items)
    return items * (2 * smaller + difference * (1 - difference))


# scipy's stubs leave its functions untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false


POWER = 0.8
"""A difference is called detectable where the test shows it in so many of a hundred draws of the items, divided by a hundred."""
PLANNED_POWER = 0.82
"""What a fall is stated for: how often two models disagree is only estimated from this pair, which costs up to two of a hundred draws."""
MANY_ITEMS = 3000
"""Above so many items those numbers of disagreements are left out that come about in fewer than one in 10¹² draws."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)


@lru_cache(maxsize=20_000)
def smallest_fall(pairs: Pairs, *, level: float, max_fall: float = 0.0, spread: float = 0.0) -> float:
    """The smallest true fall that `fall_p_values` shows at this level with a power of 80 %, on so many items; NaN where there is none.

    The power is that of McNemar's test given how often two such models disagree (Connor, Biometrics 43 (1987), 207), summed over all
    outcomes and not approximated. How often they disagree is taken from this very pair: a fall of δ turns ψ₀ = 2√(gained · lost) / items
    into √(ψ₀² + δ²), as a shift of all disagreements by the same log-odds does. Half an item is added to each count, so that no
    disagreement seen is not none at all.

    Args:
        level: of the one test, after what is shared among the tests of a gate.
        max_fall, spread: as in `fall_p_values`.

    Returns:
        A share of the items, `max_fall` included.
    """
    from scipy.optimize import brentq  # half a second, which only a gate needs

    # The product of the two counts is the same when a pair falls: what it was before the fall cannot be known.
    base = 2 * math.sqrt((pairs.gained + 0.5) * (pairs.lost + 0.5)) / (pairs.items + 1)
    critical = _critical_losses(pairs.items, level, max_fall, spread)

    def lacking(fall: float) -> float:
        return _power(fall, base, critical, spread) - PLANNED_POWER

    if lacking(1.0) < 0:
        return math.nan
    fall: Any = brentq(lacking, max_fall, 1.0, xtol=1e-6) if lacking(max_fall) < 0 else max_fall
    return float(fall)


@lru_cache(maxsize=20_000)
def smallest_margin(items: int, baseline: float, *, level: float) -> float:
    """The smallest margin above a guesser's baseline that the exact binomial test shows with a power of 80 %; NaN where there is none."""
    from scipy.optimize import brentq  # half a second, which only a gate needs

    counts = np.arange(items + 1)
    shows = np.flatnonzero(np.where(counts > 0, bdtrc(np.maximum(counts - 1, 0), items, baseline), 1.0) <= level)
    if not len(shows):
        return math.nan
    least = int(shows[0])
    share: Any = brentq(lambda share: float(bdtrc(least - 1, items, share)) - POWER, baseline, 1.0, xtol=1e-6)
    return float(share) - baseline


@lru_cache(maxsize=1_000)
def _critical_losses(items: int, level: float, max_fall: float, spread: float) -> np.ndarray:
    """Number of disagreements → the fewest losses among them that are shown; one more than there are where none are."""
    disagreements = np.arange(items + 1)
    low, high = np.zeros(items + 1, np.int64), disagreements + 1
    while (low < high).any():
        middle = (low + high) // 2
        lost = np.minimum(middle, disagreements)
        shown = fall_p_values(lost, disagreements - lost, items=items, max_fall=max_fall, spread=spread) <= level
        shown |= middle > disagreements
        low, high = np.where(shown, low, middle + 1), np.where(shown, middle, high)
    return low


def _power(fall: float, base: float, critical: np.ndarray, spread: float) -> float:
    """How often a true fall is shown; with a spread, over what it may be in another checkpoint."""
    if not spread:
        return _power_of_items(fall, base, critical)
    falls = np.clip(fall + spread * _NODES, -1.0, 1.0)
    powers = [_power_of_items(float(one), base, critical) for one in falls]
    return float(np.dot(_WEIGHTS, powers) / _WEIGHTS.sum())


def _power_of_items(fall: float, base: float, critical: np.ndarray) -> float:
    from scipy.stats import binom  # half a second, which only a gate needs

    items = len(critical) - 1
    disagreeing = min(1.0, math.hypot(base, fall))
    likely = np.arange(items + 1)
    if items > MANY_ITEMS:
        low, high = binom.ppf([1e-12, 1 - 1e-12], items, disagreeing).astype(int)
        likely = np.arange(max(low, 0), min(high, items) + 1)
    share_lost = min(1.0, (1 + fall / disagreeing) / 2)
    return float(np.dot(binom.pmf(likely, items, disagreeing), binom.sf(critical[likely] - 1, likely, share_lost)))
