"""Changes of the training loss that outlast its noise: a rise while the learning rate falls, a shift that the evaluation doesn't follow.

A stretch of the run is summed up by the medians of at most 64 blocks of updates, which short spikes don't move; a block that is far off
from both its neighbours is levelled. Their noise is taken
from how they scatter around straight lines and from how the updates scatter within them, whichever is larger. What is reported is the
lower end of what the change may be, `CERTAINTY` standard errors below its estimate: noise alone is no change, however short the run.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.indexers import BaseIndexer

from phasewise.validations.evidence.health.metrics import Floats, Metrics, Stretch

MIN_WINDOW = 32
"""A value with fewer values before it, since the run's start or its last change of data, is not scored."""
LEAD_UPDATES = 16
"""How long before a loss spike a rise of the update norm counts as leading it."""
MIN_LEAD_RISE = 1.25
"""The factor from which on a rise of the update norm counts."""


@dataclass(frozen=True)
class Spikes:
    """Which values were scored, and which of them are spikes; one entry a row.

    Attributes:
        deviations: how far the value lies above the mean of its window, in the window's standard deviations; NaN where it isn't scored.
    """

    deviations: Floats
    is_spike: NDArray[np.bool_]

    @property
    def scored(self) -> int:
        """Values that could be judged."""
        return int(np.isfinite(self.deviations).sum())

    @property
    def percent(self) -> float:
        """Spikes among them."""
        return 100 * int(self.is_spike.sum()) / self.scored


class Lead(NamedTuple):
    """A loss spike that the update norm announced: its row, how many updates before, and at how many times its usual value."""

    row: int
    updates: int
    factor: float


def find_spikes(
    values: Floats, regimes: list[tuple[int, int]], *, deviations: float, window: int, resolution: Floats | None = None
) -> Spikes:
    """Score each value against mean and standard deviation of the `window` values before it in its regime.

    Until there are so many, the window is the later half of those there are, at least `MIN_WINDOW`: at a run's start the loss falls so far
    that no spike would be clear of all of it. The first `MIN_WINDOW` values of a regime are not scored. A spike is a rise: a healthy loss
    falls, often and fast. What isn't finite is in no window. Spikes stay in the windows of the values after them, as in the original.

    Args:
        resolution: the least that the standard deviation counts as at each value, where rounding makes values look alike.
    """
    floors = np.zeros(len(values)) if resolution is None else resolution
    found = np.full(len(values), np.nan)
    for start, stop in regimes:
        places = start + np.flatnonzero(np.isfinite(values[start:stop]))
        if len(places) > MIN_WINDOW:
            found[places] = _deviations(values[places], floors[places], window)
    return Spikes(found, np.nan_to_num(found, nan=-np.inf) >= deviations)


def find_leads(spikes: Spikes, update_norms: Floats, *, deviations: float, window: int) -> list[Lead]:
    """The loss spikes before which the update norm rose.

    It rose where it was, within `LEAD_UPDATES` updates before the spike, `deviations` (robust) standard deviations above its median over
    the window before these, and `MIN_LEAD_RISE` times as high.

    Args:
        update_norms: divided by the learning rate, so that no schedule moves them.
    """
    rows = np.flatnonzero(spikes.is_spike)
    onsets = rows[np.diff(rows, prepend=-LEAD_UPDATES - 1) > LEAD_UPDATES]
    leads = (_lead(int(row), update_norms, deviations, window) for row in onsets)
    return [lead for lead in leads if lead]


def _lead(row: int, update_norms: Floats, deviations: float, window: int) -> Lead | None:
    first = max(0, row - LEAD_UPDATES)
    usual = update_norms[max(0, first - window) : first]
    recent = update_norms[first:row]
    usual = usual[np.isfinite(usual)]
    if len(usual) < MIN_WINDOW or not np.isfinite(recent).any():
        return None
    middle = float(np.median(usual))
    spread = 1.4826 * float(np.median(np.abs(usual - middle)))
    threshold = max(middle + deviations * spread, MIN_LEAD_RISE * middle)
    above = np.flatnonzero(np.nan_to_num(recent, nan=-np.inf) > threshold)
    if not len(above) or middle <= 0:
        return None
    return Lead(row, row - first - int(above[0]), float(np.nanmax(recent)) / middle)


