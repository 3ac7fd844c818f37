"""Evidence about a checkpoint: its benchmarks against their dumb baselines, its bits per byte against its parent's."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from trainer.errors import DataError
from validations.evidence.floor import measure_floor

Evaluation = Mapping[str, Any]
BENCHMARK, BITS_PER_BYTE = "benchmark", "bits_per_byte"
MACRO = "macro bits per byte"
COLUMNS = (
    "name", "kind", "value", "stderr", "baseline", "parent", "has_parent", "margin", "items", "right", "accuracy_test", "accuracy_p_value",
    "below_p_value", "likelihood_p_value", "mean_margin_nats", "floor_p_value", "decided_by", "increase_bits_per_byte", "finite",
)  # fmt: skip


def gate_evidence(evaluation: Evaluation, parent_evaluation: Evaluation | None) -> pd.DataFrame:
    """One row a benchmark metric (higher is better) and one for macro bits per byte (lower is better).

    `margin` is value − baseline of a benchmark, `increase_bits_per_byte` is value − parent of the macro. `finite` says that every single
    response of the model was finite, and this value with them: a model of NaNs still scores on a multiple-choice benchmark. From `items`
    to `decided_by` the columns are those of `validations.evidence.floor.Floor`: how far a score is that of a model at the floor.

    Raises:
        DataError: a benchmark has no baseline to be measured against, or not an answer to each item.
    """
    is_finite = bool(evaluation["finite"])
    parent_values = _benchmark_values(parent_evaluation) if parent_evaluation else {}
    rows = [_measure_benchmark(result, parent_values, is_finite=is_finite) for result in evaluation["results"]]
    rows.append(_measure_macro(evaluation, parent_evaluation, is_finite=is_finite))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"items": "Int64", "right": "Int64"})


def _measure_benchmark(result: Mapping[str, Any], parent_values: Mapping[str, float], *, is_finite: bool) -> dict[str, object]:
    name, value = _name(result), _number(result["value"])
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
        "decided_by": floor.decided_by,
    }


def _measure_macro(evaluation: Evaluation, parent: Evaluation | None, *, is_finite: bool) -> dict[str, object]:
    components = [_number(value) for value in evaluation["bits_per_byte"].values()]
    value = _number(evaluation["macro_bits_per_byte"])
    parent_value = _number(parent["macro_bits_per_byte"]) if parent else math.nan
    return {
        "name": MACRO,
        "kind": BITS_PER_BYTE,
        "value": value,
        "baseline": math.nan,
        "parent": parent_value,
        "has_parent": parent is not None,
        "margin": math.nan,
        "increase_bits_per_byte": value - parent_value,
        "finite": is_finite and math.isfinite(value) and bool(components) and all(map(math.isfinite, components)),
    }


def _benchmark_values(evaluation: Evaluation) -> dict[str, float]:
    return {_name(result): _number(result["value"]) for result in evaluation["results"]}


def _name(result: Mapping[str, Any]) -> str:
    return f"{result['benchmark']} {result['metric']}"


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
