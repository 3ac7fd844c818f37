"""The tables that a gate judges: benchmarks and their n-gram baselines, bits per byte and the parent, needles, held-out answers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.comparable import Evaluation, compare, is_needle, name_of
from phasewise.validations.evidence.exposure import exposure_table
from phasewise.validations.evidence.floor import BINOMIAL, NUM_TESTS, Floor, measure_floor
from phasewise.validations.evidence.parent_comparison import against_parent, pair_items
from phasewise.validations.evidence.proportions import (
    Pairs,
    difference_interval,
    holm,
    mean_test,
    smallest_fall,
    smallest_margin,
)
from phasewise.validations.limits import GateLimits

MACRO = "macro bits per byte"
BENCHMARK_COLUMNS = (
    "name", "kind", "value", "stderr", "baseline", "parent", "has_parent", "margin", "items", "right", "accuracy_test", "accuracy_p_value",
    "below_p_value", "likelihood_p_value", "mean_margin_nats", "likelihoods", "floor_p_value", "decided_by", "smallest_margin",
    "increase_bits_per_byte", "components", "finite",
)  # fmt: skip
NEEDLE_COLUMNS = (
    "name", "against", "parent", "difference", "low", "high", "why_not", "value", "stderr", "baseline", "items", "right",
    "accuracy_p_value", "likelihoods", "floor_p_value",
)  # fmt: skip
ANSWER_COLUMNS = (
    "component", "against", "conversations", "tokens", "nats_per_token", "parent_nats_per_token", "gain_nats", "low", "high", "limit",
    "rise_p_value", "fall_p_value", "judged_p_value",
)  # fmt: skip
EVERY = "all components"


def gate_tables(evaluation: Evaluation, parent: Evaluation | None, limits: GateLimits) -> dict[str, pd.DataFrame]:
    """The tables by their names.

    Args:
        parent: the evaluation of the phase that this one starts from; None if it starts from scratch.

    Raises:
        DataError: as `gate_evidence`, `against_parent`, `needle_table`, `exposure_table` and `answers_table`.
    """
    others = {**evaluation, "results": [result for result in evaluation["results"] if not is_needle(result["benchmark"])]}
    evidence = gate_evidence(others, parent, floor_error_rate=limits.asked_floor_error_rate)
    measured = {result["benchmark"] for result in evaluation["results"]}
    asked = [{"name": name, "measured": name in measured} for name in evaluation["benchmarks"]]
    return {
        "asked": pd.DataFrame(asked, columns=["name", "measured"]),
        "benchmarks": evidence[evidence["kind"] == "benchmark"].reset_index(drop=True),
        "bits_per_byte": evidence[evidence["kind"] == "bits_per_byte"].reset_index(drop=True),
        **against_parent(others, parent, limits),
        "needles": needle_table(evaluation, parent),
        "exposure": exposure_table(evaluation, parent),
        "answers": answers_table(evaluation, limits),
    }


def gate_evidence(evaluation: Evaluation, parent: Evaluation | None, *, floor_error_rate: float | None = None) -> pd.DataFrame:
    """One row a benchmark metric (higher is better) and one for macro bits per byte (lower is better).

    Bits per byte are compared with the parent's only on the components with the same held-out text. `components` names these; without a
    parent, all that were measured. `parent` of a benchmark is the parent's score as it is; `parent_comparison` compares them.

    `margin` is value − baseline of a benchmark, `increase_bits_per_byte` is value − parent of the macro. `finite` says that every single
    response of the model was finite, and this value with them: a model of NaNs still scores on a multiple-choice benchmark. From `items`
    to `decided_by` the columns are those of `floor.Floor`: how far a score is that of a model at the floor.

    Args:
        floor_error_rate: how often a model at the floor may pass; with it, `smallest_margin` is the margin of accuracy above the baseline
            that is shown in 8 of 10 cases.

    Raises:
        DataError: a benchmark has no baseline to be measured against, or not an answer to each item; or nothing that was measured of the
            parent was measured of the checkpoint.
    """
    is_finite = bool(evaluation["finite"])
    parent_values = {name_of(result): _number(result["value"]) for result in parent["results"]} if parent else {}
    rows: list[dict[str, object]] = []
    for result in evaluation["results"]:
        name, value, baseline = name_of(result), _number(result["value"]), _number(result.get("baseline"))
        if not math.isfinite(baseline):
            raise DataError(
                f"benchmark metric {name} needs the value of a dumb baseline, found {result.get('baseline')!r} in the evaluation. "
                "Give the benchmark a baseline, or leave it out of the gate."
            )
        floor = measure_floor(result)
        rows.append(
            {
                "name": name,
                "kind": "benchmark",
                "value": value,
                "stderr": _number(result["stderr"]),
                "baseline": baseline,
                "parent": parent_values.get(name, math.nan),
                "has_parent": name in parent_values,
                "margin": value - baseline,
                "increase_bits_per_byte": math.nan,
                "finite": is_finite and math.isfinite(value) and not math.isnan(floor.p_value),
                **floor._asdict(),
                "floor_p_value": floor.p_value,
                "likelihoods": floor.likelihoods,
                "decided_by": floor.decided_by,
                "smallest_margin": _smallest_margin(result, floor, floor_error_rate / NUM_TESTS) if floor_error_rate else math.nan,
            }
        )
    rows.append(_measure_macro(evaluation, parent, is_finite=is_finite))
    return pd.DataFrame(rows, columns=list(BENCHMARK_COLUMNS)).astype({"items": "Int64", "right": "Int64"})


def _smallest_margin(result: Mapping[str, Any], floor: Floor, level: float) -> float:
    """Above the baseline, by the test of the accuracy that `measure_floor` makes."""
    if floor.accuracy_test == BINOMIAL:
        return smallest_margin(floor.items, float(result["baseline"]), level=level)
    pairs = [(bool(answer["right"]), bool(answer["baseline_right"])) for answer in result["answers"]]
    ours = sum(model and not baseline for model, baseline in pairs)
    theirs = sum(baseline and not model for model, baseline in pairs)
    return smallest_fall(Pairs(floor.items, gained=theirs, lost=ours), level=level)


def _measure_macro(evaluation: Evaluation, parent: Evaluation | None, *, is_finite: bool) -> dict[str, object]:
    """Every component counts the same."""
    components = sorted(evaluation["bits_per_byte"])
    if parent:
        here, there = evaluation["measured_on"], parent["measured_on"]
        components = [name for name in components if name in parent["bits_per_byte"] and here[name] == there[name]]
        if not components:
            raise DataError(
                f"a phase is compared with its parent on the same held-out text, and nothing is the same: the phase was measured on "
                f"{', '.join(here)}, its parent on {', '.join(there)}. Evaluate both again on the data as it is now."
            )

    def macro(one: Evaluation) -> float:
        values = [_number(one["bits_per_byte"][name]) for name in components]
        return sum(values) / len(values) if values else math.nan

    value, parent_value = macro(evaluation), macro(parent) if parent else math.nan
    every = [_number(each) for each in (evaluation["macro_bits_per_byte"], *evaluation["bits_per_byte"].values())]
    return {
        "name": MACRO,
        "kind": "bits_per_byte",
        "value": value,
        "baseline": math.nan,
        "parent": parent_value,
        "has_parent": parent is not None,
        "margin": math.nan,
        "increase_bits_per_byte": value - parent_value,
        "components": ", ".join(components),
        "finite": is_finite and math.isfinite(value) and all(map(math.isfinite, every)),
    }


def needle_table(evaluation: Evaluation, parent: Evaluation | None) -> pd.DataFrame:
    """One row a benchmark of needles in a haystack (`niah`); none if the phase names none.

    A small model finds no needle and may still continue: needles have a limit of their own, and no floor. `against` is the parent, if it
    was asked the same; else `why_not` says why there is no comparison. Schedules do not matter here: the comparison decides nothing.

    Raises:
        DataError: answers are missing or do not agree; or both were measured alike, and not on the same items.
    """
    rows: list[dict[str, object]] = []
    for result in evaluation["results"]:
        if not is_needle(result["benchmark"]):
            continue
        floor, found = measure_floor(result), compare(name_of(result), result, evaluation, parent)
        why_not = "; ".join(filter(None, (found.limited, found.differs)))
        theirs = next((one for one in parent["results"] if name_of(one) == found.name), None) if parent else None
        row: dict[str, object] = {
            "name": name_of(result),
            "against": found.parent or "",
            **dict.fromkeys(("parent", "difference", "low", "high"), math.nan),
            "why_not": why_not or found.why_not,
            "value": float(result["value"]),
            "stderr": float(result["stderr"]),
            "baseline": float(result["baseline"]),
            "items": floor.items,
            "right": floor.right,
            "accuracy_p_value": floor.accuracy_p_value,
            "likelihoods": floor.likelihoods,
            "floor_p_value": floor.p_value,
        }
        if theirs is not None and not why_not:
            pairs = pair_items(result, theirs)
            low, high = difference_interval(pairs)
            row |= {"parent": float(theirs["value"]), "difference": pairs.difference, "low": low, "high": high, "why_not": ""}
        rows.append(row)
    return pd.DataFrame(rows, columns=list(NEEDLE_COLUMNS))


def answers_table(evaluation: Evaluation, limits: GateLimits) -> pd.DataFrame:
    """A row of all components together, and one of each; none if no answers were measured. Each conversation counts the same.

    * `gain_nats`: the mean over conversations of how much likelier their answers are than to the parent, in nats a token, and its interval;
    * `limit`: the gain that is asked for; `rise_p_value`: the chance of such gains if the true one is no larger (paired t-test);
    * `judged_p_value`: that of all components together, and 0 in the other rows: the gate asks once;
    * `fall_p_value`: the chance of gains so low if the true one is 0, over all components (Holm); 1 in the first row.

    Raises:
        DataError: a conversation was measured of only one model, or is there twice.
    """
    measured = evaluation.get("answers")
    if not measured:
        return pd.DataFrame(columns=list(ANSWER_COLUMNS))
    items: Sequence[Mapping[str, Any]] = measured["items"]
    against: str | None = measured["against"]
    keys = {(item["component"], item["id"]) for item in items}
    alone = [item for item in items if (item["parent_nats"] is None) == (against is not None)]
    if not items or len(keys) != len(items) or alone:
        raise DataError(
            f"answers are compared conversation by conversation, each once and measured of both models, found {len(items)} of "
            f"{len(keys)} conversations, {len(alone)} of them measured of one model alone. Evaluate the phase again."
        )
    limit = limits.min_answer_gain_nats or 0.0
    names = sorted({item["component"] for item in items})
    rows = [_answer_row(name, [item for item in items if item["component"] == name], against, limit) for name in names]
    for row, adjusted in zip(rows, holm([row["fall_p_value"] for row in rows]), strict=True):
        row |= {"fall_p_value": adjusted, "judged_p_value": 0.0}
    whole = _answer_row(EVERY, items, against, limit)
    whole |= {"fall_p_value": 1.0, "judged_p_value": whole["rise_p_value"]}
    return pd.DataFrame([whole, *rows], columns=list(ANSWER_COLUMNS))


def _answer_row(name: str, items: Sequence[Mapping[str, Any]], against: str | None, limit: float) -> dict[str, Any]:
    tokens = np.array([item["tokens"] for item in items], np.float64)
    ours = np.array([_number(item["nats"]) for item in items]) / tokens
    theirs = np.array([_number(item["parent_nats"]) for item in items]) / tokens
    gains = theirs - ours
    low, high, fall = mean_test(gains, alternative="less")
    rise = mean_test(gains, mean=limit, alternative="greater").p_value
    return {
        "component": name,
        "against": against or "",
        "conversations": len(items),
        "tokens": int(tokens.sum()),
        "nats_per_token": float(ours.mean()),
        "parent_nats_per_token": float(theirs.mean()),
        "gain_nats": float(gains.mean()),
        "low": low,
        "high": high,
        "limit": limit,
        "rise_p_value": rise,
        "fall_p_value": fall,
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
