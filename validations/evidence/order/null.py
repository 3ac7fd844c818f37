"""What true random permutations give: the distribution of each measure, known beforehand, and so its limit at any false-alarm rate.

No limit is set by hand and none is fitted. Every measure is made such that its distribution under true random permutations is a normal,
a chi-square, a Poisson or Kolmogorov's, or is bounded by one of them by adding up the chances of all ways to be that far out: these
have tails as far out as anybody asks. The tests hold the tails against simulated permutations.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from scipy.special import chdtrc, chdtri, gammainc, gammaincc, gammaincinv, kolmogi, kolmogorov, ndtr, ndtri

MIN_RATE = 1e-300


@dataclass(frozen=True)
class Null:
    """The distribution of a measure over true random permutations, as seen from the side on which it alarms.

    Attributes:
        bound: whether large (`max`) or small (`min`) values alarm.
        chance: of a value at least as far out as the given one, or a bound above it.
        limit: the value from which on the chance is below a rate.
    """

    bound: Literal["max", "min"]
    chance: Callable[[float], float]
    limit: Callable[[float], float]


@dataclass(frozen=True)
class Measure:
    """One number about a permutation. `tries` says how many such numbers it is the most surprising of; `detail` says where it was found."""

    name: str
    value: float
    null: Null
    tries: int = 1
    detail: str = ""

    @property
    def p_value(self) -> float:
        """The chance that a true random permutation gives a value so far out, or a bound above it."""
        return min(1.0, self.tries * self.null.chance(self.value))

    def limit(self, rate: float) -> float:
        """The value beyond which fewer than `rate` of all true random permutations come."""
        return self.null.limit(max(rate / self.tries, MIN_RATE))


def most_surprising(measures: Iterable[Measure]) -> Measure:
    """The least likely of some measures of one name, reported as the worst of all their tries."""
    found = list(measures)
    worst = min(found, key=lambda measure: measure.null.chance(measure.value))
    return Measure(worst.name, worst.value, worst.null, sum(measure.tries for measure in found), worst.detail)


def nothing() -> Null:
    """What never happens to a permutation: any value above 0 alarms."""
    return Null("max", lambda value: float(value <= 0), lambda _: 0.0)


def normal_size(deviation: float, *, step: float = 0.0) -> Null:
    """The size of a normal draw around 0; of one in steps, where a value counts for all that are less than half a step further in."""
    return Null(
        "max",
        lambda value: float(2 * ndtr(-max(value - step / 2, 0.0) / deviation)),
        lambda rate: float(-ndtri(rate / 2) * deviation + step / 2),
    )


def chi_square_most(degrees: int) -> Null:
    """A chi-square per degree of freedom that may be too large."""
    return Null("max", lambda value: float(chdtrc(degrees, value * degrees)), lambda rate: float(chdtri(degrees, rate) / degrees))


def chi_square_least(degrees: int, *, step: float) -> Null:
    """A chi-square per degree of freedom that may be too small.

    Counts are whole numbers: a value counts for all up to the next one, `step` above.
    """
    return Null(
        "min",
        lambda value: float(gammainc(degrees / 2, max(value * degrees + step, 0.0) / 2)),
        lambda rate: float((2 * gammaincinv(degrees / 2, rate) - step) / degrees),
    )


def poisson_most(mean: float) -> Null:
    """A count of rare events that may be too large."""
    return Null("max", lambda value: _at_least(mean, value), lambda rate: float(_last(lambda count: _at_least(mean, count) >= rate, mean)))


def poisson_least(mean: float) -> Null:
    """A count of rare events that may be too small."""
    return Null("min", lambda value: _at_most(mean, value), lambda rate: float(_last(lambda count: _at_most(mean, count) < rate, mean) + 1))


def longest_run(count: int) -> Null:
    """The longest run among `count` fair signs: the chances of all places where a run so long can begin, added up."""
    return Null(
        "max",
        lambda value: float((count - value + 2) * 2.0**-value) if value <= count else 0.0,
        lambda rate: float(_last(lambda length: (count - length + 2) * 2.0**-length >= rate, 1)),
    )


def commonest(values: int, draws: int) -> Null:
    """How often the commonest of `values` equally likely values comes in `draws`: the chances of all values, added up."""
    mean = draws / values
    return Null(
        "max",
        lambda value: values * _at_least(mean, value),
        lambda rate: float(_last(lambda count: values * _at_least(mean, count) >= rate, mean)),
    )


def brownian_bridge() -> Null:
    """The largest distance of a random walk that ends where it began, over its length's root: Kolmogorov's distribution."""
    return Null("max", lambda value: float(kolmogorov(value)), lambda rate: float(kolmogi(rate)))


def _at_least(mean: float, count: float) -> float:
    """The chance of `count` or more."""
    return float(gammainc(count, mean)) if count > 0 else 1.0


def _at_most(mean: float, count: float) -> float:
    """The chance of `count` or fewer."""
    return float(gammaincc(count + 1, mean)) if count >= 0 else 0.0


def _last(holds: Callable[[int], bool], scale: float) -> int:
    """The largest count for which something holds that holds for small counts only; -1 where it holds for none."""
    behind = math.ceil(scale) + 1
    while holds(behind):
        behind *= 2
    low, high = -1, behind
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
