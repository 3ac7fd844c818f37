"""Whether the experts of a sparse model keep their balance."""

import numpy as np

from validations.evidence.health.averages import Figure
from validations.evidence.health.metrics import Metrics

WINDOW, MIN_UPDATES = 32, 16
"""Updates whose median counts: one batch that falls on few experts is no collapse. A run of fewer than the second is not judged."""


def lasting_violation(metrics: Metrics) -> Figure | None:
    """The largest median of `max_violation` over `WINDOW` updates in a row of the run's second half, and the last of them.

    The first half is not looked at: a fresh router has to find its balance first. What is lost and not found again is in the second.
    None where there are too few updates.

    MaxVio (Wang et al., 2024): how far the busiest expert of the worst layer is above the mean; num_experts / num_active − 1 where all
    tokens have the same experts.
    """
    values = metrics["max_violation"]
    rows = np.flatnonzero(np.isfinite(values))
    if len(rows) < MIN_UPDATES:
        return None
    rows = rows[len(rows) // 2 :]
    length = min(WINDOW, len(rows))
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values[rows], length), axis=1)
    worst = int(np.argmax(medians))
    return Figure(float(medians[worst]), int(metrics.steps[rows[worst + length - 1]]))
