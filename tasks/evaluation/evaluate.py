"""One checkpoint's evaluation: the benchmarks that a phase names through lm-eval, offline, and held-out bits per byte.

Importing this module is cheap; lm-eval is imported when it is first used.
"""

import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import yaml
from tokenizers import Tokenizer

from tasks.data.special_tokens import shared_special_tokens
from tasks.evaluation.answers import ItemAnswer, read_answers
from tasks.evaluation.benchmark_folder import Benchmark, read_benchmark_folder
from tasks.evaluation.bits_per_byte import bits_per_byte
from tasks.evaluation.held_out import HeldOutTokens
from tasks.evaluation.setting import Setting, read_setting
from trainer.config import ModelConfig
from trainer.model.params import Params

if TYPE_CHECKING:
    from tasks.evaluation.language_model import JaxLanguageModel

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


class BenchmarkResult(TypedDict):
    """A benchmark's score with its standard error beside what the best dumb answer scores, what was answered to each item, and how the
    benchmark was put."""

    benchmark: str
    metric: str
    value: float
    stderr: float
    items: int
    baseline: float
    answers: list[ItemAnswer]
    setting: Setting


class Evaluation(TypedDict):
    """What is measured of a checkpoint, and by which benchmarks.

    Attributes:
        benchmarks: those that were asked for; `results` has each of them.
        finite: whether bits per byte are numbers. Every answer to a benchmark is one: else there is no evaluation.
    """

    benchmarks: list[str]
    benchmarks_digest: str
    results: list[BenchmarkResult]
    bits_per_byte: dict[str, float]
    macro_bits_per_byte: float
    finite: bool


def evaluate_model(
    *,
    params: Params,
    config: ModelConfig,
    tokenizer: Tokenizer,
    benchmarks: str | Path,
    names: Sequence[str],
    held_out: Mapping[str, HeldOutTokens],
) -> Evaluation:
    """Run the benchmarks of these names, and bits per byte on every component's held-out text.

    Args:
        benchmarks: the folder that they are in.

    Raises:
        DataError: the benchmarks or the tokenizer are not what they should be.
        EvaluationError: the model gave an answer that is not finite.
    """
    described = read_benchmark_folder(benchmarks).only(names)
    _go_offline()
    from tasks.evaluation.language_model import JaxLanguageModel

    special = shared_special_tokens({name: held.special for name, held in held_out.items()})
    model = JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special)
    found = _run_lm_eval(model, Path(benchmarks), [benchmark.name for benchmark in described.benchmarks])
    results = [
        _result(benchmark, found, read_answers(benchmark, found["samples"][benchmark.name], model), precision=config.compute_dtype)
        for benchmark in described.benchmarks
    ]
    measured = bits_per_byte(model.params, config, held_out)
    return Evaluation(
        benchmarks=sorted(names),
        benchmarks_digest=described.digest,
        results=results,
        bits_per_byte=measured.components,
        macro_bits_per_byte=measured.macro,
        finite=math.isfinite(measured.macro),
    )


def _run_lm_eval(model: "JaxLanguageModel", benchmarks: Path, names: list[str]) -> Mapping[str, Any]:
    """lm-eval's scores by benchmark as `results`, its record of each item as `samples`, and how each was put.

    `datasets` caches by path and time of change, so its cache is a fresh folder each time. lm-eval's own `use_cache` ignores the
    model and stays off.
    """
    import datasets
    import lm_eval.api.task
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager
    from tqdm import tqdm

    datasets.disable_progress_bars()
    lm_eval.api.task.tqdm = partial(tqdm, disable=True)
    with tempfile.TemporaryDirectory(prefix="phasewise-evaluation-") as temporary, contextlib.redirect_stdout(sys.stderr):
        definitions = _write_definitions(benchmarks, names, Path(temporary))
        manager = TaskManager(include_path=[str(definitions)], include_defaults=False)
        # One iteration, not 0: the error of a mean is then given, in closed form, and nothing is drawn.
        found = evaluate(lm=model, task_dict=manager.load(names), bootstrap_iters=1, log_samples=True)
    assert found is not None
    return cast(Mapping[str, Any], found)


def _write_definitions(benchmarks: Path, names: list[str], temporary: Path) -> Path:
    """The folder's YAML, completed with where its items are on this machine."""
    definitions = temporary / "definitions"
    definitions.mkdir()
    for name in names:
        definition = yaml.safe_load((benchmarks / f"{name}.yaml").read_text(encoding="utf-8"))
        items = str((benchmarks / f"{name}.jsonl").resolve())
        definition["dataset_kwargs"] = {"data_files": {definition["test_split"]: items}, "cache_dir": str(temporary / "datasets")}
        (definitions / f"{name}.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    return definitions


def _result(benchmark: Benchmark, found: Mapping[str, Any], answers: list[ItemAnswer], *, precision: str) -> BenchmarkResult:
    """A benchmark has one metric and one filter: lm-eval names it `metric,filter`."""
    scores = found["results"][benchmark.name]
    [(key, value)] = [(key, value) for key, value in scores.items() if key.startswith(f"{benchmark.metric},")]
    return BenchmarkResult(
        benchmark=benchmark.name,
        metric=benchmark.metric,
        value=float(value),
        stderr=float(scores[key.replace(",", "_stderr,", 1)]),
        items=benchmark.items,
        baseline=benchmark.baseline.value,
        answers=answers,
        setting=read_setting(found, benchmark.name, filter_name=key.split(",", 1)[1], precision=precision),
    )


def _go_offline() -> None:
    """The hub's libraries read these when they are first imported."""
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
