import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import special_tokens
from phasewise.tasks.evaluation.checkpoint import evaluate_model
from phasewise.tasks.evaluation.held_out import HeldOutTokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.made_benchmarks import read_benchmark_folder
from phasewise.trainer.base.errors import DataError, EvaluationError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params
from phasewise.validations.evidence.floor import measure_floor

BOTH = ("word_order", "next_word")


def test_a_checkpoint_is_evaluated_offline_and_standard_output_stays_clean(
    params: Params,
    config: ModelConfig,
    tokenizer: Tokenizer,
    benchmarks: Path,
    held_out_tokens: Mapping[str, HeldOutTokens],
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, names=BOTH, held_out=held_out_tokens)
    assert capfd.readouterr().out == ""
    assert found["finite"] is True
    assert found["benchmarks_digest"] == read_benchmark_folder(benchmarks).digest
    assert [(result["benchmark"], result["metric"]) for result in found["results"]] == [
        ("word_order", "acc"),
        ("next_word", "exact_match"),
    ]
    for result, described in zip(found["results"], read_benchmark_folder(benchmarks).benchmarks, strict=True):
        assert (result["items"], result["baseline"]) == (described.items, described.baseline.value)
        assert 0 <= result["value"] <= 1
        answers = result["answers"]
        assert len({answer["id"] for answer in answers}) == described.items
        assert (result["setting"]["items"], result["setting"]["asked"], result["setting"]["shots"]) == (described.items, described.items, 0)
        assert result["setting"]["precision"] == "float32"
        assert result["value"] == pytest.approx(sum(answer["right"] for answer in answers) / described.items)
    value, items = found["results"][0]["value"], found["results"][0]["items"]
    assert found["results"][0]["stderr"] == pytest.approx((value * (1 - value) / (items - 1)) ** 0.5)
    assert found["bits_per_byte"].keys() == held_out_tokens.keys()
    assert found["macro_bits_per_byte"] == pytest.approx(sum(found["bits_per_byte"].values()) / len(held_out_tokens))
    assert json.loads(json.dumps(found)) == found
    again = evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, names=BOTH, held_out=held_out_tokens)
    assert again == found


def test_only_what_is_named_is_measured(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, benchmarks: Path, held_out_tokens: Mapping[str, HeldOutTokens]
) -> None:
    def found(*names: str) -> dict[str, Any]:
        return evaluate_model(
            params=params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, names=names, held_out=held_out_tokens
        )

    both = found(*BOTH)
    one = found("next_word")
    assert (both["benchmarks"], one["benchmarks"]) == (["next_word", "word_order"], ["next_word"])
    assert one["results"] == both["results"][1:]
    assert one["bits_per_byte"] == both["bits_per_byte"]
    assert one["benchmarks_digest"] != both["benchmarks_digest"]
    with pytest.raises(DataError, match="bananas are not made here: a folder with their items must be given, found none"):
        found("bananas")


def test_a_broken_model_is_no_bad_one_but_an_error(
    broken_params: Params, config: ModelConfig, tokenizer: Tokenizer, benchmarks: Path, held_out_tokens: Mapping[str, HeldOutTokens]
) -> None:
    with pytest.raises(EvaluationError, match="found nan for request 0"):
        evaluate_model(
            params=broken_params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, names=BOTH, held_out=held_out_tokens
        )


def test_a_choice_is_scored_as_one_word_after_the_opening(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, benchmarks: Path, held_out_tokens: Mapping[str, HeldOutTokens]
) -> None:
    found = evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, names=BOTH, held_out=held_out_tokens)
    model = JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special_tokens(tokenizer))
    for result in found["results"]:
        lines = (benchmarks / f"{result['benchmark']}.jsonl").read_text(encoding="utf-8").splitlines()
        for item, answer in list(zip(map(json.loads, lines), result["answers"], strict=True))[::7]:
            pairs = [(item["opening"], f" {choice}") for choice in item["choices"]]
            scores = model.loglikelihood([Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)])
            assert (answer["id"], answer["group"], answer["gold"]) == (item["id"], item.get("group"), item["gold"])
            assert answer["log_likelihoods"] == pytest.approx([score for score, _ in scores], rel=1e-4)
    said = [answer["baseline_right"] for answer in found["results"][1]["answers"]]
    assert sum(map(bool, said)) / len(said) == found["results"][1]["baseline"]
    assert {answer["baseline_right"] for answer in found["results"][0]["answers"]} == {None}


def test_a_model_that_reads_is_distinguished_from_one_that_does_not(
    reading_params: Params,
    blind_params: Params,
    reading_config: ModelConfig,
    tokenizer: Tokenizer,
    benchmarks: Path,
    held_out_tokens: Mapping[str, HeldOutTokens],
) -> None:
    """The two differ in nothing but that one looks at the last token; the other knows how common each word is, and gains nothing by it."""
    read, blind = (
        [
            measure_floor(result)
            for result in evaluate_model(
                params=params, config=reading_config, tokenizer=tokenizer, benchmarks=benchmarks, names=BOTH, held_out=held_out_tokens
            )["results"]
        ]
        for params in (reading_params, blind_params)
    )
    assert max(floor.likelihood_p_value for floor in read) < 1e-4
    assert [floor.likelihood_p_value for floor in blind] == [1, 1]
    assert [floor.mean_margin_nats for floor in blind] == pytest.approx([0, 0], abs=1e-4)
    assert min(floor.p_value for floor in blind) > 0.2


def test_fresh_weights_are_at_the_floor(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, benchmarks: Path, held_out_tokens: Mapping[str, HeldOutTokens]
) -> None:
    found = evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, names=BOTH, held_out=held_out_tokens)
    assert min(measure_floor(result).p_value for result in found["results"]) > 0.02


def test_a_broken_folder_is_refused_before_anything_runs(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, tmp_path: Path, held_out_tokens: Mapping[str, HeldOutTokens]
) -> None:
    with pytest.raises(DataError, match="holds no benchmarks"):
        evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=tmp_path, names=BOTH, held_out=held_out_tokens)


def test_importing_is_cheap() -> None:
    code = "import sys, phasewise.tasks.evaluation.checkpoint; print([name for name in ('lm_eval', 'datasets') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
