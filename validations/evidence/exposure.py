"""Whether a checkpoint has seen the test items, from its evaluation and its parent's: `fragility` as a table of the gate."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from phasewise.validations.evidence.comparable import Evaluation
from phasewise.validations.evidence.fragility import COLUMNS as MEASURED_COLUMNS
from phasewise.validations.evidence.fragility import Readings, exposure_evidence

COLUMNS = (*MEASURED_COLUMNS, "against", "since", "why_not")
SAME = ("rule", "items_digest", "reference_digest")
"""What two readings must share to be compared: how items are rendered, and which they are."""


def exposure_table(evaluation: Evaluation, parent: Evaluation | None) -> pd.DataFrame:
    """Three rows where the evaluation has read items under two renderings, else none.

    `against` is the parent where the change since it is what is tested, else empty, and `why_not` says why; `since` says the same in a
    sentence.

    Raises:
        DataError: as `Readings` and `exposure_evidence`.
    """
    read = evaluation.get("renderings")
    if read is None:
        return pd.DataFrame(columns=list(COLUMNS))
    why_not = _why_not(read, parent)
    before = None if why_not or parent is None else parent["renderings"]
    table = exposure_evidence(
        _readings(read["items"]),
        _readings(read["reference"]),
        parent_items=_readings(before["items"]) if before else None,
        parent_reference=_readings(before["reference"]) if before else None,
    )
    against = str(parent.get("phase", "the parent")) if parent and before else ""
    table["against"] = against
    table["since"] = f"since {against}" if against else "now"
    table["why_not"] = why_not
    return table.reindex(columns=list(COLUMNS))


def _why_not(read: Mapping[str, Any], parent: Evaluation | None) -> str:
    """Why the parent is not compared with; empty where it is. The test items against the reference decide alone then."""
    if parent is None:
        return "there is no phase before it"
    theirs = parent.get("renderings")
    if theirs is None or any(read[name] != theirs[name] for name in SAME):
        return f"{parent.get('phase', 'the parent')} was never measured on these items"
    if any(len(read[kind]["first"]) != len(theirs[kind]["first"]) for kind in ("items", "reference")):
        return f"{parent.get('phase', 'the parent')} sees other items whole"
    return ""


def _readings(nats: Mapping[str, Any]) -> Readings:
    return Readings(np.array(nats["first"], np.float64), np.array(nats["second"], np.float64))
