import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.floor import NUM_TESTS, measure_floor
from phasewise.validations.evidence.gate import MACRO, gate_evidence
from phasewise.validations.limits import GateLimits
from phasewise.validations.verdict import judge_gate
from tests.validations.made_answers import guessed_result, scored_result

PARENT: dict[str, Any] = {
    "phase": "kestrel",
    "schedule": {"end": 1e-3, "peak": 1e-3, "optimizer": "adamw"},
    "checkpoint": "runs/kestrel/100",
    "weights": "ema",
    "results": [guessed_result(right=80, first=100)],
    "bits_per_byte": {"wikipedia": 1.9, "starcoderdata": 1.5},
    "macro_bits_per_byte": 1.7,
    "measured_on": {"wikipedia": "text 1", "starcoderdata": "text 2"},
    "benchmarks": ["continuation"],
    "benchmarks_digest": "items",
    "finite": True,
}


def at(macro: float) -> dict[str, Any]:
    """A phase that was measured on what its parent was."""
    components = {"wikipedia": macro + 0.2, "starcoderdata": macro - 0.2}
    return PARENT | {"phase": "ocelot", "checkpoint": "runs/ocelot/200", "bits_per_byte": components, "macro_bits_per_byte": macro}


BETTER = at(1.6)
IN_SET = "expect_column_values_to_be_in_set"
LIMITS = GateLimits(max_increase_bits_per_byte=0.02, must_beat_baseline=True, floor_error_rate=0.01)


def scoring(*, right: int = 80, first: int = 100) -> dict[str, Any]:
    """`right` of 200 items right at a baseline of 50; the right choice is the likeliest in `first` items, else the least likely."""
    return BETTER | {"results": [guessed_result(right=right, first=first)]}


def with_a_broken_response(evaluation: dict[str, Any]) -> dict[str, Any]:
    broken = deepcopy(evaluation)
    broken["results"][0]["answers"][3]["log_likelihoods"][1] = math.nan
    return broken


@pytest.mark.parametrize("parent", [None, PARENT])
def test_a_better_model_passes(tmp_path: Path, parent: dict[str, Any] | None):
    verdict = judge_gate("ocelot gate", BETTER, parent_evaluation=parent, limits=LIMITS, folder=tmp_path)
    assert verdict.passes
    assert verdict.reasons == ()
    assert list(verdict.judged) == ["evaluation", "parent's evaluation"][: 1 + bool(parent)]


@pytest.mark.parametrize(
    ("evaluation", "expectation", "said"),
    [
        (BETTER | {"finite": False}, IN_SET, "continuation acc rests on responses"),
        (BETTER | {"macro_bits_per_byte": math.nan}, IN_SET, "macro bits per byte rests on responses"),
        (BETTER | {"bits_per_byte": {"wikipedia": math.inf, "starcoderdata": 1.0}}, IN_SET, "macro bits per byte rests on responses"),
        (BETTER | {"results": []}, IN_SET, "names the benchmark continuation, and it was not measured"),
        (BETTER | {"benchmarks": ["continuation", "completion"]}, IN_SET, "names the benchmark completion, and it was not measured"),
        (BETTER | {"benchmarks": [], "results": []}, "expect_table_row_count_to_be_between", "the evidence table asked is empty"),
        (BETTER | {"results": [PARENT["results"][0] | {"value": math.nan}]}, IN_SET, "continuation acc rests on responses"),
        (with_a_broken_response(scoring()), IN_SET, "continuation acc rests on responses"),
        (
            scoring(right=60),
            "expect_score_to_be_above_the_floor",
            "60 of 200 right, 0.300 ± 0.032 against the 0.250 of the dumb baseline (p = 0.062, exact binomial), and right answers -1.000",
        ),
        (
            scoring(right=30, first=180),
            "expect_accuracy_not_to_be_below_the_baseline",
            "is 0.150 ± 0.025, 30 of 200 right, below the 0.250",
        ),
        (
            at(1.75),
            "expect_loss_to_parent_within_limit",
            "from the parent's 1.7000 to 1.7500, by +0.0500, on what both were measured on: star",
        ),
    ],
)
def test_a_model_that_must_not_go_on_fails(tmp_path: Path, evaluation: dict[str, Any], expectation: str, said: str):
    verdict = judge_gate("ocelot gate", evaluation, parent_evaluation=PARENT, limits=LIMITS, folder=tmp_path)
    assert not verdict.passes
    assert verdict.reasons[0].expectation == expectation
    assert said in verdict.reasons[0].what


def test_a_rise_within_the_limit_passes(tmp_path: Path):
    assert judge_gate("gate", at(1.715), parent_evaluation=PARENT, limits=LIMITS, folder=tmp_path).passes


