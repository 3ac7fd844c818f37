"""The interval that a few runs give."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student


def half_width(values: Sequence[float]) -> float:
    if len(values) < 2:
        return float("nan")
    return float(student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
