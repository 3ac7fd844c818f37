"""The evaluation of the checkpoint at a phase's end: benchmarks, held-out bits per byte, and the likelihood of answers."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml
from tokenizers import Tokenizer

from phasewise.tasks.data.template import chat_of, turn_end_ids
from phasewise.tasks.data.tokenizer import load_tokenizer, shared_special_tokens
from phasewise.tasks.evaluation import harness, settings
from phasewise.tasks.evaluation.benchmark_definitions import Asked, Definition, Part
from phasewise.tasks.evaluation.corpus_fit import Corpus, measure_fit, tokenize
from phasewise.tasks.evaluation.harness import BenchmarkResult, ItemAnswer
from phasewise.tasks.evaluation.held_out import HeldOutTokens, read_held_out_tokens
from phasewise.tasks.evaluation.made_benchmarks import Benchmark, read_benchmark_folder
from phasewise.tasks.evaluation.phase_evaluation import EvaluationRequest, finished_evaluation, read_schedule_point
from phasewise.tasks.evaluation.scoring import Window, bits_per_byte, score_windows
from phasewise.tasks.progress import advance, say
from phasewise.trainer.base.errors import CheckpointError, DataError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.checkpoints.state import average_of_last, kept_steps, last_steps, read_about, read_params, saved_params_digest
from phasewise.trainer.config import Component, ModelConfig, RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import counted_in_rows, read_manifest
from phasewise.trainer.model.params import Params
from phasewise.validations.limits import OWN_TEXT

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

MAX_AVERAGED = 4  # limit of a phase's last checkpoints that are averaged and compared
MIN_FOR_SPREAD = 3  # a straight line through fewer checkpoints leaves no spread


class Conversation(NamedTuple):
    """A held-out conversation, cut to the length of a row. `is_answer` marks the tokens of answers."""

    component: Component
    id: str
    tokens: np.ndarray
    is_answer: np.ndarray


class Point(NamedTuple):
    """The benchmarks and the macro bits per byte of a checkpoint."""

    results: list[BenchmarkResult]
    macro_bits_per_byte: float


def evaluate_phase(request: EvaluationRequest) -> dict[str, Any]:
    """Evaluate a phase's last weights, and the held-out bits per byte of weight averages."""
    run, measured = request.run, request.measured
    if found := finished_evaluation(run, request.key):
        return found
    tokenizer = load_tokenizer(as_path(request.tokenizer))
    caches = {name: as_path(url) for name, url in request.held_out.items()}
    held_out = read_held_out_tokens(caches, tokenizer, max_tokens=measured.held_out_tokens)
    haystack: Sequence[str] = ()
    if settings.needles_of(measured.benchmarks):
        from phasewise.tasks.evaluation.gate_benchmarks import words_of_held_out

        haystack = words_of_held_out({name: caches[name] for name in request.haystack}, tokenizer)
    chats = (chat_of(read_manifest(caches[name]).source) for name in sorted(run.caches))
    ends = turn_end_ids(tokenizer, (chat for chat in chats if chat is not None))
    checkpoint = Path(request.result["checkpoint"])
    params = read_params(checkpoint, run.model)
    found = evaluate_model(
        params=params, config=run.model, tokenizer=tokenizer, benchmarks=request.benchmarks, names=measured.benchmarks,
        held_out=held_out, real=request.real, renderings=measured.renderings, haystack=haystack, ends=ends,
        own_text=measured.held_out,
    )  # fmt: skip
    answers = answers_beside_parent(run, params, caches, measured)
    if answers:
        found["finite"] = found["finite"] and all(math.isfinite(item["nats"]) for item in answers["items"])

    @cache
    def measure_at(step: int) -> Point:
        model = open_model(read_params(checkpoint.parent / str(step), run.model), run.model, tokenizer, held_out, ends)
        results = measure_benchmarks(model, request.benchmarks, measured.benchmarks, request.real, haystack)
        return Point(results, bits_per_byte(model.params, run.model, held_out).macro if measured.every_steps else math.nan)

    # The gate takes the spread of the last checkpoints' scores as noise. A damaged checkpoint costs only the spread
    kept = len(kept_steps(checkpoint.parent, run))
    if kept >= MIN_FOR_SPREAD:
        try:
            earlier = [measure_at(step).results for step in last_steps(checkpoint.parent, run, min(kept, MAX_AVERAGED))[:-1]]
        except CheckpointError as error:
            say(f"{run.phase}: the spread of its last checkpoints is not measured: {error}")
        else:
            for number, result in enumerate(found["results"]):
                result["checkpoint_values"] = [*(results[number]["value"] for results in earlier), result["value"]]
    evaluation = {
        "phase": run.phase,
        "key": request.key,
        "measured_on": request.measured_on,
        "checkpoint": str(checkpoint),
        "params_digest": request.result["params_digest"],
        "weights": "last",
        "schedule": read_schedule_point(run),
        **found,
        **_averages(run, checkpoint, held_out),
        **({"answers": answers} if answers else {}),
        **({"curve": curve_of(run, checkpoint.parent, measured.every_steps, measure_at)} if measured.every_steps else {}),
    }
    write_sealed(RunFolder(run.output).evaluation, evaluation)
    return evaluation


