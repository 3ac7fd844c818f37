"""Two proportions on the same items: the interval of their difference, and whether a fall is more than chance.

Only the items that one of the two models has right and the other wrong say anything about the difference. `lost` are those that only the
parent has right, `gained` those that only the checkpoint has right.
"""

# scipy's stubs leave its functions untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtrc, ndtr, ndtri

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
