"""Needles in a haystack (`niah`) beside the parent: measured and shown where a phase names them, and judged by a limit of their own.

A model needs not find one to be worth going on with, and a small one finds none: so they are not among the benchmarks whose floor a gate
asks for. They are compared with the parent where both were asked the same items.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from phasewise.validations.evidence.comparable import Evaluation, compare, name_of
from phasewise.validations.evidence.floor import measure_floor
from phasewise.validations.evidence.needle_names import is_needle
from phasewise.validations.evidence.paired import pair_items
from phasewise.validations.evidence.proportions import difference_interval

COLUMNS = (
    "name", "against", "parent", "difference", "low", "high", "why_not", "value", "stderr", "baseline", "items", "right",
    "accuracy_p_value", "likelihoods", "floor_p_value",
)  # fmt: skip


def without_needles(evaluation: Evaluation) -> dict[str, Any]:
    """The evaluation of the other benchmarks."""
    return {**evaluation, "results": [result for result in evaluation["results"] if not is_needle(result["benchmark"])]}


def needle_table(evaluation: Evaluation, parent: Evaluation | None) -> pd.DataFrame:
    """One row a benchmark of needles; none where the phase names none.

    `against` is the parent, where it was asked the same; else `why_not` says why there is no comparison.

    Raises:
        DataError: answers are missing or do not agree; or both were measured alike, and not on the same items.
    """
    rows = [_row(result, evaluation, parent) for result in evaluation["results"] if is_needle(result["benchmark"])]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(result: Mapping[str, Any], evaluation: Evaluation, parent: Evaluation | None) -> dict[str, object]:
    floor = measure_floor(result)
    return {
        "name": name_of(result),
        "value": float(result["value"]),
        "stderr": float(result["stderr"]),
        "baseline": float(result["baseline"]),
        "items": floor.items,
        "right": floor.right,
        "accuracy_p_value": floor.accuracy_p_value,
        "likelihoods": floor.likelihoods,
        "floor_p_value": floor.p_value,
        **_beside_parent(result, evaluation, parent),
    }


def _beside_parent(result: Mapping[str, Any], evaluation: Evaluation, parent: Evaluation | None) -> dict[str, object]:
    """What is not asked for because of the schedules is compared all the same: nothing is decided by it."""
    found = compare(name_of(result), result, evaluation, parent)
    why_not = "; ".join(filter(None, (found.limited, found.differs)))
    theirs = next((one for one in parent["results"] if name_of(one) == found.name), None) if parent else None
    if theirs is None or why_not:
        nothing = dict.fromkeys(("parent", "difference", "low", "high"), math.nan)
        return {"against": found.parent or "", **nothing, "why_not": why_not or found.why_not}
    pairs = pair_items(result, theirs)
    low, high = difference_interval(pairs)
    beside = {"parent": float(theirs["value"]), "difference": pairs.difference, "low": low, "high": high}
    return {"against": found.parent, **beside, "why_not": ""}
