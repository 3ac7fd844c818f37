"""Distributions of the order measures under true random permutations, which give the limit at any false-alarm rate.

No limit is set by hand or fitted. Each measure has a normal, chi-square, Poisson or Kolmogorov distribution, or is bounded by one through
the union bound. Simulated permutations in the tests verify the tails.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from scipy.special import chdtrc, chdtri, gammainc, gammaincc, gammaincinv, kolmogi, kolmogorov, ndtr, ndtri

MIN_RATE = 1e-300


@dataclass(frozen=True)
class Null:
    """Distribution of a measure over true random permutations."""

    bound: Literal["max", "min"]  # large (`max`) or small (`min`) values alarm
    chance: Callable[[float], float]  # probability, or its upper bound, of a value at least as extreme
    limit: Callable[[float], float]  # value beyond which the probability is below a rate


@dataclass(frozen=True)
class Measure:
    """A number about a permutation, the most surprising of `tries` numbers."""

    name: str
    value: float
    null: Null
    tries: int = 1
    detail: str = ""

    @property
    def p_value(self) -> float:
        """Probability, or its upper bound, of a value at least as extreme under a true random permutation."""
        return min(1.0, self.tries * self.null.chance(self.value))

    def limit(self, rate: float) -> float:
        """Return the value that fewer than `rate` of all true random permutations exceed."""
        return self.null.limit(max(rate / self.tries, MIN_RATE))

    def judged(self, rate: float) -> dict[str, Any]:
        """Compare with true random permutations at `rate`, the measure's share of all false alarms."""
        found = {"name": self.name, "value": float(self.value), "limit": self.limit(rate), "passes": self.p_value >= rate}
        return found | {"bound": self.null.bound, "p_value": self.p_value, "detail": self.detail}


def most_surprising(measures: Iterable[Measure]) -> Measure:
    """Return the least likely of several measures with one name, as the worst of all their tries."""
    found = list(measures)
    worst = min(found, key=lambda measure: measure.null.chance(measure.value))
    return Measure(worst.name, worst.value, worst.null, sum(measure.tries for measure in found), worst.detail)


IMPOSSIBLE = Null("max", lambda value: float(value <= 0), lambda _: 0.0)  # any value above 0 alarms
BROWNIAN_BRIDGE = Null("max", lambda value: float(kolmogorov(value)), lambda rate: float(kolmogi(rate)))
"""Largest distance of a random walk that returns to its start, divided by the root of its length (Kolmogorov's distribution)."""


def normal_size(deviation: float, *, step: float = 0.0) -> Null:
    """Absolute value of a normal draw around 0, with a continuity correction of half a step."""
    return Null(
        "max",
        lambda value: float(2 * ndtr(-max(value - step / 2, 0.0) / deviation)),
        lambda rate: float(-ndtri(rate / 2) * deviation + step / 2),
    )


def chi_square_most(degrees: int) -> Null:
    """Chi-square per degree of freedom, alarming on large values."""
    return Null("max", lambda value: float(chdtrc(degrees, value * degrees)), lambda rate: float(chdtri(degrees, rate) / degrees))


def chi_square_least(degrees: int, *, step: float) -> Null:
    """Chi-square per degree of freedom, alarming on small values. Counts are whole: a value covers values up to `step` above."""
    return Null(
        "min",
        lambda value: float(gammainc(degrees / 2, max(value * degrees + step, 0.0) / 2)),
        lambda rate: float((2 * gammaincinv(degrees / 2, rate) - step) / degrees),
    )


def poisson_most(mean: float, *, values: int = 1) -> Null:
    """Largest of `values` counts of rare events with this mean, alarming on large values, by the union bound."""
    return Null(
        "max",
        lambda value: values * _at_least(mean, value),
        lambda rate: float(_last(lambda count: values * _at_least(mean, count) >= rate, mean)),
    )


def poisson_least(mean: float) -> Null:
    """Count of rare events, alarming on small values."""

    def at_most(count: float) -> float:
        return float(gammaincc(count + 1, mean)) if count >= 0 else 0.0

    return Null("min", at_most, lambda rate: float(_last(lambda count: at_most(count) < rate, mean) + 1))


def longest_run(count: int) -> Null:
    """Longest run among `count` fair signs, by the union bound over all starts."""
    return Null(
        "max",
        lambda value: float((count - value + 2) * 2.0**-value) if value <= count else 0.0,
        lambda rate: float(_last(lambda length: (count - length + 2) * 2.0**-length >= rate, 1)),
    )


def _at_least(mean: float, count: float) -> float:
    return float(gammainc(count, mean)) if count > 0 else 1.0


def _last(holds: Callable[[int], bool], scale: float) -> int:
    """Return the largest count with a property of small counts, -1 if no count has it."""
    behind = math.ceil(scale) + 1
    while holds(behind):
        behind *= 2
    low, high = -1, behind
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
