"""Evidence about a checkpoint: its benchmarks against their dumb baselines, its bits per byte against its parent's."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.comparable import Evaluation, name_of
from phasewise.validations.evidence.detectable import smallest_fall, smallest_margin
from phasewise.validations.evidence.floor import BINOMIAL, NUM_TESTS, Floor, measure_floor
from phasewise.validations.evidence.proportions import Pairs

BENCHMARK, BITS_PER_BYTE = "benchmark", "bits_per_byte"
MACRO = "macro bits per byte"
COLUMNS = (
    "name", "kind", "value", "stderr", "baseline", "parent", "has_parent", "margin", "items", "right", "accuracy_test", "accuracy_p_value",
    "below_p_value", "likelihood_p_value", "mean_margin_nats", "likelihoods", "floor_p_value", "decided_by", "smallest_margin",
    "increase_bits_per_byte", "components", "finite",
)  # fmt: skip


def gate_evidence(evaluation: Evaluation, parent_evaluation: Evaluation | None, *, floor_error_rate: float | None = None) -> pd.DataFrame:
    """One row a benchmark metric (higher is better) and one for macro bits per byte (lower is better).

    Bits per byte are compared with the parent's only on the components whose held-out text was the same. `components` names these; where
    there is no parent, all that were measured. `parent` of a benchmark is the parent's score as it is; what can be compared of them is in
    `validations.evidence.against_parent`.

    `margin` is value − baseline of a benchmark, `increase_bits_per_byte` is value − parent of the macro. `finite` says that every single
    response of the model was finite, and this value with them: a model of NaNs still scores on a multiple-choice benchmark. From `items`
    to `decided_by` the columns are those of `validations.evidence.floor.Floor`: how far a score is that of a model at the floor.

    Args:
        floor_error_rate: how often a model at the floor may pass; with it, `smallest_margin` is what accuracy alone must lie above the
            baseline to be shown in 8 of 10 cases.

    Raises:
        DataError: a benchmark has no baseline to be measured against, or not an answer to each item; or nothing that was measured of the
            parent was measured of the checkpoint.
    """
    is_finite = bool(evaluation["finite"])
    parent_values = _benchmark_values(parent_evaluation) if parent_evaluation else {}
    rows = [
        _measure_benchmark(result, parent_values, is_finite=is_finite, floor_error_rate=floor_error_rate)
        for result in evaluation["results"]
    ]
    rows.append(_measure_macro(evaluation, parent_evaluation, is_finite=is_finite))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"items": "Int64", "right": "Int64"})


def asked_evidence(evaluation: Evaluation) -> pd.DataFrame:
    """One row a benchmark that was asked for: whether it has a result."""
    found = {result["benchmark"] for result in evaluation["results"]}
    rows = [{"name": name, "measured": name in found} for name in evaluation["benchmarks"]]
    return pd.DataFrame(rows, columns=["name", "measured"])


def _measure_benchmark(
    result: Mapping[str, Any], parent_values: Mapping[str, float], *, is_finite: bool, floor_error_rate: float | None
) -> dict[str, object]:
    name = name_of(result)
    value = _number(result["value"])
    baseline = _number(result.get("baseline"))
    if not math.isfinite(baseline):
        raise DataError(
            f"benchmark metric {name} needs the value of a dumb baseline, found {result.get('baseline')!r} in the evaluation. "
            "Give the benchmark a baseline, or leave it out of the gate."
        )
    floor = measure_floor(result)
    return {
        "name": name,
        "kind": BENCHMARK,
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


def _smallest_margin(result: Mapping[str, Any], floor: Floor, level: float) -> float:
    """Above the baseline, by the test of the accuracy that `measure_floor` makes."""
    if floor.accuracy_test == BINOMIAL:
        return smallest_margin(floor.items, float(result["baseline"]), level=level)
    pairs = [(bool(answer["right"]), bool(answer["baseline_right"])) for answer in result["answers"]]
    ours = sum(model and not baseline for model, baseline in pairs)
    theirs = sum(baseline and not model for model, baseline in pairs)
    return smallest_fall(Pairs(floor.items, gained=theirs, lost=ours), level=level)


def _measure_macro(evaluation: Evaluation, parent: Evaluation | None, *, is_finite: bool) -> dict[str, object]:
    components = _measured_of_both(evaluation, parent) if parent else sorted(evaluation["bits_per_byte"])
    value = _macro(evaluation, components)
    parent_value = _macro(parent, components) if parent else math.nan
    every = [_number(value) for value in (evaluation["macro_bits_per_byte"], *evaluation["bits_per_byte"].values())]
    return {
        "name": MACRO,
        "kind": BITS_PER_BYTE,
        "value": value,
        "baseline": math.nan,
        "parent": parent_value,
        "has_parent": parent is not None,
        "margin": math.nan,
        "increase_bits_per_byte": value - parent_value,
        "components": ", ".join(components),
        "finite": is_finite and math.isfinite(value) and all(map(math.isfinite, every)),
    }


def _measured_of_both(evaluation: Evaluation, parent: Evaluation) -> list[str]:
    """The components whose same held-out text both were measured on.

    Raises:
        DataError: there is none.
    """
    here, there = evaluation["measured_on"], parent["measured_on"]
    shared = sorted(name for name in evaluation["bits_per_byte"] if name in parent["bits_per_byte"] and here[name] == there[name])
    if not shared:
        raise DataError(
            f"a phase is compared with its parent on the same held-out text, and nothing is the same: the phase was measured on "
            f"{', '.join(here)}, its parent on {', '.join(there)}. Evaluate both again on the data as it is now."
        )
    return shared


def _macro(evaluation: Evaluation, components: Sequence[str]) -> float:
    """Every component counts the same."""
    values = [_number(evaluation["bits_per_byte"][name]) for name in components]
    return sum(values) / len(values) if values else math.nan


def _benchmark_values(evaluation: Evaluation) -> dict[str, float]:
    return {name_of(result): _number(result["value"]) for result in evaluation["results"]}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
