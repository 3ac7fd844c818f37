import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from phasewise.tasks.evaluation.gate_benchmarks import as_gate_result, gate_key, gate_results
from phasewise.tasks.evaluation.harness import BenchmarkResult
from phasewise.tasks.evaluation.settings import BENCHMARKS_VARIABLE, ItemFolders
from phasewise.trainer.base.errors import ConfigError, EvaluationError
from phasewise.validations.evidence.floor import measure_floor
from phasewise.validations.expectations.judging import Reason
from phasewise.validations.limits import GateLimits
from phasewise.validations.verdict import Verdict, judge_gate
from tests.tasks.evaluation.suites.conftest import Bench, Score, riddles, sums

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ITEMS = 60
CHANCE: Any = {"floor_error_rate": 0.01, "false_refusal_rate": 0.05}
LIMITS = GateLimits(max_increase_bits_per_byte=1.0, must_beat_baseline=True, max_score_fall=0.01, **CHANCE)
STEADY = {"end": 1.0, "peak": 1.0, "optimizer": "adamw"}
CHOICES = ("a very old boot", "hat", "nest")


def knows(share: float) -> Score:
    """A model that is right on this share of the riddles, whose answers are each of the three in turn."""

    def score(context: str, text: str) -> float:
        number = int(context.split("wren ")[1].split()[0])
        chosen = number if number < share * ITEMS else number + 1
        return -1.0 if text.strip() == CHOICES[chosen % 3] else -4.0

    return score


def evaluation_of(results: list[BenchmarkResult], phase: str) -> dict[str, Any]:
    return {
        "phase": phase, "benchmarks": [result["benchmark"] for result in results], "results": results, "bits_per_byte": {"web": 1.0},
        "macro_bits_per_byte": 1.0, "measured_on": {"web": "text"}, "finite": True, "schedule": STEADY,
    }  # fmt: skip


def judge(tmp_path: Path, evaluation: Mapping[str, Any], parent: Mapping[str, Any] | None, limits: GateLimits = LIMITS) -> Verdict:
    return judge_gate("model", evaluation, parent_evaluation=parent, limits=limits, folder=tmp_path / "evidence", accepts=())


def stops(verdict: Verdict) -> list[Reason]:
    return [reason for reason in verdict.reasons if reason.severity == "critical"]


def test_a_real_benchmark_is_judged_beside_the_parents_item_by_item(bench: Bench, folder: Path, tmp_path: Path):
    bench.write("arc_easy/test", [riddles(ITEMS, answer=number % 3)[number] for number in range(ITEMS)])
    bench.write("gsm8k/test", sums(ITEMS))
    labels = ("gsm8k_cot:8", "arc_easy:0")

    def measured(share: float, *, adds: bool = True) -> dict[str, Any]:
        def say(context: str) -> str:
            number = int(context.rpartition("What is ")[2].split()[0])
            return f"The answer is {number + 1}." if adds and number % 2 else "The answer is 1000."

        return evaluation_of(
            gate_results(cast(Any, bench.scripted(knows(share), say)), labels, ItemFolders(benchmarks=folder)), f"knows {share}"
        )

    good, same, worse, blind = measured(0.9), measured(0.9), measured(0.6), measured(0.9, adds=False)
    riddle, sum_ = (measure_floor(result) for result in good["results"])
    assert (riddle.items, riddle.right, riddle.likelihood_p_value < 1e-6) == (ITEMS, 54, True)
    assert (sum_.items, sum_.right, sum_.likelihood_p_value, math.isnan(sum_.mean_margin_nats)) == (ITEMS, ITEMS // 2, 1.0, True)
    assert judge(tmp_path, good, None).passes
    assert judge(tmp_path, good, same).passes
    [reason] = stops(judge(tmp_path, worse, good))
    assert reason.what.startswith("arc_easy:0 acc")
    [reason] = stops(judge(tmp_path, blind, None))
    assert "gsm8k_cot:8 exact_match does not tell the model from one that knows nothing: 0 of 60 right" in reason.what
    assert "there are no choices whose likelihood could be compared" in reason.what


def test_what_decides_a_real_benchmark_moves_the_key(bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(BENCHMARKS_VARIABLE, str(folder))
    bench.write("arc_easy/test", riddles(3))
    bench.write("arc_easy/train", riddles(3))
    before = gate_key(["arc_easy:0", "arc_easy:2"])
    assert gate_key(["arc_easy:2", "arc_easy:0"]) == before
    bench.write("arc_easy/train", riddles(4))
    examples = gate_key(["arc_easy:0", "arc_easy:2"])
    assert (examples["arc_easy:0"] == before["arc_easy:0"], examples["arc_easy:2"] == before["arc_easy:2"]) == (True, False)
    bench.write("arc_easy/test", riddles(3, answer=1))
    assert gate_key(["arc_easy:0"]) != {"arc_easy:0": before["arc_easy:0"]}
    with pytest.raises(ConfigError, match=r"the gate asks piqa:0, and .* lacks its files: no items: no file piqa"):
        gate_key(["piqa:0"])
    monkeypatch.delenv(BENCHMARKS_VARIABLE)
    with pytest.raises(ConfigError, match="the gate asks arc_easy:0: PHASEWISE_BENCHMARKS must name a folder"):
        gate_key(["arc_easy:0"])


def test_what_a_gate_cannot_judge_is_an_error(bench: Bench, folder: Path):
    bench.write("arc_easy/test", [*riddles(2), riddles(3)[2] | {"answerKey": "Z"}])
    with pytest.raises(EvaluationError, match=r"the gate asks arc_easy:0, which cannot be measured: .*'Z' is not in list\. Take it out"):
        gate_results(cast(Any, bench.scripted()), ["arc_easy:0"], ItemFolders(benchmarks=folder))
    half: Any = {"id": "one", "value": 0.5, "gold": [], "log_likelihoods": []}
    row: Any = {"benchmark": "f1:0", "metric": "f1", "value": 0.5, "baseline": 0.1, "setting": {}, "stderr": None, "items": 1}
    with pytest.raises(EvaluationError, match=r"right or wrong, found the value 0.5 of one. Take f1:0 out"):
        as_gate_result(row, [half])
