"""One checkpoint's evaluation: the benchmarks that a phase names through lm-eval, offline, and held-out bits per byte.

Importing this module is cheap; lm-eval is imported when it is first used.
"""

import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

import yaml
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import shared_special_tokens
from phasewise.tasks.evaluation.answers import BenchmarkResult, ItemAnswer, read_answers
from phasewise.tasks.evaluation.benchmark_folder import Benchmark, read_benchmark_folder
from phasewise.tasks.evaluation.bits_per_byte import bits_per_byte
from phasewise.tasks.evaluation.held_out import HeldOutTokens
from phasewise.tasks.evaluation.measured import made_of, needles_of, real_of
from phasewise.tasks.evaluation.renderings import ReadRenderings, Renderings, measure_renderings
from phasewise.tasks.evaluation.setting import read_setting
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.storage import as_path, file_system_of
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


class Evaluation(TypedDict):
    """What is measured of a checkpoint, and by which benchmarks.

    Attributes:
        benchmarks: those that were asked for; `results` has each of them.
        finite: whether bits per byte are numbers. Every answer to a benchmark is one: else there is no evaluation.
        renderings: where test items were to be read under two renderings.
    """

    benchmarks: list[str]
    benchmarks_digest: str
    results: list[BenchmarkResult]
    bits_per_byte: dict[str, float]
    macro_bits_per_byte: float
    finite: bool
    renderings: NotRequired[ReadRenderings]


def evaluate_model(
    *,
    params: Params,
    config: ModelConfig,
    tokenizer: Tokenizer,
    benchmarks: str | Path,
    names: Sequence[str],
    held_out: Mapping[str, HeldOutTokens],
    real: Path | None = None,
    renderings: Renderings | None = None,
    haystack: Sequence[str] = (),
    ends: Collection[int] = (),
) -> Evaluation:
    """Run the benchmarks of these names, and bits per byte on every component's held-out text.

    Args:
        benchmarks: the folder of those that are made here.
        real: the folder of the others, which are lm-eval's.
        renderings: test items to be read under two renderings.
        haystack: the words of the text that needles are hidden in.
        ends: the tokens that end what the model writes, beside the one that ends a document.

    Raises:
        ConfigError: that folder lacks what a benchmark needs.
        DataError: the benchmarks or the tokenizer are not what they should be.
        EvaluationError: the model gave an answer that is not finite, or a benchmark cannot be put to it.
    """
    described = read_benchmark_folder(benchmarks).only(made_of(names))
    model = open_model(params, config, tokenizer, held_out, ends)
    results = measure_benchmarks(model, benchmarks, names, real, haystack)
    measured = bits_per_byte(model.params, config, held_out)
    evaluation = Evaluation(
        benchmarks=sorted(names),
        benchmarks_digest=described.digest,
        results=results,
        bits_per_byte=measured.components,
        macro_bits_per_byte=measured.macro,
        finite=math.isfinite(measured.macro),
    )
    if renderings:
        evaluation["renderings"] = measure_renderings(model, renderings)
    return evaluation


def measure_benchmarks(
    model: "JaxLanguageModel", benchmarks: str | Path, names: Sequence[str], real: Path | None, haystack: Sequence[str] = ()
) -> list[BenchmarkResult]:
    """Scores and answers alone; arguments and errors as of `evaluate_model`."""
    described = read_benchmark_folder(benchmarks).only(made_of(names)).benchmarks
    found = _run_lm_eval(model, as_path(benchmarks), [benchmark.name for benchmark in described]) if described else {}
    results = [
        _result(benchmark, found, read_answers(benchmark, found["samples"][benchmark.name], model), precision=model.config.compute_dtype)
        for benchmark in described
    ]
    if labels := real_of(names):
        if real is None:
            raise DataError(f"{', '.join(labels)} are not made here: a folder with their items must be given, found none.")
        from phasewise.tasks.evaluation.suites.gated import gate_results

        results += gate_results(model, labels, real)
    if needles := needles_of(names):
        from phasewise.tasks.evaluation.suites.gated_needles import needle_results

        results += needle_results(model, needles, haystack)
    return results


def open_model(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, held_out: Mapping[str, HeldOutTokens], ends: Collection[int] = ()
) -> "JaxLanguageModel":
    """The weights as a language model, with the special tokens that the documents have; `ends` as of `evaluate_model`."""
    _go_offline()
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

    special = shared_special_tokens({name: held.special for name, held in held_out.items()})
    return JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special, ends=ends)


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


def _on_this_machine(items: Path, temporary: Path) -> Path:
    """lm-eval reads files of this machine alone: of a store's it gets a copy."""
    if file_system_of(items) is None:
        return items.resolve()
    copy = temporary / items.name
    copy.write_bytes(items.read_bytes())
    return copy.resolve()


def _write_definitions(benchmarks: Path, names: list[str], temporary: Path) -> Path:
    """The folder's YAML, completed with where its items are on this machine."""
    definitions = temporary / "definitions"
    definitions.mkdir()
    for name in names:
        definition = yaml.safe_load((benchmarks / f"{name}.yaml").read_text(encoding="utf-8"))
        items = str(_on_this_machine(benchmarks / f"{name}.jsonl", temporary))
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
