"""The predicted phase shift: where the mean of a signal of the documents changes along the training order, and how sure that is.

Under a true random permutation the values that a phase draws come in any order alike. Their ranks' cumulative sums are then a Brownian
bridge, or something that stays nearer to 0 where values are few, tied, or come again in a later epoch: Kolmogorov's distribution bounds
the chance of a false alarm, whatever the signal's distribution.
"""

from dataclasses import dataclass

import numpy as np

from phasewise.validations.evidence.order.null import brownian_bridge
from phasewise.validations.evidence.order.serial import cusum


@dataclass(frozen=True)
class Shift:
    """Where the mean changes most.

    Attributes:
        at: values before the change.
        before, after: the signal's means.
        deviations: the size of the change, in standard deviations of the signal.
        p_value: the chance of a change so clear under a true random permutation, or a bound above it.
    """

    at: int
    before: float
    after: float
    deviations: float
    p_value: float


def find_shift(signal: np.ndarray) -> Shift:
    """The change of a signal whose values come in the training order; ranks say whether it is there, the values how large it is."""
    deviation = float(signal.std()) if signal.size else 0.0
    if not deviation > 0:
        mean = float(signal.mean()) if signal.size else 0.0
        return Shift(len(signal), mean, mean, 0.0, 1.0)
    at, distance = cusum(middle_ranks(signal))
    before = float(signal[:at].mean())
    after = float(signal[at:].mean())
    return Shift(at, before, after, abs(after - before) / deviation, brownian_bridge().chance(distance))


def middle_ranks(values: np.ndarray) -> np.ndarray:
    """How many values are smaller than each, and half of those that equal it."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - counts / 2)[which]
