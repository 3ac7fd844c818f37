"""A forecast of the loss curve of a phase with a band, from its lineage and from earlier phases of other lineages.

The change of the logarithm of the loss since the end of the parent is linear in five features of the learning rates: the logarithm of their
sum (the river of Wen et al., 2024), the same times the slope of the parent's own curve, and the distance from the peak rate, relaxed over
three times (annealing as of Tissue et al., 2024). Earlier phases give the five weights by ridge regression, and the band by the errors of
forecasts of each earlier phase from the others. No training is needed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from phasewise.trainer.base.errors import DataError

RELAXATIONS = (0.03, 0.1, 0.4)  # times over which the loss follows the learning rate, as shares of the updates before the phase
END_SHARE, SLOPE_SHARE = 1 / 5, 1 / 3  # shares of the parent's updates that give its final loss and its slope
MIN_PHASES, MIN_UPDATES = 8, 30
BINS, PLACES, COVERAGE, RIDGE = 15, 5, 0.8, 3e-3
OWN_WEIGHT = 10  # weight of an earlier phase of the same lineage over a phase of another lineage


class Curve(NamedTuple):
    """Learning rates and losses (nats per token) of the updates of a lineage, of which `first` are before the phase. NaN is unknown."""

    lineage: str
    first: int
    rates: np.ndarray
    losses: np.ndarray


class Forecast(NamedTuple):
    """The expected loss of each update of the phase, and the ends of an 80 % band of single updates."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class _Phase(NamedTuple):
    """A phase after the reduction: features (updates 5) and changes of log loss (updates), and the parent's final log loss and noise."""

    lineage: str
    features: np.ndarray
    changes: np.ndarray
    level: float
    noise: float


def _reduced(curve: Curve) -> _Phase | None:
    """Return None for too few comparable losses before the phase."""
    from scipy.signal import lfilter  # the import takes half a second

    first, peak = curve.first, float(curve.rates.max())
    known, updates = np.log(curve.losses[:first]), np.arange(first)
    sums, gap = np.log(np.cumsum(curve.rates) / peak + 1e-9), 1 - curve.rates / peak
    last = slice(first - max(MIN_UPDATES // 2, round(END_SHARE * first)), first)
    late = slice(first - max(MIN_UPDATES, round(SLOPE_SHARE * first)), first)
    of_level, of_slope = (updates[one][np.isfinite(known[one])] for one in (last, late))
    if len(of_slope) < MIN_UPDATES or not len(of_level):
        return None
    slope = float(np.polyfit(sums[of_slope], known[of_slope], 1)[0])
    columns = [sums, sums * slope]
    for share in RELAXATIONS:
        keep = np.exp(-1 / max(share * first, 1.0))
        columns.append(np.asarray(lfilter([1 - keep], [1, -keep], gap)))
    features = np.column_stack(columns)
    level = float(known[of_level].mean())
    noise = float(np.std(np.diff(known[of_slope])) / np.sqrt(2))
    return _Phase(curve.lineage, features[first:] - features[of_level].mean(0), np.log(curve.losses[first:]) - level, level, noise)


def _weights(phases: Sequence[_Phase], lineage: str) -> np.ndarray:
    """Return the weights of the features for a phase of `lineage`."""
    rows: list[np.ndarray] = []
    for one in phases:
        count = max(1, len(one.changes) // BINS)
        parts = np.array_split(np.column_stack([one.features, one.changes]), count)
        weight = OWN_WEIGHT if one.lineage == lineage else 1
        rows.append(np.array([part.mean(0) for part in parts]) * np.sqrt(weight / count))
    stacked = np.concatenate(rows)
    x, y = stacked[:, :-1], stacked[:, -1]
    prior = np.array([0.0, 1.0, 0.0, 0.0, 0.0])  # the parent's own slope goes on
    scale = np.diag(np.maximum((x * x).mean(0), 1e-6)) * RIDGE * len(x)
    return np.linalg.solve(x.T @ x + scale, x.T @ y + scale @ prior)


def forecast_losses(phase: Curve, earlier: Sequence[Curve]) -> Forecast:
    """Forecast the losses of a phase, whose own losses are not used.

    Raises DataError if there are fewer than `MIN_PHASES` earlier phases, or fewer than `MIN_UPDATES` losses before the phase.
    """
    known = [one for one in map(_reduced, earlier) if one and len(one.changes) >= MIN_UPDATES and np.isfinite(one.changes).all()]
    target = _reduced(phase)
    if target is None:
        raise DataError(f"expected {MIN_UPDATES} comparable losses before the phase, found fewer.")
    if len(known) < MIN_PHASES:
        raise DataError(f"expected {MIN_PHASES} earlier phases of the same kind in the home, found {len(known)}.")
    errors: list[np.ndarray] = []
    places: list[np.ndarray] = []
    has_own = any(one.lineage == target.lineage for one in known)
    for number, one in enumerate(known):
        others = [other for place, other in enumerate(known) if place != number and (has_own or other.lineage != one.lineage)]
        others = others if len(others) >= MIN_PHASES // 2 else [*known[:number], *known[number + 1 :]]
        errors.append((one.changes - one.features @ _weights(others, one.lineage)) / one.noise)
        places.append(np.arange(len(one.changes)) / len(one.changes))
    place, error = np.concatenate(places), np.concatenate(errors)
    at = (np.arange(PLACES) + 0.5) / PLACES
    ends = [
        [np.quantile(error[np.abs(place - one) <= 0.5 / PLACES], share) for one in at] for share in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
    ]
    mean = target.level + target.features @ _weights(known, target.lineage)
    now = np.arange(len(mean)) / len(mean)
    low, high = (np.exp(mean + target.noise * np.interp(now, at, one)) for one in ends)
    return Forecast(np.exp(mean), low, high)