def curve_of(run: RunConfig, folder: Path, every_steps: int, measure_at: Callable[[int], Point]) -> list[dict[str, Any]]:
    """Measure the kept checkpoints at multiples of `every_steps` before the phase's end. A damaged checkpoint has its reason."""
    curve: list[dict[str, Any]] = []
    for step in kept_steps(folder, run)[:-1]:
        if step % every_steps:
            continue
        try:
            results, macro = measure_at(step)
        except CheckpointError as error:
            say(f"{run.phase}: the checkpoint of step {step} is not measured: {error}")
            curve.append({"step": step, "why_not": str(error)})
            continue
        scores = [{name: one[name] for name in ("benchmark", "metric", "value", "stderr")} for one in results]
        curve.append({"step": step, "results": scores, "macro_bits_per_byte": macro})
    return curve


def evaluate_model(
    *, params: Params, config: ModelConfig, tokenizer: Tokenizer, benchmarks: str | Path, names: Sequence[str],
    held_out: Mapping[str, HeldOutTokens], real: settings.ItemFolders | None = None, renderings: settings.Renderings | None = None,
    haystack: Sequence[str] = (), ends: Collection[int] = (), own_text: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure the named benchmarks (`real` has the folders of items), and bits per byte of each component's held-out text, offline."""
    described = read_benchmark_folder(benchmarks).only(settings.made_of(names))
    model = open_model(params, config, tokenizer, held_out, ends)
    results = measure_benchmarks(model, benchmarks, names, real, haystack)
    measured = bits_per_byte(model.params, config, held_out)
    of_own_text: dict[str, dict[str, Any]] = {}  # each file and folder of an own held-out text, with a digest of its texts
    if own_text:
        corpus = Corpus(as_path(own_text).expanduser())
        texts = tokenize(corpus.documents(), model.tokenizer)
        for name, one in measure_fit({"last": model.params}, model.config, model.begin_of_text, texts).subsets.items():
            digest = corpus.subsets[name].text_digest
            of_own_text[name] = {"bits_per_byte": one["fit"]["last"]["bits_per_byte"], "digest": digest}
    return {
        "benchmarks": sorted(names),
        "benchmarks_digest": described.digest,
        "results": results,
        "bits_per_byte": measured.components,
        "macro_bits_per_byte": measured.macro,
        "finite": math.isfinite(measured.macro),
        **({"renderings": settings.measure_renderings(model, renderings)} if renderings else {}),
        **({OWN_TEXT: of_own_text} if own_text else {}),
    }


def open_model(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, held_out: Mapping[str, HeldOutTokens], ends: Collection[int] = ()
) -> "JaxLanguageModel":
    """Open the weights as a language model with the special tokens of the held-out documents."""
    with harness.offline_imports():
        from phasewise.tasks.evaluation.language_model import JaxLanguageModel

    special = shared_special_tokens({name: held.special for name, held in held_out.items()})
    return JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special, ends=ends)


