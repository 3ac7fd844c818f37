"""Spikes: values far above the window before them (OLMo 2, arXiv 2501.00656, §3.1), and what comes before them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.indexers import BaseIndexer

from phasewise.validations.evidence.health.metrics import Floats

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
