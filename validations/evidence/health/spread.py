"""How unlike the batches of a run are: the spread of the loss from update to update, and of the parts of a batch. Nothing limits them.

A long document that fills batch after batch raises both, and an order that mixes lowers them (Trinity Large report, section 3.2).
"""

import numpy as np

from phasewise.validations.evidence.health.finding import NOWHERE, Finding, not_measured
from phasewise.validations.evidence.health.metrics import Floats, Metrics
from phasewise.validations.evidence.health.phenomena import Measure

MIN_UPDATES = 16


def spread_findings(metrics: Metrics) -> list[Finding]:
    """Both over the run's second half: in the first one the loss falls."""
    return [_loss_spread(metrics), _batch_het(metrics)]


def _loss_spread(metrics: Metrics) -> Finding:
    """What one update's loss is off by, in nats a token, were each off by itself: the root of half the mean square of its changes.

    Medians in place of the mean: one spike is no spread. Of normal numbers the median of squares is 0.455 of the mean.
    """
    measure, changes = Measure.LOSS_STEP_SPREAD, np.diff(_second_half(metrics["loss"]))
    changes = changes[np.isfinite(changes)]
    if len(changes) < MIN_UPDATES:
        return not_measured(measure, np.nan, metrics.lacks("loss"), why=f"fewer than {MIN_UPDATES} updates in the second half")
    spread = float(np.sqrt(np.median(changes**2) / 0.455 / 2))
    return Finding(measure, spread, np.nan, NOWHERE, f"nats a token, over the last {len(changes)} updates")


def _batch_het(metrics: Metrics) -> Finding:
    measure, values = Measure.BATCH_HET, _second_half(metrics["batch_het"])
    found = np.isfinite(values)
    if not found.any():
        return not_measured(measure, np.nan, why="the batches are not cut into parts", may_lack=True)
    worst = int(np.nanargmax(values)) + len(metrics.steps) - len(values)
    detail = f"nats a token, the mean over the last {int(found.sum())} updates; at most {np.nanmax(values):.3g}"
    return Finding(measure, float(values[found].mean()), np.nan, int(metrics.steps[worst]), detail)


def _second_half(values: Floats) -> Floats:
    return values[len(values) // 2 :]
