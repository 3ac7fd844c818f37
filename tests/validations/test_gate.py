import math
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import DataError
from validations.evidence.evaluation import MACRO, gate_evidence
from validations.limits import GateLimits
from validations.verdict import judge_gate

PARENT: dict[str, Any] = {
    "checkpoint": "runs/kestrel/100",
    "weights": "ema",
    "results": [{"benchmark": "continuation", "metric": "acc", "value": 0.40, "stderr": 0.02, "items": 200, "baseline": 0.25}],
    "bits_per_byte": {"wikipedia": 1.9, "starcoderdata": 1.5},
    "macro_bits_per_byte": 1.7,
    "finite": True,
}
BETTER = PARENT | {"checkpoint": "runs/ocelot/200", "macro_bits_per_byte": 1.6}
LIMITS = GateLimits(max_increase_bits_per_byte=0.02, must_beat_baseline=True)


def scoring(value: float) -> dict[str, Any]:
    return BETTER | {"results": [PARENT["results"][0] | {"value": value}]}


@pytest.mark.parametrize("parent", [None, PARENT])
def test_a_better_model_passes(tmp_path: Path, parent: dict[str, Any] | None):
    verdict = judge_gate("ocelot gate", BETTER, parent_evaluation=parent, limits=LIMITS, folder=tmp_path)
    assert verdict.passes
    assert verdict.reasons == ()
    assert list(verdict.judged) == ["runs/ocelot/200"]


@pytest.mark.parametrize(
    ("evaluation", "expectation", "told"),
    [
        (BETTER | {"finite": False}, "expect_column_values_to_be_in_set", "continuation acc rests on responses"),
        (BETTER | {"macro_bits_per_byte": math.nan}, "expect_column_values_to_be_in_set", "macro bits per byte rests on responses"),
        (
            BETTER | {"bits_per_byte": {"wikipedia": math.inf}},
            "expect_column_values_to_be_in_set",
            "macro bits per byte rests on responses",
        ),
        (BETTER | {"bits_per_byte": {}}, "expect_column_values_to_be_in_set", "macro bits per byte rests on responses"),
        (BETTER | {"results": []}, "expect_table_row_count_to_be_between", "the evidence table benchmarks is empty"),
        (scoring(math.nan), "expect_column_values_to_be_in_set", "continuation acc rests on responses"),
        (scoring(0.25), "expect_baseline_to_be_beaten", "is 0.2500, not above the 0.2500 of its dumb baseline"),
        (
            BETTER | {"macro_bits_per_byte": 1.75},
            "expect_loss_to_parent_within_limit",
            "went from the parent's 1.7000 to 1.7500, by +0.0500",
        ),
    ],
)
def test_a_model_that_must_not_go_on_fails(tmp_path: Path, evaluation: dict[str, Any], expectation: str, told: str):
    verdict = judge_gate("ocelot gate", evaluation, parent_evaluation=PARENT, limits=LIMITS, folder=tmp_path)
    assert not verdict.passes
    assert verdict.reasons[0].expectation == expectation
    assert told in verdict.reasons[0].what


def test_a_rise_within_the_limit_passes(tmp_path: Path):
    slightly_worse = BETTER | {"macro_bits_per_byte": 1.715}
    assert judge_gate("gate", slightly_worse, parent_evaluation=PARENT, limits=LIMITS, folder=tmp_path).passes


def test_a_parent_of_nan_hides_nothing(tmp_path: Path):
    broken_parent = PARENT | {"macro_bits_per_byte": math.nan}
    assert not judge_gate("gate", BETTER, parent_evaluation=broken_parent, limits=LIMITS, folder=tmp_path).passes


def test_the_baseline_counts_only_where_the_recipe_says_so(tmp_path: Path):
    lenient = GateLimits(max_increase_bits_per_byte=0.02, must_beat_baseline=False)
    assert judge_gate("gate", scoring(0.1), parent_evaluation=PARENT, limits=lenient, folder=tmp_path).passes


def test_evidence_has_one_row_a_metric_and_one_for_the_macro():
    evidence = gate_evidence(BETTER, PARENT).set_index("name")
    assert list(evidence.index) == ["continuation acc", MACRO]
    assert evidence.loc["continuation acc", "margin"] == pytest.approx(0.15)
    assert evidence.loc["continuation acc", "parent"] == 0.40
    assert evidence.loc[MACRO, "increase_bits_per_byte"] == pytest.approx(-0.1)


def test_a_benchmark_without_a_baseline_is_refused():
    with pytest.raises(DataError, match="continuation acc needs the value of a dumb baseline"):
        gate_evidence(BETTER | {"results": [PARENT["results"][0] | {"baseline": None}]}, None)
