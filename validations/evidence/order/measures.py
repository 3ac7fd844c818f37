"""Everything that is measured of a permutation, and how it compares with true random ones."""

from dataclasses import dataclass
from typing import Literal

from phasewise.validations.evidence.order.bits import bit_measures
from phasewise.validations.evidence.order.coverage import batch_measures, coverage_measures
from phasewise.validations.evidence.order.null import Measure, nothing
from phasewise.validations.evidence.order.sample import Sample
from phasewise.validations.evidence.order.serial import serial_measures

MIN_LENGTH = 16
"""Fewer have too few orders for one to be surprising at the rates in use. Only that each place is taken once is asked of them."""


@dataclass(frozen=True)
class Judged:
    """A measure against its limit.

    Attributes:
        bound: whether `limit` is the largest (`max`) or the smallest (`min`) value that passes.
        p_value: the chance that a true random permutation gives a value so far out, or a bound above it.
    """

    name: str
    value: float
    limit: float
    bound: Literal["max", "min"]
    p_value: float
    passes: bool
    detail: str


def measure_order(sample: Sample) -> list[Measure]:
    """All measures of a permutation that are possible at its length."""
    found = [Measure("places not taken exactly once", sample.misses, nothing())]
    if sample.length >= MIN_LENGTH:
        found += [*bit_measures(sample), *serial_measures(sample), *coverage_measures(sample), *batch_measures(sample)]
    return found


def judge_measures(measures: list[Measure], rate: float) -> list[Judged]:
    """Hold each measure against what true random permutations reach at `rate`, which is its own share of all false alarms."""
    return [
        Judged(one.name, float(one.value), one.limit(rate), one.null.bound, one.p_value, one.p_value >= rate, one.detail)
        for one in measures
    ]
