"""Differences between the arms of an experiment and its control: intervals, tests, and the smallest detectable difference.

A difference has two independent errors. Training differs between replicates: Student's t over the differences, or Welch's t if
arm and control have different data orders. A benchmark is a sample of items. Replicates share the items, and more replicates do not shrink
the error of this sample.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import nctdtrinc, ndtri, stdtr, stdtrit

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.proportions import CONFIDENCE, POWER, Pairs, difference_interval, holm

ERROR_RATE = 0.05  # chance that an experiment without a true difference shows a difference, for the family of tests
TESTED = ("low", "high", "seed_error", "item_error", "p_value", "smallest_detectable")


class Measured(NamedTuple):
    """A measure of an arm and of the control, a value per replicate.

    `items`: the items of a benchmark, paired per replicate. `is_paired`: replicates of arm and control have equal data orders.
    """

    arm: str
    measure: str
    values: Sequence[float]
    control: Sequence[float]
    items: Sequence[Pairs] = ()
    is_paired: bool = True


def difference_row(measured: Measured, level: float) -> dict[str, Any]:
    """Estimate a difference with its 95 % interval, and test it. NaN without two replicates.

    The variance of the items is the mean over replicates of the variance by Tango's interval (`difference_interval`). The degrees of
    freedom are Satterthwaite's (Biometrics Bulletin 2 (1946), 110), and without pairs Welch's (Biometrika 34 (1947), 28). The smallest
    detectable difference has a power of 80 % at this error rate, by the noncentral t.

    Raises:
        DataError: paired values differ in number, or a value is not finite.
    """
    values, control = (np.array(one, np.float64) for one in (measured.values, measured.control))
    if not (np.isfinite(values).all() and np.isfinite(control).all()) or (measured.is_paired and len(values) != len(control)):
        raise DataError(
            f"{measured.measure} of {measured.arm}: expected finite values, as many of the arm as of the control if they are paired, "
            f"found {values.tolist()} and {control.tolist()}."
        )
    value, before = (float(one.mean()) if len(one) else math.nan for one in (values, control))
    row: dict[str, Any] = {"arm": measured.arm, "measure": measured.measure, "replicates": len(values), "control": before, "value": value}
    row |= {"difference": value - before, **dict.fromkeys(TESTED, math.nan)}
    if min(len(values), len(control)) < 2:
        return row
    parts = [values - control] if measured.is_paired else [values, control]
    variances = [float(part.var(ddof=1)) / len(part) for part in parts]
    widths = [high - low for low, high in map(difference_interval, measured.items)]
    of_items = float(np.mean(np.square(widths))) / (2 * float(ndtri((1 + CONFIDENCE) / 2))) ** 2 if widths else 0.0
    squares = sum(one**2 / (len(part) - 1) for one, part in zip(variances, parts, strict=True))
    error, freedom = math.sqrt(sum(variances) + of_items), (sum(variances) + of_items) ** 2 / squares if squares else math.inf
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    p_value = 2 * stdtr(freedom, -abs(row["difference"]) / error) if error else row["difference"] == 0
    detectable = error * nctdtrinc(freedom, 1 - POWER, stdtrit(freedom, 1 - level / 2))
    found = (row["difference"] - half, row["difference"] + half, math.sqrt(sum(variances)), math.sqrt(of_items), p_value, detectable)
    return row | {name: float(one) for name, one in zip(TESTED, found, strict=True)}


def difference_table(measured: Sequence[Measured], *, error_rate: float = ERROR_RATE) -> pd.DataFrame:
    """Test every difference, with a common error rate (Holm).

    A difference without two replicates counts as a test with p = 1: a failed arm must not improve the tests of further arms.
    `smallest_detectable` is at the rate divided by the number of tests, the first step of Holm's procedure.
    """
    rows = [difference_row(one, error_rate / len(measured)) for one in measured]
    adjusted = holm([1.0 if math.isnan(row["p_value"]) else row["p_value"] for row in rows])
    for row, after in zip(rows, adjusted, strict=True):
        row |= {"adjusted_p_value": math.nan if math.isnan(row["p_value"]) else after, "is_shown": after <= error_rate, "tests": len(rows)}
    return pd.DataFrame(rows)