def measure_benchmarks(
    model: "JaxLanguageModel", benchmarks: str | Path, names: Sequence[str], real: settings.ItemFolders | None, haystack: Sequence[str] = ()
) -> list[BenchmarkResult]:
    """Measure the named benchmarks. Arguments and errors as in `evaluate_model`."""
    described = read_benchmark_folder(benchmarks).only(settings.made_of(names)).benchmarks
    results: list[BenchmarkResult] = []
    for benchmark in described:
        advance("evaluate", len(results), len(names), f"benchmarks, now {benchmark.name}")
        results.append(_measure_made(model, as_path(benchmarks), benchmark))
    labels, needles = settings.real_of(names), settings.needles_of(names)
    if labels and real is None:
        raise DataError(f"{', '.join(labels)} are not made here: a folder with their items must be given, found none.")
    if labels or needles:
        from phasewise.tasks.evaluation.gate_benchmarks import gate_results, needle_results

        results += gate_results(model, labels, real) if real else []
        results += needle_results(model, needles, haystack)
    advance("evaluate", len(names), len(names), "benchmarks")
    return results


def _measure_made(model: "JaxLanguageModel", folder: Path, benchmark: Benchmark) -> BenchmarkResult:
    name, metric = benchmark.name, benchmark.metric
    task: dict[str, Any] = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    filter_name = str(task.get("filter_list", [{"name": "none"}])[0]["name"])
    definition = Definition(name=name, parts=(Part(task=name, file=f"{name}.jsonl"),), metric=metric, filter=filter_name)
    part = harness.PreparedPart(name, task, {task["test_split"]: (folder / f"{name}.jsonl").read_bytes()})
    asked = Asked(benchmark=name, shots=0, source="")
    prepared = harness.Prepared(definition, asked, (part,), items_digest=None, definition_digest=benchmark.definition_digest)
    try:
        with harness.quiet_harness(offline=True) as temporary:
            found = harness.put(model, harness.load_tasks(prepared, temporary), prepared, limit=None, bootstrap_iters=1).found
    except harness.NotMeasured as error:
        raise DataError(f"{name} cannot be put to this model: {error}") from None
    samples = found["samples"][name]
    if metric == "acc":
        scores = [[float(score) for score, _ in sample["filtered_resps"]] for sample in samples]
    else:  # each choice follows its item's opening after one space
        items = [sample["doc"] for sample in samples]
        scored = iter(model.log_likelihoods([(item["opening"], f" {choice}") for item in items for choice in item["choices"]]))
        scores = [[next(scored) for _ in item["choices"]] for item in items]
    constant = benchmark.baseline.answer
    answers = [
        ItemAnswer(
            id=sample["doc"]["id"],
            right=bool(sample[metric]),
            baseline_right=None if constant is None else sample["doc"]["answer"] == constant,
            group=sample["doc"].get("group"),
            gold=sample["doc"]["gold"],
            log_likelihoods=of_item,
        )
        for sample, of_item in zip(samples, scores, strict=True)
    ]
    return BenchmarkResult(
        benchmark=name, metric=metric, value=float(found["results"][name][f"{metric},{filter_name}"]),
        stderr=float(found["results"][name][f"{metric}_stderr,{filter_name}"]), items=benchmark.items, baseline=benchmark.baseline.value,
        answers=answers, setting=harness.read_setting(found, [name], filter_name=filter_name, precision=model.config.compute_dtype),
    )  # fmt: skip


