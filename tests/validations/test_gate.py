import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.gate import MACRO, gate_evidence
from phasewise.validations.limits import GateLimits
from phasewise.validations.verdict import Verdict, judge_gate
from tests.validations.made_answers import guessed_result

PARENT: dict[str, Any] = {
    "phase": "kestrel", "schedule": {"end": 1e-3, "peak": 1e-3, "optimizer": "adamw"}, "checkpoint": "runs/kestrel/100", "weights": "ema",
    "results": [guessed_result(right=80, first=100)], "bits_per_byte": {"wikipedia": 1.9, "starcoderdata": 1.5},
    "macro_bits_per_byte": 1.7, "measured_on": {"wikipedia": "text 1", "starcoderdata": "text 2"}, "benchmarks": ["continuation"],
    "benchmarks_digest": "items", "finite": True,
}  # fmt: skip


def at(macro: float) -> dict[str, Any]:
    components = {"wikipedia": macro + 0.2, "starcoderdata": macro - 0.2}
    return PARENT | {"phase": "ocelot", "checkpoint": "runs/ocelot/200", "bits_per_byte": components, "macro_bits_per_byte": macro}


BETTER = at(1.6)
IN_SET = "expect_column_values_to_be_in_set"
LIMITS = GateLimits(max_increase_bits_per_byte=0.02, must_beat_baseline=True, floor_error_rate=0.01)


def scoring(*, right: int = 80, first: int = 100) -> dict[str, Any]:
    """`right` of 200 items right at a baseline of 50; the right choice is the likeliest in `first` items, else the least likely."""
    return BETTER | {"results": [guessed_result(right=right, first=first)]}


def with_a_broken_response() -> dict[str, Any]:
    broken = scoring()
    broken["results"][0]["answers"][3]["log_likelihoods"][1] = math.nan
    return broken


def judge(
    folder: Path, evaluation: dict[str, Any], parent: dict[str, Any] | None = PARENT, *, limits: GateLimits = LIMITS, **changes: Any
) -> Verdict:
    return judge_gate("ocelot gate", evaluation, parent_evaluation=parent, limits=limits.but(**changes), folder=folder)


@pytest.mark.parametrize("parent", [None, PARENT])
def test_a_better_model_passes(tmp_path: Path, parent: dict[str, Any] | None):
    verdict = judge(tmp_path, BETTER, parent)
    assert (verdict.passes, verdict.reasons) == (True, ())
    assert list(verdict.judged) == ["evaluation", "parent's evaluation"][: 1 + bool(parent)]


@pytest.mark.parametrize(("evaluation", "expectation", "said"), [
    (BETTER | {"finite": False}, IN_SET, "continuation acc rests on responses"),
    (BETTER | {"macro_bits_per_byte": math.nan}, IN_SET, "macro bits per byte rests on responses"),
    (BETTER | {"bits_per_byte": {"wikipedia": math.inf, "starcoderdata": 1.0}}, IN_SET, "macro bits per byte rests on responses"),
    (BETTER | {"results": []}, IN_SET, "names the benchmark continuation, and it was not measured"),
    (BETTER | {"benchmarks": ["continuation", "completion"]}, IN_SET, "names the benchmark completion, and it was not measured"),
    (BETTER | {"benchmarks": [], "results": []}, "expect_table_row_count_to_be_between", "the evidence table asked is empty"),
    (BETTER | {"results": [PARENT["results"][0] | {"value": math.nan}]}, IN_SET, "continuation acc rests on responses"),
    (with_a_broken_response(), IN_SET, "continuation acc rests on responses"),
    (scoring(right=60), "expect_score_to_be_above_the_floor",
     "60 of 200 right, 0.300 ± 0.032 against the 0.250 of the dumb baseline (p = 0.062, exact binomial), and right answers -1.000"),
    (scoring(right=30, first=180), "expect_accuracy_not_to_be_below_the_baseline", "is 0.150 ± 0.025, 30 of 200 right, below the 0.250"),
    (at(1.75), "expect_loss_to_parent_within_limit", "from the parent's 1.7000 to 1.7500, by +0.0500, on what both were measured on: star"),
])  # fmt: skip
def test_a_model_that_must_not_go_on_fails(tmp_path: Path, evaluation: dict[str, Any], expectation: str, said: str):
    verdict = judge(tmp_path, evaluation)
    assert (verdict.passes, verdict.reasons[0].expectation) == (False, expectation)
    assert said in verdict.reasons[0].what


def test_a_rise_within_the_limit_passes_and_a_parent_of_nan_hides_nothing(tmp_path: Path):
    assert judge(tmp_path, at(1.715)).passes
    assert not judge(tmp_path, BETTER, PARENT | {"bits_per_byte": {"wikipedia": math.nan, "starcoderdata": 1.5}}).passes


