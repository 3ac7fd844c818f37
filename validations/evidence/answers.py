"""Evidence on the answers of held-out conversations: how likely they are to a checkpoint and to its parent, one by one."""

# scipy's stubs leave its functions untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.comparable import Evaluation
from phasewise.validations.evidence.proportions import CONFIDENCE, holm
from phasewise.validations.limits import GateLimits

EVERY = "all components"
COLUMNS = (
    "component", "against", "conversations", "tokens", "nats_per_token", "parent_nats_per_token", "gain_nats", "low", "high", "limit",
    "rise_p_value", "fall_p_value", "judged_p_value",
)  # fmt: skip
Item = Mapping[str, Any]


def answers_table(evaluation: Evaluation, limits: GateLimits) -> pd.DataFrame:
    """A row of all components together, and one of each; none where no answers were measured. Each conversation counts the same.

    * `gain_nats`: the mean over conversations of how much likelier their answers are than to the parent, in nats a token, and its interval;
    * `limit`: the gain that is asked for; `rise_p_value`: the chance of such gains where the true one is no larger (paired t-test);
    * `judged_p_value`: that of all components together, and 0 in the other rows: the gate asks once;
    * `fall_p_value`: the chance of gains so low where the true one is 0, over all components (Holm); 1 in the first row.

    Raises:
        DataError: a conversation was measured of one of both only, or is there twice.
    """
    measured = evaluation.get("answers")
    if not measured:
        return pd.DataFrame(columns=list(COLUMNS))
    items: Sequence[Item] = measured["items"]
    _check_items(items, against=measured["against"])
    limit = limits.min_answer_gain_nats or 0.0
    names = sorted({item["component"] for item in items})
    rows = [_row(name, [item for item in items if item["component"] == name], measured["against"], limit) for name in names]
    for row, adjusted in zip(rows, holm([row["fall_p_value"] for row in rows]), strict=True):
        row |= {"fall_p_value": adjusted, "judged_p_value": 0.0}
    whole = _row(EVERY, items, measured["against"], limit)
    whole |= {"fall_p_value": 1.0, "judged_p_value": whole["rise_p_value"]}
    return pd.DataFrame([whole, *rows], columns=list(COLUMNS))


def _check_items(items: Sequence[Item], *, against: str | None) -> None:
    keys = {(item["component"], item["id"]) for item in items}
    alone = [item for item in items if (item["parent_nats"] is None) == (against is not None)]
    if not items or len(keys) != len(items) or alone:
        raise DataError(
            f"answers are compared conversation by conversation, each once and measured of both models, found {len(items)} of "
            f"{len(keys)} conversations, {len(alone)} of them measured of one model alone. Evaluate the phase again."
        )


def _row(name: str, items: Sequence[Item], against: str | None, limit: float) -> dict[str, Any]:
    tokens = np.array([item["tokens"] for item in items], np.float64)
    ours = np.array([_number(item["nats"]) for item in items]) / tokens
    theirs = np.array([_number(item["parent_nats"]) for item in items]) / tokens
    low, high, rise, fall = _tests(theirs - ours, limit)
    return {
        "component": name,
        "against": against or "",
        "conversations": len(items),
        "tokens": int(tokens.sum()),
        "nats_per_token": float(ours.mean()),
        "parent_nats_per_token": float(theirs.mean()),
        "gain_nats": float((theirs - ours).mean()),
        "low": low,
        "high": high,
        "limit": limit,
        "rise_p_value": rise,
        "fall_p_value": fall,
    }


def _tests(gains: np.ndarray, limit: float) -> tuple[float, float, float, float]:
    """The interval of the mean gain, the p-value that it is no larger than the limit, and the p-value that it is no fall.

    The paired t-test (Student, Biometrika 6 (1908), 1). All are NaN where a gain is no number or there is one conversation alone.
    """
    from scipy.stats import ttest_1samp  # half a second, which only a gate needs

    if len(gains) < 2 or not np.isfinite(gains).all():
        return math.nan, math.nan, math.nan, math.nan
    if np.ptp(gains) == 0:
        mean = float(gains[0])
        return mean, mean, 0.0 if mean > limit else 1.0, 0.0 if mean < 0 else 1.0
    interval: Any = ttest_1samp(gains, 0.0).confidence_interval(CONFIDENCE)
    rise: Any = ttest_1samp(gains, limit, alternative="greater")
    fall: Any = ttest_1samp(gains, 0.0, alternative="less")
    return float(interval.low), float(interval.high), float(rise.pvalue), float(fall.pvalue)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
