"""Whether the experts of a sparse model keep their balance."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phasewise.validations.evidence.health.averages import Figure
from phasewise.validations.evidence.health.finding import NOWHERE, Finding, not_measured, turned_off
from phasewise.validations.evidence.health.metrics import Floats, Metrics
from phasewise.validations.evidence.health.phenomena import Measure

WINDOW, MIN_UPDATES = 32, 16
"""Updates whose median counts: one batch that falls on few experts is no collapse. A run of fewer than the second is not judged."""


class Medians(NamedTuple):
    """The median of `max_violation` over each `WINDOW` updates in a row.

    Attributes:
        values: of each window, the earliest first.
        first_steps, last_steps: the updates that each begins and ends with.
        is_early: the window begins in the run's first half.
    """

    values: Floats
    first_steps: NDArray[np.int64]
    last_steps: NDArray[np.int64]
    is_early: NDArray[np.bool_]


def balance_findings(metrics: Metrics, limit: float | None) -> list[Finding]:
    """Whether the balance is lost in the run's second half, which stops a phase, and whether it was for a time before, which warns.

    MaxVio (Wang et al., 2024): how far the busiest expert of the worst layer is above the mean; num_experts / num_active − 1 where all
    tokens have the same experts.
    """
    late, early = Measure.MAX_VIOLATION, Measure.EARLY_VIOLATION
    if limit is None:
        return [turned_off(late), turned_off(early)]
    medians = medians_of(metrics)
    if medians is None:
        missing = metrics.lacks("max_violation")
        reason = f"fewer than {MIN_UPDATES} updates"
        same = Finding(early, np.nan, np.nan, NOWHERE, f"{late} says why", is_measured=False)
        return [not_measured(late, limit, missing, why=reason, may_lack=not missing), same]
    return [_late(medians, limit), _early(metrics, medians, limit)]


def medians_of(metrics: Metrics) -> Medians | None:
    """None where there are too few updates. Each window of the run is either early or not; together they are all."""
    values = metrics["max_violation"]
    rows = np.flatnonzero(np.isfinite(values))
    if len(rows) < MIN_UPDATES:
        return None
    half = len(rows) // 2
    length = min(WINDOW, len(rows) - half)
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values[rows], length), axis=1)
    steps = metrics.steps[rows]
    return Medians(medians, steps[: len(medians)], steps[length - 1 :], np.arange(len(medians)) < half)


def worst_of(medians: Medians, *, early: bool) -> Figure:
    """The largest median of the windows that begin in one half of the run, and the last update of its window."""
    chosen = np.flatnonzero(medians.is_early == early)
    worst = chosen[np.argmax(medians.values[chosen])]
    return Figure(float(medians.values[worst]), int(medians.last_steps[worst]))


def _late(medians: Medians, limit: float) -> Finding:
    """The first half is not looked at: a fresh router has to find its balance first. What is lost and not found again is in the second."""
    found = worst_of(medians, early=False)
    detail = f"in the worst layer the busiest expert has lastingly {1 + found.value:.3g} times the tokens of the mean"
    return Finding(Measure.MAX_VIOLATION, found.value, limit, found.step, detail)


def _early(metrics: Metrics, medians: Medians, limit: float) -> Finding:
    """Windows that begin in the first half, those that reach into the second included."""
    found = worst_of(medians, early=True)
    detail = f"in the worst layer the busiest expert had up to {1 + found.value:.3g} times the tokens of the mean"
    if found.value > limit:
        first, last = _off_balance(metrics, medians, limit)
        is_found_again = worst_of(medians, early=False).value <= limit
        detail += f"; off its balance between steps {first} and {last}, and {'found again' if is_found_again else 'later as well'}"
    return Finding(Measure.EARLY_VIOLATION, found.value, limit, found.step, detail)


def _off_balance(metrics: Metrics, medians: Medians, limit: float) -> tuple[int, int]:
    """The first and the last update above the limit, within the early windows whose median is; at least half of a window's are."""
    windows = np.flatnonzero(medians.is_early & (medians.values > limit))
    is_within = (metrics.steps >= medians.first_steps[windows[0]]) & (metrics.steps <= medians.last_steps[windows[-1]])
    steps = metrics.steps[is_within & (metrics["max_violation"] > limit)]
    return int(steps[0]), int(steps[-1])