@pytest.mark.parametrize("rate", [None, 0.01])
def test_the_baseline_counts_only_where_the_recipe_says_so(tmp_path: Path, rate: float | None):
    assert judge(tmp_path, scoring(right=10, first=0), must_beat_baseline=False, floor_error_rate=rate).passes


@pytest.mark.parametrize(("right", "first", "decided_by"), [(80, 100, "accuracy"), (50, 140, "likelihood"), (38, 140, "likelihood")])
def test_either_test_shows_that_a_model_is_above_the_floor(tmp_path: Path, right: int, first: int, decided_by: str):
    assert judge(tmp_path, scoring(right=right, first=first)).passes
    [row] = pd.read_parquet(tmp_path / "benchmarks.parquet").to_dict("records")
    assert (row["items"], row["right"], row["decided_by"]) == (200, right, decided_by)
    assert row["floor_p_value"] <= 0.01


def test_the_level_is_the_recipes_and_no_benchmark_makes_up_for_another(tmp_path: Path):
    """Twice p = 0.062: one in five, and not one in ten, models at the floor may pass with that."""
    for rate, passes in ((0.2, True), (0.1, False)):
        assert judge(tmp_path, scoring(right=60), None, floor_error_rate=rate).passes == passes
    both = BETTER | {"results": [guessed_result(right=150, first=190), guessed_result(right=50, first=100, benchmark="order")]}
    assert [reason.where for reason in judge(tmp_path, both, None).reasons] == ["order acc"]


@pytest.mark.parametrize("rate", [None, 0.0, 0.5, 1.0])
def test_a_level_that_is_none_is_refused(rate: float | None):
    with pytest.raises(ValidationError, match="floor_error_rate"):
        LIMITS.but(floor_error_rate=rate)


@pytest.mark.parametrize("answers", [None, []])
def test_an_evaluation_without_answers_is_refused(tmp_path: Path, answers: list[Any] | None):
    every_off: tuple[dict[str, Any], ...] = ({}, {"must_beat_baseline": False, "floor_error_rate": None})
    for off in every_off:
        with pytest.raises(DataError, match="must have an answer to each of its items, found 0 answers to 200 items"):
            judge(tmp_path, BETTER | {"results": [PARENT["results"][0] | {"answers": answers}]}, **off)


def test_evidence_has_one_row_a_metric_and_one_for_the_macro():
    evidence = gate_evidence(BETTER, PARENT).set_index("name")
    assert list(evidence.index) == ["continuation acc", MACRO]
    assert evidence.loc["continuation acc", "margin"] == pytest.approx(0.15)
    assert evidence.loc["continuation acc", "parent"] == 0.40
    assert evidence.loc[MACRO, "increase_bits_per_byte"] == pytest.approx(-0.1)


def branch(**bits_per_byte: float) -> dict[str, Any]:
    """A branch that was measured on these components; those of its own the parent has not."""
    known = {"wikipedia": "text 1", "starcoderdata": "text 2"}
    macro = sum(bits_per_byte.values()) / max(len(bits_per_byte), 1)
    measured_on = {name: known.get(name, "text of its own") for name in bits_per_byte}
    return BETTER | {"bits_per_byte": bits_per_byte, "macro_bits_per_byte": macro, "measured_on": measured_on}


def test_a_branch_is_compared_with_its_parent_on_what_both_measured():
    for own in (0.1, 9.0):
        row = gate_evidence(branch(wikipedia=1.8, starcoderdata=1.4, flan=own), PARENT).to_dict("records")[-1]
        assert (row["name"], row["components"]) == (MACRO, "starcoderdata, wikipedia")
        assert (row["value"], row["parent"]) == (pytest.approx(1.6), pytest.approx(1.7))


def test_what_is_not_the_same_is_not_compared_and_a_benchmark_without_a_baseline_refused():
    evaluation = branch(wikipedia=1.8, starcoderdata=1.4)
    evaluation["measured_on"]["wikipedia"] = "the text of another day"
    row = gate_evidence(evaluation, PARENT).to_dict("records")[-1]
    assert (row["value"], row["parent"], row["components"]) == (pytest.approx(1.4), pytest.approx(1.5), "starcoderdata")
    for evaluation in (branch(flan=1.0), branch()):
        with pytest.raises(DataError, match="compared with its parent on the same held-out text, and nothing is the same"):
            gate_evidence(evaluation, PARENT)
    with pytest.raises(DataError, match="continuation acc needs the value of a dumb baseline"):
        gate_evidence(BETTER | {"results": [PARENT["results"][0] | {"baseline": None}]}, None)
