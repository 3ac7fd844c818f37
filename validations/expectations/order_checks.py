"""What is expected of the order in which a phase draws its data: tables `order` and `shifts`."""

from collections.abc import Mapping

import pandas as pd

from phasewise.validations.expectations.check import Check, SpeaksFor, expect_rows
from phasewise.validations.limits import OrderLimits

_REMEDY = "Order the data with the permutation feistel, or shuffle the documents of the component before they are cached"


def order_checks(limits: OrderLimits, tables: Mapping[str, pd.DataFrame]) -> tuple[Check, ...]:
    """One that can be distinguished from a random order warns: the record's can. One under which the data is predicted to change stops."""
    rows = len(tables["order"]) + (len(tables["shifts"]) if "shifts" in tables else 0)
    checks = [expect_rows("order", "Give the phase components with at least one whole row."), _mixes(limits.false_alarm_rate, max(rows, 1))]
    if limits.max_shift_deviations is not None:
        checks += [expect_rows("shifts", "Give the phase components with at least one whole row."), _keeps(limits.max_shift_deviations)]
    return tuple(checks)


def _mixes(rate: float, rows: int) -> Check:
    return Check(
        table="order",
        expectation="ExpectOrderToMix",
        arguments={"column": "judged_p_value", "floor": rate / rows},
        severity="warning",
        asks="The order of the data cannot be distinguished from a true random permutation.",
        what="the order {permutation} can be distinguished from a random one in {components_failing} of {components} components, "
        "most clearly in {component}: {measure}, {value:.4g} where random permutations keep to {limit:.4g} ({detail}); see the Marin 32B "
        'retrospective, "Shuffling: Linear vs. Feistel"',
        found="{measure}: {value:.4g}",
        limit=f"{{limit:.4g}}, at {rate:g} false alarms a phase",
        where="component {component}, {rows} rows",
        what_to_do="Order the data with the permutation feistel, or let the recipe accept an order that is the record's (`accepts`).",
        accept_by=("permutation",),
        narrow_by=("component", "measure"),
        speaks_for=SpeaksFor(passes="passes", order_by="p_value"),
    )


def _keeps(max_shift_deviations: float) -> Check:
    return Check(
        table="shifts",
        expectation="ExpectNoPredictedPhaseShift",
        arguments={"column": "sure_deviations", "limit": max_shift_deviations},
        severity="critical",
        asks="The kind of data does not change along the training order.",
        what="a phase shift is predicted in component {component} at about step {change_at_step}: the mean of the signal {signal} "
        "goes from {before:.3g} to {after:.3g}, as Bison's data changed near step 190,000 (Marin 32B retrospective, "
        '"Shuffling anomaly")',
        found="{shift_deviations:.2f} standard deviations, p = {p_value:.1e}",
        limit=f"{max_shift_deviations:g} standard deviations",
        where="component {component}, about step {change_at_step}",
        what_to_do=f"{_REMEDY}.",
    )