def test_a_parent_of_nan_hides_nothing(tmp_path: Path):
    broken_parent = PARENT | {"bits_per_byte": {"wikipedia": math.nan, "starcoderdata": 1.5}}
    assert not judge_gate("gate", BETTER, parent_evaluation=broken_parent, limits=LIMITS, folder=tmp_path).passes


@pytest.mark.parametrize("rate", [None, 0.01])
def test_the_baseline_counts_only_where_the_recipe_says_so(tmp_path: Path, rate: float | None):
    lenient = GateLimits(max_increase_bits_per_byte=0.02, must_beat_baseline=False, floor_error_rate=rate)
    assert judge_gate("gate", scoring(right=10, first=0), parent_evaluation=PARENT, limits=lenient, folder=tmp_path).passes


@pytest.mark.parametrize(("right", "first", "decided_by"), [(80, 100, "accuracy"), (50, 140, "likelihood"), (38, 140, "likelihood")])
def test_either_test_shows_that_a_model_is_above_the_floor(tmp_path: Path, right: int, first: int, decided_by: str):
    evaluation = scoring(right=right, first=first)
    assert judge_gate("gate", evaluation, parent_evaluation=PARENT, limits=LIMITS, folder=tmp_path).passes
    [row] = pd.read_parquet(tmp_path / "benchmarks.parquet").to_dict("records")
    assert (row["items"], row["right"], row["decided_by"]) == (200, right, decided_by)
    assert row["floor_p_value"] <= 0.01


def test_the_level_is_the_recipes(tmp_path: Path):
    """Twice p = 0.062: one in five, and not one in ten, models at the floor may pass with that."""
    for rate, passes in ((0.2, True), (0.1, False)):
        limits = GateLimits(max_increase_bits_per_byte=0.02, must_beat_baseline=True, floor_error_rate=rate)
        assert judge_gate("gate", scoring(right=60), parent_evaluation=None, limits=limits, folder=tmp_path).passes == passes


def test_a_benchmark_at_the_floor_is_not_made_up_for_by_another(tmp_path: Path):
    both = BETTER | {"results": [guessed_result(right=150, first=190), guessed_result(right=50, first=100, benchmark="order")]}
    verdict = judge_gate("gate", both, parent_evaluation=None, limits=LIMITS, folder=tmp_path)
    assert [reason.where for reason in verdict.reasons] == ["order acc"]


def test_no_more_models_at_the_floor_pass_the_whole_rule_than_it_says():
    rng = np.random.default_rng(17)
    rate = 0.2
    simulations = 1000
    passed = 0
    for _ in range(simulations):
        floor = measure_floor(scored_result(rng.standard_cauchy((24, 4)), right=rng.random(24) < 0.25))
        passed += floor.p_value <= rate and floor.below_p_value > rate / NUM_TESTS
    assert rate / 4 < passed / simulations <= rate + 4 * (rate * (1 - rate) / simulations) ** 0.5


@pytest.mark.parametrize("rate", [None, 0.0, 0.5, 1.0])
def test_a_level_that_is_none_is_refused(rate: float | None):
    with pytest.raises(ValidationError, match="floor_error_rate"):
        GateLimits(max_increase_bits_per_byte=0.02, must_beat_baseline=True, floor_error_rate=rate)


@pytest.mark.parametrize("answers", [None, []])
def test_an_evaluation_without_answers_is_refused(tmp_path: Path, answers: list[Any] | None):
    for limits in (LIMITS, GateLimits(max_increase_bits_per_byte=0.02, must_beat_baseline=False, floor_error_rate=None)):
        evaluation = BETTER | {"results": [PARENT["results"][0] | {"answers": answers}]}
        with pytest.raises(DataError, match="must have an answer to each of its items, found 0 answers to 200 items"):
            judge_gate("gate", evaluation, parent_evaluation=PARENT, limits=limits, folder=tmp_path)


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


def test_other_text_of_the_same_name_is_not_compared():
    evaluation = branch(wikipedia=1.8, starcoderdata=1.4)
    evaluation["measured_on"]["wikipedia"] = "the text of another day"
    row = gate_evidence(evaluation, PARENT).to_dict("records")[-1]
    assert (row["value"], row["parent"], row["components"]) == (pytest.approx(1.4), pytest.approx(1.5), "starcoderdata")


@pytest.mark.parametrize("evaluation", [branch(flan=1.0), branch()])
def test_where_nothing_is_shared_nothing_is_compared(evaluation: dict[str, Any]):
    with pytest.raises(DataError, match="compared with its parent on the same held-out text, and nothing is the same"):
        gate_evidence(evaluation, PARENT)


def test_a_benchmark_without_a_baseline_is_refused():
    with pytest.raises(DataError, match="continuation acc needs the value of a dumb baseline"):
        gate_evidence(BETTER | {"results": [PARENT["results"][0] | {"baseline": None}]}, None)
