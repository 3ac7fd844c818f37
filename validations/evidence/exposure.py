"""Whether a model has seen the very items of a benchmark: by how it takes two renderings of them, and by how likely it finds them.

A model that trained on a benchmark's items in one format likes that format of these items better than it likes the same format of items
that nobody has seen. That is how the leak into Marin's Bison could have been found: GSM8K's items were in its data without calculator
tags, such as `<<16-7=9>>`, and its score fell where the prompt has them. Neither needs a score: a fall looks the same as a rise.

The reference is items of the same kind that are in no data, such as made ones. All tests exchange test items with reference items, and so
hold for any distribution of the likelihoods, if both kinds are alike to a model that saw neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.comparable import Evaluation
from phasewise.validations.evidence.proportions import holm

# scipy's stubs leave its functions untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false


RESAMPLES, SEED = 9_999, 0
"""The smallest p-value is one in ten thousand. Where the groups can be exchanged in fewer ways, all of them are counted."""
MIN_ITEMS = 8
MEASURED_COLUMNS = ("measure", "items", "reference_items", "difference_nats", "p_value", "adjusted_p_value")
COLUMNS = (*MEASURED_COLUMNS, "against", "since", "why_not")
SAME = ("rule", "items_digest", "reference_digest")
"""What two readings must share to be compared: how items are rendered, and which they are."""
Alternative = Literal["two-sided", "greater"]


@dataclass(frozen=True)
class Readings:
    """Log-likelihoods in nats of the answers of some items, an array each, in the same order: under the first and the second rendering."""

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

    def less(self, before: "Readings") -> "Readings":
        """What was gained since.

        Raises:
            DataError: the two are not of as many items.
        """
        if self.first.shape != before.first.shape:
            raise DataError(f"a model and its parent must read the same items, found {len(self.first)} and {len(before.first)}.")
        return Readings(self.first - before.first, self.second - before.second)

    @property
    def gap(self) -> np.ndarray:
        """How much likelier the first rendering of each item is than the second."""
        return self.first - self.second


def exposure_evidence(
    items: Readings, reference: Readings, *, parent_items: Readings | None = None, parent_reference: Readings | None = None
) -> pd.DataFrame:
    """Three rows: the gap between the renderings, and the likelihood under each, of test items against reference items.

    With a parent, what is compared is the change since: what the parent found of the items, it found of them before this phase. The gap may
    have moved either way, a likelihood only up. `adjusted_p_value` shares one error rate among the three (Holm).

    Raises:
        DataError: only one of the parent's two readings is given, or as `Readings`.
    """
    if (parent_items is None) != (parent_reference is None):
        raise DataError("a parent must have read both the items and the reference, found one of them.")
    if parent_items is not None and parent_reference is not None:
        items, reference = items.less(parent_items), reference.less(parent_reference)
    tests: tuple[tuple[str, np.ndarray, np.ndarray, Alternative], ...] = (
        ("gap between the renderings", items.gap, reference.gap, "two-sided"),
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
    """The permutation test of a difference of means (Fisher; Pitman, 1937), drawn with a seed.

    The order that was found is counted in: p is never zero (Phipson and Smyth, "Permutation P-values Should Never Be Zero", 2010).
    """
    from scipy.stats import permutation_test  # half a second, which only this needs

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
