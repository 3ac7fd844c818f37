"""Whether the experts of a sparse model keep their balance."""

import numpy as np

from validations.evidence.health.averages import Figure
from validations.evidence.health.metrics import Metrics

WINDOW, MIN_UPDATES = 32, 8
"""Updates whose median counts: one batch that falls on few experts is no collapse. A shorter run is one window, of at least the second."""


def lasting_violation(metrics: Metrics) -> Figure | None:
    """The largest median of `max_violation` over `WINDOW` updates in a row, and the last of them; None where there are too few.

    MaxVio (Wang et al., 2024): how far the busiest expert of the worst layer is above the mean; num_experts / num_active − 1 where all
    tokens have the same experts.
    """
    values = metrics["max_violation"]
    rows = np.flatnonzero(np.isfinite(values))
    if len(rows) < MIN_UPDATES:
        return None
    length = min(WINDOW, len(rows))
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values[rows], length), axis=1)
    worst = int(np.argmax(medians))
    return Figure(float(medians[worst]), int(metrics.steps[rows[worst + length - 1]]))