class _Before(BaseIndexer):
    """The window before each value."""

    def __init__(self, window: int):
        super().__init__()
        self.window = window

    def get_window_bounds(  # the library's signature
        self,
        num_values: int = 0,
        min_periods: int | None = None,
        center: bool | None = None,
        closed: str | None = None,
        step: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ends = np.arange(num_values, dtype=np.int64)
        lengths = np.clip(ends // 2, MIN_WINDOW, max(MIN_WINDOW, self.window))
        return np.maximum(0, ends - lengths), ends


def _deviations(values: Floats, floors: Floats, window: int) -> Floats:
    """Deviations above the window before; NaN for the first `MIN_WINDOW` values."""
    scale = float(np.max(np.abs(values))) or 1.0  # squares of the largest floats overflow
    scaled = pd.Series(values / scale)
    before = scaled.rolling(_Before(window), min_periods=MIN_WINDOW)
    spreads = np.fmax(before.std(ddof=0).to_numpy(np.float64), np.fmax(floors / scale, 1e-9))
    return (scaled - before.mean()).to_numpy(np.float64) / spreads


MAX_BLOCKS, MIN_BLOCKS, MIN_BLOCK_UPDATES = 64, 12, 5
CERTAINTY = 5.0
"""Standard errors: many pairs of windows are tried, and the noise itself is an estimate."""
MAX_RATE_SHARE = 0.9
"""The learning rate counts as fallen once it is at most so much of what it was: just before, the loss may still follow a warm-up."""
WIDTHS = (0.5, 0.25, 0.125)
"""Widths of the windows that are compared, as shares of the stretch."""


class Change(NamedTuple):
    """A change of the training loss.

    Attributes:
        certain: what it is at least, in nats a token; 0 where it may be noise.
        estimate: what it most likely is, with its sign.
        step: where it begins.
        resolution: the largest change that could still be noise.
        evaluation: how far the evaluation loss moved meanwhile, 0 where it was left out of account.
    """

    certain: float
    estimate: float
    step: int
    resolution: float
    evaluation: float = 0.0


@dataclass(frozen=True)
class Levels:
    """The loss of a stretch in blocks: its medians, the noise of one median, and the row where each block starts."""

    values: Floats
    noise: float
    rows: NDArray[np.int64]


def largest_rise(metrics: Metrics, stretches: list[Stretch]) -> Change | None:
    """The largest rise of the loss to the end of a stretch with falling learning rate; None where no stretch is long enough."""
    fallen = [_fallen(metrics["learning_rate"], stretch) for stretch in stretches if stretch.trend < 0]
    found = [_rise(levels, metrics) for stretch in fallen if (levels := levels_of(metrics["loss"], stretch))]
    return max(found, key=lambda rise: (rise.certain, rise.estimate), default=None)


def largest_shift(metrics: Metrics, stretches: list[Stretch], *, needs_evaluation: bool) -> Change | None:
    """The largest shift of the loss that the evaluation loss does not follow; None where nothing could be looked at.

    Stretches in which the learning rate rises are left out: there the loss moves for a known reason.

    Args:
        needs_evaluation: leave out what no two evaluations surround; else the evaluation is left out of account.
    """
    found: list[Change] = []
    for stretch in stretches:
        levels = levels_of(metrics["loss"], stretch) if stretch.trend <= 0 else None
        if levels:
            found += _shifts(levels, metrics, needs_evaluation=needs_evaluation)
    return max(found, key=lambda shift: (shift.certain, abs(shift.estimate)), default=None)


def levels_of(losses: Floats, stretch: Stretch) -> Levels | None:
    """The loss of a stretch in blocks; None where it has too few values."""
    places = stretch.start + np.flatnonzero(np.isfinite(losses[stretch.rows]))
    count = min(MAX_BLOCKS, len(places) // MIN_BLOCK_UPDATES)
    if count < MIN_BLOCKS:
        return None
    edges = np.linspace(0, len(places), count + 1).astype(int)
    values = losses[places]
    medians = np.array([np.median(values[first:last]) for first, last in pairwise(edges)])
    within_blocks = math.sqrt(math.pi / 2) * _spread(np.diff(values)) / math.sqrt(2) / math.sqrt(len(places) / count)
    # The noise of one block, from how blocks, and means of two and of four, scatter around straight lines through their neighbours
    found: list[float] = []
    for width in (1, 2, 4):
        points = medians[: len(medians) // width * width].reshape(-1, width).mean(axis=1)
        if len(points) >= MIN_BLOCKS:
            found.append(math.sqrt(width / 6) * _spread(points[:-2] - 2 * points[1:-1] + points[2:]))
    noise = max(within_blocks, max(found))
    # The medians, without the blocks that are spikes: a change that stays is never between its neighbours
    neighbours = np.stack([np.roll(medians, 1), medians, np.roll(medians, -1)])
    middle = np.median(neighbours, axis=0)
    stands_out = np.abs(medians - middle) > CERTAINTY * noise
    stands_out[[0, -1]] = False
    return Levels(np.where(stands_out, middle, medians), noise, places[edges[:-1]])


def _fallen(rates: Floats, stretch: Stretch) -> Stretch:
    within = rates[stretch.rows]
    has_fallen = within <= MAX_RATE_SHARE * within[0]
    return Stretch(stretch.start + int(has_fallen.argmax()) if has_fallen.any() else stretch.stop, stretch.stop, stretch.trend)


def _rise(levels: Levels, metrics: Metrics) -> Change:
    """The loss at the stretch's end against the lowest before it, over windows of several widths."""
    candidates = [_rise_between(levels, metrics, low, tail) for low in _widths(levels) for tail in _widths(levels)]
    found = [candidate for candidate in candidates if candidate]
    return max(found, key=lambda rise: (rise.certain, rise.estimate))


def _rise_between(levels: Levels, metrics: Metrics, low: int, tail: int) -> Change | None:
    values = levels.values
    last = len(levels.values) - tail
    if low > last:
        return None
    means = np.convolve(values[:last], np.full(low, 1 / low), mode="valid")
    lowest = int(np.argmin(means))
    estimate = float(values[last:].mean() - means[lowest])
    resolution = CERTAINTY * levels.noise * math.sqrt(1 / low + 1 / tail)
    step = int(metrics.steps[levels.rows[lowest + low - 1]])
    return Change(max(0.0, estimate - resolution), estimate, step, resolution)


def _shifts(levels: Levels, metrics: Metrics, *, needs_evaluation: bool) -> Iterator[Change]:
    """At each block, the step of the loss beside a straight line through the windows before and after it."""
    evaluated = np.flatnonzero(np.isfinite(metrics["eval_loss"]))
    count = len(levels.values)
    for before in _widths(levels)[1:]:
        for after in {before, max(3, count // 16)}:
            # Weights that give the step, by least squares, of a line with a step after `before` of `before + after` points
            places = np.arange(before + after, dtype=np.float64)
            design = np.stack([np.ones_like(places), places - places.mean(), (places >= before).astype(np.float64)])
            kernel: Floats = np.linalg.pinv(design.T)[2]
            resolution = CERTAINTY * levels.noise * float(np.linalg.norm(kernel))
            for first, estimate in enumerate(np.correlate(levels.values, kernel, mode="valid").tolist()):
                ends = levels.rows[first], levels.rows[min(first + before + after, count - 1)]
                moved = _evaluation_move(metrics["eval_loss"], evaluated, *ends) if needs_evaluation else 0.0
                if not math.isnan(moved):
                    certain = max(0.0, abs(estimate) - resolution - moved)
                    yield Change(certain, estimate, int(metrics.steps[levels.rows[first + before]]), resolution, moved)


def _evaluation_move(losses: Floats, evaluated: NDArray[np.int64], first: int, last: int) -> float:
    """How far the evaluation loss moves, up and down, from the last evaluation before both windows to the first after them.

    NaN where they aren't surrounded. All of its movement counts, so that the bend of a falling loss is not taken for a shift.
    """
    start = int(np.searchsorted(evaluated, first, side="right")) - 1
    stop = int(np.searchsorted(evaluated, last))
    if start < 0 or stop >= len(evaluated):
        return math.nan
    return float(np.ptp(losses[evaluated[start : stop + 1]]))


def _widths(levels: Levels) -> list[int]:
    return [max(2, round(share * len(levels.values))) for share in WIDTHS]


def _spread(values: Floats) -> float:
    """A standard deviation around zero that a few outliers don't move."""
    return 1.4826 * float(np.median(np.abs(values)))
