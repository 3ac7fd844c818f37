"""Time series of a training run: columns of `metrics.jsonl`, stretches without a deliberate change, spikes, rises and shifts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.indexers import BaseIndexer

from phasewise.trainer.metrics import Row

Floats = NDArray[np.float64]
Range = tuple[int, int]
MIN_JUMP_SHARE, MIN_JUMP_FACTOR = 0.05, 1.25
"""A learning rate jumps if one update changes it by this share of the run's highest rate, and by this factor."""
MIN_WINDOW = 32  # a value with fewer values before it, since the run's start or its last change of data, is not scored
LEAD_UPDATES = 16  # updates before a loss spike within which a rise of the update norm leads the spike
MIN_LEAD_RISE = 1.25  # minimum factor of a rise of the update norm
MAX_BLOCKS, MIN_BLOCKS, MIN_BLOCK_UPDATES = 64, 12, 5
CERTAINTY = 5.0  # standard errors. The number is high because many pairs of windows are tried, and the noise is an estimate
MAX_RATE_SHARE = 0.9
"""The learning rate has fallen once it is at most this share of its start. Just before, the loss may still follow a warm-up."""
WIDTHS = (0.5, 0.25, 0.125)  # widths of the compared windows, as shares of the stretch


@dataclass(frozen=True)
class Metrics:
    """Measurements of a run in the order of its updates."""

    steps: NDArray[np.int64]
    columns: Mapping[str, Floats]  # name → values, NaN if a row does not hold a finite number
    non_finite: tuple[tuple[int, str], ...]  # (step, name) of values that are null, infinite, NaN or not numbers

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name] if name in self.columns else np.full(len(self.steps), np.nan)

    def lacks(self, *names: str) -> list[str]:
        """Return the names without any finite number."""
        return [name for name in names if not np.isfinite(self[name]).any()]


def read_columns(rows: Sequence[Row]) -> Metrics:
    """Turn rows into columns. A row without a step follows the step of the row before."""
    steps = np.zeros(len(rows), np.int64)
    columns: dict[str, Floats] = {}
    non_finite: list[tuple[int, str]] = []
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
                non_finite.append((int(steps[number]), name))
    return Metrics(steps, columns, tuple(non_finite))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


class Stretch(NamedTuple):
    """Rows `[start, stop)` with a learning rate that falls (trend -1), stays (0) or rises (1)."""

    start: int
    stop: int
    trend: int


def regimes(metrics: Metrics) -> list[Range]:
    """Return the row ranges `[start, stop)` with one mixture and one batch size."""
    return _ranges(_changes(metrics, "mixture_since", "tokens"))


def stretches(metrics: Metrics) -> list[Stretch]:
    """Return the regimes, also split where z-loss changes, and where the learning rate jumps or changes its trend."""
    rates = metrics["learning_rate"]
    changes = _changes(metrics, "mixture_since", "tokens", "z_loss")
    if np.isfinite(rates).any():
        lower, higher = np.fmin(rates[:-1], rates[1:]), np.fmax(rates[:-1], rates[1:])
        changes[1:] |= (higher - lower > MIN_JUMP_SHARE * np.nanmax(rates)) & (higher > MIN_JUMP_FACTOR * lower)
    found: list[Stretch] = []
    for start, stop in _ranges(changes):
        trends = np.nan_to_num(np.sign(np.diff(rates[start:stop])))
        if len(trends):
            trends = np.concatenate([trends[:1], trends])  # a regime's first row has the trend of its second
            edges = _ranges(np.diff(trends, prepend=trends[0]) != 0)
            found += [Stretch(start + first, start + last, int(trends[first])) for first, last in edges]
    return found


def _changes(metrics: Metrics, *names: str) -> NDArray[np.bool_]:
    """Mark the rows in which a column differs from the row before. A missing value differs from no value."""
    changed = np.zeros(len(metrics.steps), bool)
    for name in names:
        changed[1:] |= np.abs(np.diff(metrics[name])) > 0
    return changed


def _ranges(changes: NDArray[np.bool_]) -> list[Range]:
    edges = [0, *np.flatnonzero(changes).tolist(), len(changes)]
    return [(start, stop) for start, stop in pairwise(edges) if stop > start]


@dataclass(frozen=True)
class Spikes:
    """Scores and spikes, one entry a row."""

    deviations: Floats  # distance above the mean of the window, in the window's standard deviations. NaN if the value is not scored
    is_spike: NDArray[np.bool_]
    scored: int  # number of scored values


