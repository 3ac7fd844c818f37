"""Tables of a gate: benchmarks and their baselines, bits per byte, the parent, needles and held-out answers. And the notes on them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.exposure import exposure_table
from phasewise.validations.evidence.floor import BINOMIAL, NUM_TESTS, measure_floor
from phasewise.validations.evidence.parent_comparison import Evaluation, against_parent, compare, name_of, pair_items, paired_interval
from phasewise.validations.evidence.proportions import POWER, Pairs, holm, mean_test, score_interval, smallest_fall, smallest_margin
from phasewise.validations.limits import MACRO, OWN_TEXT, GateLimits, is_needle

BENCHMARK_COLUMNS = (
    "name", "kind", "value", "stderr", "baseline", "parent", "has_parent", "margin", "items", "right", "accuracy_test", "accuracy_p_value",
    "below_p_value", "likelihood_p_value", "mean_margin_nats", "likelihoods", "floor_p_value", "decided_by", "smallest_margin",
    "ungraded", "low", "high", "increase_bits_per_byte", "components", "finite",
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
_DIFFERENCE = "{difference:+.3f} ({low:+.3f} to {high:+.3f})"
IN_TEN = f"{10 * POWER:g} of 10 cases"


def gate_tables(evaluation: Evaluation, parent: Evaluation | None, limits: GateLimits) -> dict[str, pd.DataFrame]:
    """Build all tables of a gate. `parent` is None if the phase starts from scratch."""
    others = {**evaluation, "results": [result for result in evaluation["results"] if not is_needle(result["benchmark"])]}
    evidence = gate_evidence(others, parent, floor_error_rate=limits.floor_error_rate if limits.must_beat_baseline else None)
    measured = {result["benchmark"] for result in evaluation["results"]}
    asked = [{"name": name, "measured": name in measured} for name in evaluation["benchmarks"]]
    needles: list[dict[str, object]] = []  # whose scores need no floor and ignore schedules
    for result in evaluation["results"]:
        if not is_needle(result["benchmark"]):
            continue
        floor, found = measure_floor(result), compare(name_of(result), result, evaluation, parent)
        why_not = "; ".join(filter(None, (found.limited, found.differs)))
        theirs = next((one for one in parent["results"] if name_of(one) == found.name), None) if parent else None
        row: dict[str, object] = {
            "name": name_of(result),
            "against": found.against or "",
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
            low, high = paired_interval(result, theirs)
            row |= {"parent": float(theirs["value"]), "difference": pairs.difference, "low": low, "high": high, "why_not": ""}
        needles.append(row)
    return {
        "asked": pd.DataFrame(asked, columns=["name", "measured"]),
        "benchmarks": evidence[evidence["kind"] == "benchmark"].reset_index(drop=True),
        "bits_per_byte": evidence[evidence["kind"] == "bits_per_byte"].reset_index(drop=True),
        **against_parent(others, parent, limits),
        "needles": pd.DataFrame(needles, columns=list(NEEDLE_COLUMNS)),
        "exposure": exposure_table(evaluation, parent),
        "answers": answers_table(evaluation, limits),
    }


def gate_evidence(evaluation: Evaluation, parent: Evaluation | None, *, floor_error_rate: float | None = None) -> pd.DataFrame:
    """Build a row per benchmark metric (higher is better) and a row for macro bits per byte (lower is better).

    `margin` is value − baseline of a benchmark, `increase_bits_per_byte` is value − parent of the macro. `finite`: the value and every
    response of the model are finite. A model of NaNs still scores on a multiple-choice benchmark. The columns from `items` to `decided_by`
    are the fields of `floor.Floor`. `components`: components of the macro, compared with the parent only on equal held-out text. With a
    `floor_error_rate`, `smallest_margin` is the accuracy margin that the test detects in 8 of 10 cases. `low` to `high` is the 95 %
    interval of the value, from all `ungraded` items wrong to all right. Raises DataError if a benchmark lacks a baseline or answers, or
    parent and checkpoint share no held-out text.
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
                "name": name, "kind": "benchmark", "value": value, "stderr": _number(result["stderr"]), "baseline": baseline,
                "parent": parent_values.get(name, math.nan), "has_parent": name in parent_values, "margin": value - baseline,
                "increase_bits_per_byte": math.nan, "finite": is_finite and math.isfinite(value) and not math.isnan(floor.p_value),
                **floor._asdict(), "floor_p_value": floor.p_value, "likelihoods": floor.likelihoods, "decided_by": floor.decided_by,
                "smallest_margin": math.nan, "ungraded": (ungraded := sum(bool(answer.get("ungraded")) for answer in result["answers"])),
                **dict(zip(("low", "high"), score_interval(floor.right, floor.items, ungraded), strict=True)),
            }
        )  # fmt: skip
        if not floor_error_rate:
            continue
        level = floor_error_rate / NUM_TESTS
        if floor.accuracy_test == BINOMIAL:
            rows[-1]["smallest_margin"] = smallest_margin(floor.items, float(result["baseline"]), level=level)
        else:
            right = [(bool(answer["right"]), bool(answer["baseline_right"])) for answer in result["answers"]]
            ours = sum(model and not other for model, other in right)
            theirs = sum(other and not model for model, other in right)
            rows[-1]["smallest_margin"] = smallest_fall(Pairs(floor.items, gained=theirs, lost=ours), level=level)
    rows.append(_macro_row(evaluation, parent, is_finite=is_finite))
    # A row per subset of an own held-out text, which the gate compares like the macro
    ours, theirs = evaluation.get(OWN_TEXT, {}), (parent or {}).get(OWN_TEXT, {})
    if parent and any(name not in theirs or theirs[name]["digest"] != one["digest"] for name, one in ours.items()):
        raise DataError(
            f"{OWN_TEXT}: expected equal text of phase and parent, found {', '.join(ours)} and {', '.join(theirs) or 'none'}. Evaluate "
            "both again with the same evaluation.held_out."
        )
    for name, one in sorted(ours.items()):
        value = _number(one["bits_per_byte"])
        before = _number(theirs[name]["bits_per_byte"]) if parent else math.nan
        row = {"name": f"{OWN_TEXT} {name}", "kind": "bits_per_byte", "value": value, "parent": before, "components": name}
        increase = {"has_parent": parent is not None, "increase_bits_per_byte": value - before, "finite": math.isfinite(value)}
        rows.append({**dict.fromkeys(("baseline", "margin"), math.nan), **row, **increase})
    return pd.DataFrame(rows, columns=list(BENCHMARK_COLUMNS)).astype(dict.fromkeys(("items", "right", "ungraded"), "Int64"))