def _averages(run: RunConfig, checkpoint: Path, held_out: Mapping[str, HeldOutTokens]) -> dict[str, Any]:
    """Measure the moving average and the mean of the last checkpoints. A damaged earlier checkpoint costs only the mean."""
    ema = None
    if run.keeps_average:
        ema = bits_per_byte(read_params(checkpoint, run.model, ema=True), run.model, held_out).macro
    mean, steps = None, ()
    if (kept := len(kept_steps(checkpoint.parent, run))) > 1:
        try:
            params, steps = average_of_last(checkpoint.parent, run, min(kept, MAX_AVERAGED))
            mean = bits_per_byte(params, run.model, held_out).macro
        except CheckpointError as error:
            say(f"{run.phase}: the mean of its last checkpoints is not measured: {error}")
    return {"ema_macro_bits_per_byte": ema, "mean_macro_bits_per_byte": mean, "mean_of_steps": list(steps)}


def answers_beside_parent(
    run: RunConfig, params: Params, held_out: Mapping[str, Path], measured: settings.Measured
) -> dict[str, Any] | None:
    """Measure the answers of held-out conversations in nats by the weights and the parent's. None for runs on all tokens."""
    if run.loss_on != "answers":
        return None
    seq_len, bound = run.model.seq_len, measured.held_out_tokens
    conversations: list[Conversation] = []
    for name in sorted(run.caches):
        conversations += read_conversations(name, held_out[name], seq_len, max_tokens=bound)
    nats = answer_nats(params, run.model, conversations)
    against, before = None, [None] * len(conversations)
    if run.start is not None:
        path = Path(run.start.checkpoint)
        if (found := saved_params_digest(path)) != run.start.params_digest:
            raise CheckpointError(
                f"{path}: expected the weights {run.start.params_digest[:16]} that the phase started from, found {found[:16]}. Train it "
                "again."
            )
        parent = ModelConfig.model_validate(read_about(path)["run"]["model"])
        against = RunFolder(as_path(run.start.checkpoint).parents[1]).path.name
        before = answer_nats(read_params(path, parent), parent.but(seq_len=seq_len), conversations)
    items = [
        {"component": one.component, "id": one.id, "tokens": int(one.is_answer.sum()), "nats": own, "parent_nats": parents}
        for one, own, parents in zip(conversations, nats, before, strict=True)
    ]
    return {"against": against, "items": items}


def read_conversations(name: Component, folder: Path, seq_len: int, *, max_tokens: int | None) -> list[Conversation]:
    """Read the first `max_tokens` of a component's held-out conversations, and keep conversations with an answer within a row."""
    cache = TokenCache.open(folder)
    spans = cache.spans()
    if spans is None:
        raise DataError(f"answers are measured on conversations, and the held-out cache of {name} in {folder} is of plain text.")
    found: list[Conversation] = []
    start = 0
    for document in cache.documents():
        tokens = document.tokens[:seq_len]
        is_answer = counted_in_rows(spans, np.array([start]), len(tokens))[0]
        is_answer[:1] = False  # the first token has no context
        if is_answer.any():
            end = int(np.flatnonzero(is_answer)[-1]) + 1
            found.append(Conversation(name, document.id, tokens[:end], is_answer[:end]))
        start += len(document.tokens)
        if max_tokens is not None and start >= max_tokens:
            break
    if not found:
        raise DataError(
            f"{name} must have a held-out conversation with an answer in its first {seq_len} tokens, found none in {folder}: give it more."
        )
    return found


def answer_nats(params: Params, config: ModelConfig, conversations: Sequence[Conversation]) -> list[float]:
    """Sum the negative log-likelihoods of each conversation's answer tokens."""
    windows = [Window(one.tokens[:-1].astype(np.int32), one.tokens[1:].astype(np.int32)) for one in conversations]
    scores = score_windows(params, config, windows)
    return [
        -float(scored.log_likelihoods[one.is_answer[1:]].sum(dtype=np.float64)) for one, scored in zip(conversations, scores, strict=True)
    ]
