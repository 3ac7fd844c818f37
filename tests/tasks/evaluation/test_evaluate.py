import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tasks.evaluation.benchmark_folder import read_benchmarks
from tasks.evaluation.evaluate import evaluate_model
from tasks.evaluation.held_out import HeldOutTokens
from trainer.config import ModelConfig
from trainer.errors import DataError
from trainer.model.params import Params


def test_a_checkpoint_is_evaluated_offline_and_standard_output_stays_clean(
    params: Params,
    config: ModelConfig,
    tokenizer: Tokenizer,
    benchmarks: Path,
    held_out_tokens: Mapping[str, HeldOutTokens],
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, held_out=held_out_tokens)
    assert capfd.readouterr().out == ""
    assert found["finite"] is True
    assert [(result["benchmark"], result["metric"]) for result in found["results"]] == [
        ("word_order", "acc"),
        ("next_word", "exact_match"),
    ]
    for result, described in zip(found["results"], read_benchmarks(benchmarks).benchmarks, strict=True):
        assert (result["items"], result["baseline"]) == (described.items, described.baseline.value)
        assert 0 <= result["value"] <= 1
    value, items = found["results"][0]["value"], found["results"][0]["items"]
    assert found["results"][0]["stderr"] == pytest.approx((value * (1 - value) / (items - 1)) ** 0.5)
    assert found["bits_per_byte"].keys() == held_out_tokens.keys()
    assert found["macro_bits_per_byte"] == pytest.approx(sum(found["bits_per_byte"].values()) / len(held_out_tokens))
    assert json.loads(json.dumps(found)) == found
    again = evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, held_out=held_out_tokens)
    assert again == found


def test_a_broken_model_is_told_from_a_bad_one(
    broken_params: Params, config: ModelConfig, tokenizer: Tokenizer, benchmarks: Path, held_out_tokens: Mapping[str, HeldOutTokens]
) -> None:
    found = evaluate_model(params=broken_params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, held_out=held_out_tokens)
    assert found["finite"] is False
    assert found["results"][0]["value"] > 0


def test_a_broken_folder_is_refused_before_anything_runs(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, tmp_path: Path, held_out_tokens: Mapping[str, HeldOutTokens]
) -> None:
    with pytest.raises(DataError, match="holds no benchmarks"):
        evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=tmp_path, held_out=held_out_tokens)


def test_importing_is_cheap() -> None:
    code = "import sys, tasks.evaluation.evaluate; print([name for name in ('lm_eval', 'datasets') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