def _macro_row(evaluation: Evaluation, parent: Evaluation | None, *, is_finite: bool) -> dict[str, object]:
    """Average bits per byte over the components with equal weights."""
    components = sorted(evaluation["bits_per_byte"])
    if parent:
        here, there = evaluation["measured_on"], parent["measured_on"]
        components = [name for name in components if name in parent["bits_per_byte"] and here[name] == there[name]]
        if not components:
            raise DataError(
                f"a phase is compared with its parent on the same held-out text, and nothing is the same: the phase was measured on "
                f"{', '.join(here)}, its parent on {', '.join(there)}. Evaluate both again on the data as it is now."
            )
    means: list[float] = []
    for one in (evaluation, parent):
        values = [_number(one["bits_per_byte"][name]) for name in components] if one else []
        means.append(sum(values) / len(values) if values else math.nan)
    value, parent_value = means
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


def answers_table(evaluation: Evaluation, limits: GateLimits) -> pd.DataFrame:
    """Build a row for all components and a row per component. Each conversation counts the same.

    * `gain_nats`, `low`, `high`: Mean gain in the likelihood of the answers over the parent, in nats a token, and its 95 % interval.
    * `rise_p_value`: The chance of such gains if the true gain is at most the required gain `limit` (paired t-test).
    * `judged_p_value`: `rise_p_value` in the first row, 0 in the other rows, because the gate tests once.
    * `fall_p_value`: The chance of such low gains if the true gain is 0, over all components (Holm). 1 in the first row.

    Raises DataError if a conversation is listed twice, or was measured with only one model.
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
    groups = {EVERY: items}
    for name in sorted({item["component"] for item in items}):
        groups[name] = [item for item in items if item["component"] == name]
    rows: list[dict[str, Any]] = []
    for name, members in groups.items():
        tokens = np.array([item["tokens"] for item in members], np.float64)
        ours = np.array([_number(item["nats"]) for item in members]) / tokens
        theirs = np.array([_number(item["parent_nats"]) for item in members]) / tokens
        gains = theirs - ours
        low, high, fall = mean_test(gains, alternative="less")
        rows.append(
            {
                "component": name, "against": against or "", "conversations": len(members), "tokens": int(tokens.sum()),
                "nats_per_token": float(ours.mean()), "parent_nats_per_token": float(theirs.mean()), "gain_nats": float(gains.mean()),
                "low": low, "high": high, "limit": limit, "rise_p_value": mean_test(gains, mean=limit, alternative="greater").p_value,
                "fall_p_value": fall, "judged_p_value": 0.0,
            }
        )  # fmt: skip
    for row, adjusted in zip(rows[1:], holm([row["fall_p_value"] for row in rows[1:]]), strict=True):
        row["fall_p_value"] = adjusted
    rows[0] |= {"fall_p_value": 1.0, "judged_p_value": rows[0]["rise_p_value"]}
    return pd.DataFrame(rows, columns=list(ANSWER_COLUMNS))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def gate_notes(tables: Mapping[str, pd.DataFrame], *, asks_floor: bool) -> tuple[str, ...]:
    """Describe scores, parents and the smallest detectable effects, from the tables of `gate_tables`."""
    notes: list[str] = []
    benchmarks, falls, rises = ({row["name"]: row for row in _rows(tables[name])} for name in ("benchmarks", "falls", "rises"))
    for comparison in _rows(tables["comparable"]):
        name, why_not = comparison["name"], comparison["why_not"]
        benchmark, fall, rise = benchmarks[name], falls.get(name), rises.get(name)
        score = f"{name}: {benchmark['value']:.3f}"
        if ungraded := benchmark["ungraded"]:
            between = f"{benchmark['low']:.3f} to {benchmark['high']:.3f}"
            score += f" (95 % interval {between}, from all {ungraded} of {benchmark['items']} ungraded items wrong to all right)"
        change = fall or rise
        if change is None:
            why = "; ".join(filter(None, (comparison["limited"], comparison["differs"]))) or why_not
            margin, baseline = benchmark["smallest_margin"], benchmark["baseline"]
            floor = (
                f"The floor alone decides: accuracy shows {margin:.3f} above the baseline of {baseline:.3f} in {IN_TEN}, and the "
                "likelihood of the right answers may show less."
            )
            if not asks_floor:
                floor = "The recipe asks for no floor either: nothing is decided by this score."
            elif math.isnan(margin):
                floor = (
                    f"The floor alone decides (baseline {baseline:.3f}), and on so few items only by the likelihood of the right answers."
                )
            notes.append(f"{score}, not compared with a parent: {why}. {floor}")
            continue
        against = f"{change['against']}'s {change['parent']:.3f} on the same {change['items']:,} items"
        sentences = [f"{score}, {_DIFFERENCE.format(**change)} to {against}."]
        for kind, row in (("fall", fall), ("rise", rise)):
            if row is None:
                continue
            allowed = f" (up to {row['limit']:g} is allowed)" if row["limit"] else ""
            if math.isnan(row["smallest_detectable"]):
                sentences.append(f"On so few items no {kind} is seen in {IN_TEN}{allowed}.")
            else:
                sentences.append(f"A {kind} of {row['smallest_detectable']:.3f} is seen in {IN_TEN}{allowed}; a smaller one may pass.")
        if change["spread"]:
            moves = f"From one checkpoint to the next the difference moves by {change['spread']:.3f}"
            sentences.append(f"{moves}, which is in the interval and the tests.")
        if why_not:
            sentences.append(f"{why_not[:1].upper()}{why_not[1:]}.")
        notes.append(" ".join(sentences))
    for row in _rows(tables["needles"]):
        score = f"{row['name']}: {row['value']:.3f}, where a guess has {row['baseline']:.3f}"
        if row["why_not"]:
            notes.append(f"{score}; not compared with a parent: {row['why_not']}.")
        else:
            against = f"{row['against']}'s {row['parent']:.3f} on the same {row['items']:,} items"
            notes.append(f"{score}; {_DIFFERENCE.format(**row)} to {against}.")
    for row in _rows(tables["answers"])[:1]:  # the first row covers all components
        found = f"answers of held-out conversations: {row['nats_per_token']:.3f} nats a token"
        if not row["against"]:
            notes.append(f"{found} on {row['conversations']:,} of them; there is no phase before it to compare with.")
            continue
        change = f"{-row['gain_nats']:+.3f} ({-row['high']:+.3f} to {-row['low']:+.3f})"
        notes.append(f"{found}, {change} to {row['against']}'s {row['parent_nats_per_token']:.3f} on the same {row['conversations']:,}.")
    if exposure := _rows(tables["exposure"]):
        first = exposure[0]
        measures = "; ".join(f"{row['measure']} {row['difference_nats']:+.2f} nats (p = {row['adjusted_p_value']:.2g})" for row in exposure)
        alone = f" The parent is not compared with: {first['why_not']}." if first["why_not"] else ""
        notes.append(f"{first['items']} test items beside {first['reference_items']} unseen ones, {first['since']}: {measures}.{alone}")
    return tuple(notes)


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return table.to_dict("records")  # pyright: ignore[reportReturnType]  # the names are text
