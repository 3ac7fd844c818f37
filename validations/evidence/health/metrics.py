"""The rows of `metrics.jsonl` as columns, and the stretches of a run within which nothing was changed on purpose."""

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


class NonFinite(NamedTuple):
    """A number that is none."""

    step: int
    name: str


@dataclass(frozen=True)
class Metrics:
    """A run's measurements in the order of its updates.

    Attributes:
        columns: name → its values, NaN where a row does not hold a finite number.
        non_finite: what rows hold that is null, infinite, NaN or no number at all.
    """

    steps: NDArray[np.int64]
    columns: Mapping[str, Floats]
    non_finite: tuple[NonFinite, ...]

    def __getitem__(self, name: str) -> Floats:
        """The column; all NaN where no row holds it."""
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


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _differs(column: Floats) -> NDArray[np.bool_]:
    """Where a value is not that of the row before; what isn't there differs from nothing."""
    return np.concatenate([np.zeros(min(1, len(column)), bool), np.abs(np.diff(column)) > 0])


def _jumps(rates: Floats) -> NDArray[np.bool_]:
    if not np.isfinite(rates).any():
        return np.zeros(len(rates), bool)
    before, after = rates[:-1], rates[1:]
    lower = np.fmin(before, after)
    higher = np.fmax(before, after)
    is_jump = (higher - lower > MIN_JUMP_SHARE * np.nanmax(rates)) & (higher > MIN_JUMP_FACTOR * lower)
    return np.concatenate([[False], is_jump])


def _between(changes: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = [0, *np.flatnonzero(changes).tolist(), len(changes)]
    return [(start, stop) for start, stop in pairwise(edges) if stop > start]
