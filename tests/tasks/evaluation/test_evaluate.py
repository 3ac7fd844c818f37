import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tasks.evaluation.benchmark_folder import read_benchmarks
from tasks.evaluation.evaluate import evaluate_model
from trainer.config import ModelConfig
from trainer.errors import DataError
from trainer.model.params import Params


def test_a_checkpoint_is_evaluated_offline_and_standard_output_stays_clean(
    params: Params,
    config: ModelConfig,
    tokenizer: Tokenizer,
    benchmarks: Path,
    caches: Mapping[str, Path],
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, held_out=caches)
    assert capfd.readouterr().out == ""
    assert found["finite"] is True
    assert [(result["benchmark"], result["metric"]) for result in found["results"]] == [
        ("continuation", "acc_norm"),
        ("next_word", "exact_match"),
    ]
    for result, described in zip(found["results"], read_benchmarks(benchmarks).benchmarks, strict=True):
        assert (result["items"], result["baseline"]) == (described.items, described.baseline.value)
        assert 0 <= result["value"] <= 1
    value, items = found["results"][0]["value"], found["results"][0]["items"]
    assert found["results"][0]["stderr"] == pytest.approx((value * (1 - value) / (items - 1)) ** 0.5)
    assert found["bits_per_byte"].keys() == caches.keys()
    assert found["macro_bits_per_byte"] == pytest.approx(sum(found["bits_per_byte"].values()) / len(caches))
    assert json.loads(json.dumps(found)) == found
    again = evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, held_out=caches)
    assert again == found


def test_a_broken_model_is_told_from_a_bad_one(
    broken_params: Params, config: ModelConfig, tokenizer: Tokenizer, benchmarks: Path, caches: Mapping[str, Path]
) -> None:
    found = evaluate_model(params=broken_params, config=config, tokenizer=tokenizer, benchmarks=benchmarks, held_out=caches)
    assert found["finite"] is False
    assert found["results"][0]["value"] > 0


def test_a_broken_folder_is_refused_before_anything_runs(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, tmp_path: Path, caches: Mapping[str, Path]
) -> None:
    with pytest.raises(DataError, match="holds no benchmarks"):
        evaluate_model(params=params, config=config, tokenizer=tokenizer, benchmarks=tmp_path, held_out=caches)


def test_importing_is_cheap() -> None:
    code = "import sys, tasks.evaluation.evaluate; print([name for name in ('lm_eval', 'datasets') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
