"""Plain figures of a run: growth of a norm, the moving average's distance and gap, time spent waiting for data."""

from typing import NamedTuple

import numpy as np

from phasewise.validations.evidence.health.metrics import Floats, Metrics

SETTLING_SHARE = 0.25
"""Fresh weights are small and grow at first: from scratch, growth counts from so much of the run on."""


class Figure(NamedTuple):
    """A value and the step at which it is worst."""

    value: float
    step: int


class Growth(NamedTuple):
    """A norm's largest value against an early one."""

    factor: float
    step: int
    since_step: int


def growth(metrics: Metrics, name: str) -> Growth | None:
    """How many times its first value the norm reaches; for fresh weights (a run that starts with step 1), its value after a quarter."""
    rows = np.flatnonzero(np.isfinite(metrics[name]) & (metrics[name] > 0))
    if len(rows) < 2:
        return None
    since = rows[int(SETTLING_SHARE * len(rows))] if metrics.steps[0] == 1 else rows[0]
    later = rows[rows >= since]
    largest = later[np.argmax(metrics[name][later])]
    return Growth(float(metrics[name][largest] / metrics[name][since]), int(metrics.steps[largest]), int(metrics.steps[since]))


NORM_RESOLUTION = 1e-6
"""Float32 tells two norms apart from about this share of them on."""


def growth_resolution(metrics: Metrics) -> Floats:
    """The relative growth that could be rounding alone."""
    rates = metrics["learning_rate"]
    return np.divide(NORM_RESOLUTION, rates, out=np.full(len(rates), np.nan), where=rates > NORM_RESOLUTION**2)


def relative_growth(metrics: Metrics, name: str) -> Floats:
    """Growth of a norm in one update, as a share of it and divided by the learning rate, so that no schedule moves it."""
    norms, rates = metrics[name], metrics["learning_rate"]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        grown = np.diff(np.log(norms), prepend=np.nan) / rates
    return np.where(np.isfinite(grown), grown, np.nan)


def direction_norm(metrics: Metrics) -> Floats:
    """The update norm divided by the learning rate: the length of the optimizer's direction."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        norms = metrics["update_norm"] / metrics["learning_rate"]
    return np.where(np.isfinite(norms), norms, np.nan)


def update_over_ema_distance(metrics: Metrics) -> Figure | None:
    """How far one update moves the weights, in units of their distance from the moving average; the median of all updates.

    An average over several updates lags by more than one of them (below 1). One that follows the weights, because its decay is turned
    round, does not.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares = metrics["update_norm"] / (metrics["ema_distance"] * metrics["param_norm"])
    rows = np.flatnonzero(np.isfinite(shares))
    if not len(rows):
        return None
    return Figure(float(np.median(shares[rows])), int(metrics.steps[rows[0]]))


def ema_gap(metrics: Metrics) -> Figure | None:
    """The largest evaluation loss of the weights above that of their moving average."""
    with np.errstate(over="ignore"):
        gaps = metrics["eval_loss"] - metrics["ema_eval_loss"]
    rows = np.flatnonzero(np.isfinite(gaps))
    if not len(rows):
        return None
    worst = rows[np.argmax(gaps[rows])]
    return Figure(float(gaps[worst]), int(metrics.steps[worst]))


def data_share(metrics: Metrics) -> Figure | None:
    """The share of the time that was spent waiting for batches, without the first update of each process."""
    waits = metrics["data_seconds"]
    durations = np.diff(metrics["seconds"], prepend=np.nan)
    rows = np.flatnonzero((waits >= 0) & (durations > 0) & np.isfinite(durations))
    if not len(rows):
        return None
    scale = float(durations[rows].max())
    share = float((waits[rows] / scale).sum() / (durations[rows] / scale).sum())
    return Figure(min(1.0, share), int(metrics.steps[rows[np.argmax(waits[rows])]]))
