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
from numpy.typing import NDArray

from phasewise.validations.evidence.health.metrics import Floats, Metrics, Stretch

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
    noise = max(within_blocks, _noise_among(medians))
    return Levels(_levelled(medians, noise), noise, places[edges[:-1]])


def _levelled(medians: Floats, noise: float) -> Floats:
    """The medians, without the blocks that are spikes: a change that stays is never between its neighbours."""
    neighbours = np.stack([np.roll(medians, 1), medians, np.roll(medians, -1)])
    middle = np.median(neighbours, axis=0)
    stands_out = np.abs(medians - middle) > CERTAINTY * noise
    stands_out[[0, -1]] = False
    return np.where(stands_out, middle, medians)


def _noise_among(medians: Floats) -> float:
    """The noise of one block, from how blocks, and means of two and of four, scatter around straight lines through their neighbours.

    Noise that lasts longer than a block shows in the means.
    """
    found: list[float] = []
    for width in (1, 2, 4):
        points = medians[: len(medians) // width * width].reshape(-1, width).mean(axis=1)
        if len(points) >= MIN_BLOCKS:
            found.append(math.sqrt(width / 6) * _spread(points[:-2] - 2 * points[1:-1] + points[2:]))
    return max(found)


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
            kernel = _step_kernel(before, after)
            resolution = CERTAINTY * levels.noise * float(np.linalg.norm(kernel))
            for first, estimate in enumerate(np.correlate(levels.values, kernel, mode="valid").tolist()):
                ends = levels.rows[first], levels.rows[min(first + before + after, count - 1)]
                moved = _evaluation_move(metrics["eval_loss"], evaluated, *ends) if needs_evaluation else 0.0
                if not math.isnan(moved):
                    certain = max(0.0, abs(estimate) - resolution - moved)
                    yield Change(certain, estimate, int(metrics.steps[levels.rows[first + before]]), resolution, moved)


def _step_kernel(before: int, after: int) -> Floats:
    """Weights that give the step, by least squares, of a line with a step after `before` of `before + after` points."""
    places = np.arange(before + after, dtype=np.float64)
    design = np.stack([np.ones_like(places), places - places.mean(), (places >= before).astype(np.float64)])
    return np.linalg.pinv(design.T)[2]


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
