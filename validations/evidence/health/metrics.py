"""The rows of `metrics.jsonl` as columns, the stretches of a run without a deliberate change, and figures of single columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phasewise.trainer.metrics import Row

Floats = NDArray[np.float64]
MIN_JUMP_SHARE, MIN_JUMP_FACTOR = 0.05, 1.25
"""A learning rate jumps where one update changes it by this share of the run's highest, and by this factor."""
SETTLING_SHARE = 0.25
"""Fresh weights are small and grow at first: from scratch, growth counts from so much of the run on."""
NORM_RESOLUTION = 1e-6
"""Float32 tells two norms apart from about this share of them on."""


class NonFinite(NamedTuple):
    """A number that is not finite."""

    step: int
    name: str


@dataclass(frozen=True)
class Metrics:
    """A run's measurements in the order of its updates.

    Attributes:
        columns: name → its values, NaN where a row does not hold a finite number.
        non_finite: values of rows that are null, infinite, NaN or not numbers.
    """

    steps: NDArray[np.int64]
    columns: Mapping[str, Floats]
    non_finite: tuple[NonFinite, ...]

    def __getitem__(self, name: str) -> Floats:
        """The column; all NaN if no row holds it."""
        return self.columns[name] if name in self.columns else np.full(len(self.steps), np.nan)

    def lacks(self, *names: str) -> list[str]:
        """The names that have a finite number in no row."""
        return [name for name in names if not np.isfinite(self[name]).any()]


class Stretch(NamedTuple):
    """Rows `[start, stop)`; `trend` is -1, 0 or 1: the learning rate falls, stays or rises."""

    start: int
    stop: int
    trend: int

    @property
    def rows(self) -> slice:
        """For indexing a column."""
        return slice(self.start, self.stop)


class Figure(NamedTuple):
    """A value and the step at which it is worst."""

    value: float
    step: int


class Growth(NamedTuple):
    """A norm's largest value divided by an early one."""

    factor: float
    step: int
    since_step: int


def read_columns(rows: Sequence[Row]) -> Metrics:
    """The rows as columns. A row without a step counts as the one after its predecessor's."""
    steps = np.zeros(len(rows), np.int64)
    columns: dict[str, Floats] = {}
    non_finite: list[NonFinite] = []
    for number, row in enumerate(rows):
        step = _number(row.get("step"))
        is_step = math.isfinite(step) and abs(step) < 2**53
        steps[number] = int(step) if is_step else (steps[number - 1] + 1 if number else 1)
        for name, value in row.items():
            found = _number(value)
            if name not in columns:
                columns[name] = np.full(len(rows), np.nan)
            if math.isfinite(found):
                columns[name][number] = found
            else:
                non_finite.append(NonFinite(int(steps[number]), name))
    return Metrics(steps, columns, tuple(non_finite))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def regimes(metrics: Metrics) -> list[tuple[int, int]]:
    """Rows `[start, stop)` within which the mixture and the batch stay the same."""
    return _between(_differs(metrics["mixture_since"]) | _differs(metrics["tokens"]))


def stretches(metrics: Metrics) -> list[Stretch]:
    """The regimes, cut where z-loss changes, and where the learning rate jumps or begins to fall, to stay or to rise."""
    rates = metrics["learning_rate"]
    changes = _differs(metrics["mixture_since"]) | _differs(metrics["tokens"]) | _differs(metrics["z_loss"]) | _jumps(rates)
    found: list[Stretch] = []
    for start, stop in _between(changes):
        trends = np.nan_to_num(np.sign(np.diff(rates[start:stop])))
        if not len(trends):
            continue
        trends = np.concatenate([trends[:1], trends])  # a regime's first row belongs to the change after it
        edges = _between(_differs(trends))
        found += [Stretch(start + first, start + last, int(trends[first])) for first, last in edges]
    return found


def _differs(column: Floats) -> NDArray[np.bool_]:
    """Where a value is not that of the row before; a missing value differs from nothing."""
    return np.concatenate([np.zeros(min(1, len(column)), bool), np.abs(np.diff(column)) > 0])


def _jumps(rates: Floats) -> NDArray[np.bool_]:
    if not np.isfinite(rates).any():
        return np.zeros(len(rates), bool)
    before, after = rates[:-1], rates[1:]
    lower, higher = np.fmin(before, after), np.fmax(before, after)
    is_jump = (higher - lower > MIN_JUMP_SHARE * np.nanmax(rates)) & (higher > MIN_JUMP_FACTOR * lower)
    return np.concatenate([[False], is_jump])


def _between(changes: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = [0, *np.flatnonzero(changes).tolist(), len(changes)]
    return [(start, stop) for start, stop in pairwise(edges) if stop > start]


def growth(metrics: Metrics, name: str) -> Growth | None:
    """How many times its first value the norm reaches; for fresh weights (a run that starts with step 1), its value after a quarter."""
    rows = np.flatnonzero(np.isfinite(metrics[name]) & (metrics[name] > 0))
    if len(rows) < 2:
        return None
    since = rows[int(SETTLING_SHARE * len(rows))] if metrics.steps[0] == 1 else rows[0]
    later = rows[rows >= since]
    largest = later[np.argmax(metrics[name][later])]
    return Growth(float(metrics[name][largest] / metrics[name][since]), int(metrics.steps[largest]), int(metrics.steps[since]))


def growth_resolution(metrics: Metrics) -> Floats:
    """The relative growth that could be rounding alone."""
    rates = metrics["learning_rate"]
    return np.divide(NORM_RESOLUTION, rates, out=np.full(len(rates), np.nan), where=rates > NORM_RESOLUTION**2)


def relative_growth(metrics: Metrics, name: str) -> Floats:
    """Growth of a norm in one update, as a share of it and divided by the learning rate, so that no schedule moves it."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _finite(np.diff(np.log(metrics[name]), prepend=np.nan) / metrics["learning_rate"])


def direction_norm(metrics: Metrics) -> Floats:
    """The update norm divided by the learning rate: the length of the optimizer's direction."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _finite(metrics["update_norm"] / metrics["learning_rate"])


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def update_over_ema_distance(metrics: Metrics) -> Figure | None:
    """How far one update moves the weights, in units of their distance from the moving average; the median of all updates.

    An average over several updates lags by more than one of them (below 1). One that follows the weights, because its decay is turned
    round, does not.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares = metrics["update_norm"] / (metrics["ema_distance"] * metrics["param_norm"])
    rows = np.flatnonzero(np.isfinite(shares))
    return Figure(float(np.median(shares[rows])), int(metrics.steps[rows[0]])) if len(rows) else None


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
