"""Exposure to a benchmark's items, tested by the likelihoods of two renderings of the items.

A model that trained on items in one format prefers this format for these items more than for items that no model has seen. This test could
have found the leak into Marin's Bison: its data had GSM8K's items without calculator tags, such as `<<16-7=9>>`, and its score fell on
prompts with the tags. The reference is items of the same kind that are in no data. Permutation tests are exact for any distribution.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.parent_comparison import Evaluation
from phasewise.validations.evidence.proportions import holm

RESAMPLES, SEED = 9_999, 0  # the smallest p-value is one in ten thousand. If the groups have fewer exchanges, all exchanges are counted
MIN_ITEMS = 8
MEASURED_COLUMNS = ("measure", "items", "reference_items", "difference_nats", "p_value", "adjusted_p_value")
COLUMNS = (*MEASURED_COLUMNS, "against", "since", "why_not")
Alternative = Literal["two-sided", "greater"]


@dataclass(frozen=True)
class Readings:
    """Log-likelihoods in nats of the items' answers under the first and the second rendering, in the same order."""

    first: np.ndarray
    second: np.ndarray

    def __post_init__(self) -> None:
        sizes = {self.first.shape, self.second.shape}
        if len(sizes) != 1 or self.first.ndim != 1 or len(self.first) < MIN_ITEMS:
            raise DataError(f"two renderings must be of the same items, at least {MIN_ITEMS} of them, found arrays of {sorted(sizes)}.")
        if not (np.isfinite(self.first).all() and np.isfinite(self.second).all()):
            raise DataError(
                "a log-likelihood must be a finite number, found one that is not. The model has diverged, or an answer is empty."
            )


def exposure_evidence(
    items: Readings, reference: Readings, parent_items: Readings | None = None, parent_reference: Readings | None = None
) -> pd.DataFrame:
    """Compare test items with reference items in three rows: the gap between the renderings, and the likelihood under each rendering.

    With a parent, the rows compare the changes since the parent. The gap may move either way, a likelihood only up. `adjusted_p_value`
    shares one error rate among the three (Holm).
    """
    if (parent_items is None) != (parent_reference is None):
        raise DataError("a parent must have read both the items and the reference, found one of them.")
    if parent_items is not None and parent_reference is not None:
        for one, before in ((items, parent_items), (reference, parent_reference)):
            if one.first.shape != before.first.shape:
                raise DataError(f"a model and its parent must read the same items, found {len(one.first)} and {len(before.first)}.")
        items = Readings(items.first - parent_items.first, items.second - parent_items.second)
        reference = Readings(reference.first - parent_reference.first, reference.second - parent_reference.second)
    tests: tuple[tuple[str, np.ndarray, np.ndarray, Alternative], ...] = (
        ("gap between the renderings", items.first - items.second, reference.first - reference.second, "two-sided"),
        ("likelihood of the first rendering", items.first, reference.first, "greater"),
        ("likelihood of the second rendering", items.second, reference.second, "greater"),
    )
    rows: list[dict[str, Any]] = [
        {
            "measure": measure,
            "items": len(seen),
            "reference_items": len(unseen),
            "difference_nats": float(seen.mean() - unseen.mean()),
            "p_value": exchange_p_value(seen, unseen, alternative),
        }
        for measure, seen, unseen, alternative in tests
    ]
    for row, adjusted in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["adjusted_p_value"] = adjusted
    return pd.DataFrame(rows, columns=list(MEASURED_COLUMNS))


def exchange_p_value(seen: np.ndarray, unseen: np.ndarray, alternative: Alternative) -> float:
    """Return the p-value of a permutation test of a difference of means (Fisher, Pitman 1937), drawn with a seed.

    The observed order counts as a permutation, so p is never zero (Phipson and Smyth, "Permutation P-values Should Never Be Zero", 2010).
    """
    from scipy.stats import permutation_test  # the import takes half a second

    found: Any = permutation_test(
        (seen, unseen),
        lambda one, other, axis: one.mean(axis=axis) - other.mean(axis=axis),
        permutation_type="independent",
        vectorized=True,
        n_resamples=RESAMPLES,
        alternative=alternative,
        rng=np.random.default_rng(SEED),
    )
    return float(found.pvalue)


def exposure_table(evaluation: Evaluation, parent: Evaluation | None) -> pd.DataFrame:
    """Build the rows of `exposure_evidence` from two renderings, `against` the parent unless `why_not`. `since`: the same as words."""
    read = evaluation.get("renderings")
    if read is None:
        return pd.DataFrame(columns=list(COLUMNS))
    theirs = parent.get("renderings") if parent else None
    phase, why_not = str(parent.get("phase", "the parent")) if parent else "", ""
    if parent is None:
        why_not = "there is no phase before it"
    elif theirs is None or any(read[name] != theirs[name] for name in ("rule", "items_digest", "reference_digest")):
        why_not = f"{phase} was never measured on these items"
    elif any(len(read[kind]["first"]) != len(theirs[kind]["first"]) for kind in ("items", "reference")):
        why_not = f"{phase} sees other items whole"
    before = None if why_not else theirs
    against = phase if before else ""
    readings = [
        Readings(*(np.array(measured[kind][rendering], np.float64) for rendering in ("first", "second")))
        for measured in ((read, before) if before else (read,))
        for kind in ("items", "reference")
    ]
    table = exposure_evidence(*readings)
    table["against"] = against
    table["since"] = f"since {against}" if against else "now"
    table["why_not"] = why_not
    return table.reindex(columns=list(COLUMNS))