class _Before(BaseIndexer):
    """The window before each value."""

    window_size: int

    def get_window_bounds(  # the library's signature
        self,
        num_values: int = 0,
        min_periods: int | None = None,
        center: bool | None = None,
        closed: str | None = None,
        step: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ends = np.arange(num_values, dtype=np.int64)
        lengths = np.clip(ends // 2, MIN_WINDOW, max(MIN_WINDOW, self.window_size))
        return np.maximum(0, ends - lengths), ends


def find_spikes(values: Floats, regimes: list[Range], *, deviations: float, window: int, resolution: Floats | None = None) -> Spikes:
    """Score each value against mean and standard deviation of the `window` values before it in its regime.

    At the start of a regime, the window is the later half of the values before, at least `MIN_WINDOW`, because the loss falls far there.
    The first `MIN_WINDOW` values are not scored. Only rises are spikes. Spikes stay in the windows of later values. `resolution` is a lower
    bound of the standard deviation, for values that rounding makes equal.
    """
    found = np.full(len(values), np.nan)
    for start, stop in regimes:
        places = start + np.flatnonzero(np.isfinite(values[start:stop]))
        if len(places) <= MIN_WINDOW:
            continue
        scale = float(np.max(np.abs(values[places]))) or 1.0  # squares of the largest floats overflow
        scaled = pd.Series(values[places] / scale)
        before = scaled.rolling(_Before(window_size=window), min_periods=MIN_WINDOW)
        floors = 1e-9 if resolution is None else np.fmax(resolution[places] / scale, 1e-9)
        spreads = np.fmax(before.std(ddof=0).to_numpy(np.float64), floors)
        found[places] = (scaled - before.mean()).to_numpy(np.float64) / spreads
    return Spikes(found, np.nan_to_num(found, nan=-np.inf) >= deviations, int(np.isfinite(found).sum()))


class Lead(NamedTuple):
    """A loss spike after a rise of the update norm: its row, the distance in updates, and the norm as a factor of its usual value."""

    row: int
    updates: int
    factor: float


def find_leads(spikes: Spikes, update_norms: Floats, *, deviations: float, window: int) -> list[Lead]:
    """Find loss spikes within `LEAD_UPDATES` after a rise of the update norm (by learning rate) above the median and two limits."""
    rows = np.flatnonzero(spikes.is_spike)
    leads: list[Lead] = []
    for row in rows[np.diff(rows, prepend=-LEAD_UPDATES - 1) > LEAD_UPDATES].tolist():
        first = max(0, row - LEAD_UPDATES)
        usual, recent = update_norms[max(0, first - window) : first], update_norms[first:row]
        usual = usual[np.isfinite(usual)]
        if len(usual) < MIN_WINDOW or not np.isfinite(recent).any():
            continue
        middle = float(np.median(usual))
        threshold = max(middle + deviations * _spread(usual - middle), MIN_LEAD_RISE * middle)
        above = np.flatnonzero(np.nan_to_num(recent, nan=-np.inf) > threshold)
        if len(above) and middle > 0:
            leads.append(Lead(row, row - first - int(above[0]), float(np.nanmax(recent)) / middle))
    return leads


class Change(NamedTuple):
    """A change of the training loss in nats a token."""

    certain: float  # lower end of the change, `CERTAINTY` standard errors below the estimate. 0 if the change may be noise
    estimate: float
    step: int  # first step of the change
    resolution: float  # largest change that may still be noise
    evaluation: float = 0.0  # move of the evaluation loss during the change. 0 if the evaluation is ignored

    def __str__(self) -> str:
        return f"{self.estimate:+.2g} nats ({self.certain:.2g} of it certain)"


@dataclass(frozen=True)
class _Levels:
    """Medians of the loss in the blocks of a stretch, the noise of one median, and the row at which each block starts."""

    values: Floats
    noise: float
    rows: NDArray[np.int64]
    widths: list[int]  # widths of the compared windows in blocks


def _levels_of(losses: Floats, start: int, stop: int) -> _Levels | None:
    """Summarise a stretch by the medians of up to 64 blocks, which short spikes do not move. None if it has too few values.

    The noise is the larger of the scatter of the blocks around straight lines, and the scatter of the updates within.
    """
    places = start + np.flatnonzero(np.isfinite(losses[start:stop]))
    count = min(MAX_BLOCKS, len(places) // MIN_BLOCK_UPDATES)
    if count < MIN_BLOCKS:
        return None
    edges = np.linspace(0, len(places), count + 1).astype(int)
    values = losses[places]
    medians = np.array([np.median(values[first:last]) for first, last in pairwise(edges)])
    noise = math.sqrt(math.pi / 2) * _spread(np.diff(values)) / math.sqrt(2) / math.sqrt(len(places) / count)
    for width in (1, 2, 4):  # blocks, and means of two and of four blocks
        points = medians[: len(medians) // width * width].reshape(-1, width).mean(axis=1)
        if len(points) >= MIN_BLOCKS:
            noise = max(noise, math.sqrt(width / 6) * _spread(points[:-2] - 2 * points[1:-1] + points[2:]))
    # Level the blocks that are spikes: a block of a lasting change never lies between its neighbours.
    middle = np.median(np.stack([np.roll(medians, 1), medians, np.roll(medians, -1)]), axis=0)
    stands_out = np.abs(medians - middle) > CERTAINTY * noise
    stands_out[[0, -1]] = False
    widths = [max(2, round(share * count)) for share in WIDTHS]
    return _Levels(np.where(stands_out, middle, medians), noise, places[edges[:-1]], widths)


def largest_rise(metrics: Metrics, stretches: list[Stretch]) -> Change | None:
    """Find the largest rise of the loss up to the end of a stretch with falling learning rate, over windows of several widths."""
    found: list[Change] = []
    for stretch in stretches:
        rates = metrics["learning_rate"][stretch.start : stretch.stop]
        has_fallen = rates <= MAX_RATE_SHARE * rates[0]
        if stretch.trend >= 0 or not has_fallen.any():
            continue
        levels = _levels_of(metrics["loss"], stretch.start + int(has_fallen.argmax()), stretch.stop)
        if levels is None:
            continue
        values = levels.values
        for low in levels.widths:
            for tail in levels.widths:
                last = len(values) - tail
                if low > last:
                    continue
                means = np.convolve(values[:last], np.full(low, 1 / low), mode="valid")
                lowest = int(np.argmin(means))
                estimate = float(values[last:].mean() - means[lowest])
                resolution = CERTAINTY * levels.noise * math.sqrt(1 / low + 1 / tail)
                step = int(metrics.steps[levels.rows[lowest + low - 1]])
                found.append(Change(max(0.0, estimate - resolution), estimate, step, resolution))
    return max(found, key=lambda rise: (rise.certain, rise.estimate), default=None)


def largest_shift(metrics: Metrics, stretches: list[Stretch], *, needs_evaluation: bool) -> Change | None:
    """Find the largest shift of the loss that the evaluation loss does not follow. None if no stretch can be tested.

    A rising learning rate moves the loss for a known reason. Without `needs_evaluation`, evaluations are ignored.
    """
    found: list[Change] = []
    for stretch in stretches:
        levels = _levels_of(metrics["loss"], stretch.start, stretch.stop) if stretch.trend <= 0 else None
        if levels:
            found += _shifts(levels, metrics, needs_evaluation=needs_evaluation)
    return max(found, key=lambda shift: (shift.certain, abs(shift.estimate)), default=None)


def _shifts(levels: _Levels, metrics: Metrics, *, needs_evaluation: bool) -> Iterator[Change]:
    """Yield the step of the loss at each block, relative to a straight line through the windows before and after."""
    evaluations = metrics["eval_loss"]
    evaluated = np.flatnonzero(np.isfinite(evaluations))
    count = len(levels.values)
    for before in levels.widths[1:]:
        for after in {before, max(3, count // 16)}:
            # Least-squares weights of the step in a line with a step after `before` of `before + after` points
            places = np.arange(before + after, dtype=np.float64)
            design = np.stack([np.ones_like(places), places - places.mean(), (places >= before).astype(np.float64)])
            kernel: Floats = np.linalg.pinv(design.T)[2]
            resolution = CERTAINTY * levels.noise * float(np.linalg.norm(kernel))
            for first, estimate in enumerate(np.correlate(levels.values, kernel, mode="valid").tolist()):
                moved = 0.0
                if needs_evaluation:
                    # All movement from the last evaluation before to the first after counts, so that a bend of a falling loss is no shift.
                    start = int(np.searchsorted(evaluated, levels.rows[first], side="right")) - 1
                    stop = int(np.searchsorted(evaluated, levels.rows[min(first + before + after, count - 1)]))
                    if start < 0 or stop >= len(evaluated):
                        continue
                    moved = float(np.ptp(evaluations[evaluated[start : stop + 1]]))
                certain = max(0.0, abs(estimate) - resolution - moved)
                yield Change(certain, estimate, int(metrics.steps[levels.rows[first + before]]), resolution, moved)


def _spread(values: Floats) -> float:
    """Return a robust standard deviation around zero."""
    return 1.4826 * float(np.median(np.abs(values)))
