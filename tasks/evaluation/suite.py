"""Measure a suite of benchmarks on a model. Valid kept results are read. A benchmark that cannot be measured has a row with the reason."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

import numpy as np

from phasewise.tasks.evaluation import harness
from phasewise.tasks.evaluation.benchmark_definitions import Asked, Definition, Suite
from phasewise.tasks.evaluation.harness import NotMeasured, Prepared, Put, Sample, Setting
from phasewise.tasks.evaluation.needles import Haystack, Needles, definition_of, prepare_needles
from phasewise.tasks.evaluation.own_benchmarks import find_benchmark
from phasewise.tasks.evaluation.sandbox import check_sandbox, run_program
from phasewise.tasks.progress import advance, say
from phasewise.trainer.base.errors import ConfigError, EvaluationError
from phasewise.trainer.base.identity import NotAsWritten, code_digest, digest_of_json, read_sealed, write_sealed
from phasewise.validations.evidence.proportions import score_interval

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

MEASURING = (
    "tasks/data/template.py",
    "validations/evidence/proportions.py",
    *(
        f"tasks/evaluation/{name}.py"
        for name in (
            "benchmark_definitions", "gate_benchmarks", "harness", "language_model", "needles", "own_benchmarks", "sandbox",
            "sandbox_child", "scoring", "suite",
        )
    ),
)  # fmt: skip
"""The files that decide a measured value. The code of the model itself is left out on purpose."""
COMMON_ANSWERS, PHRASES = 3, ("", "I do not know.")
CONSTANT_PROGRAM = {"humaneval": "    return []\n", "mbpp": ""}  # the constant answer to a benchmark of programs, for its floor


class Answer(TypedDict):
    """The answer to one item, named by task and number. `log_likelihoods` are nats of each choice or of the only right text."""

    id: str
    value: float
    gold: list[int]
    log_likelihoods: list[float]
    ungraded: bool  # the filter found no answer, or the item has no reference. lm-eval takes such an item as wrong


class SuiteResult(TypedDict):
    """A row of a suite. All items have equal weight."""

    benchmark: str
    metric: str
    filter: str
    shots: int
    source: str
    value: float | None
    stderr: float | None
    interval: list[float] | None  # 95 % interval of `value`, from all `ungraded` items wrong to all right
    items: int
    ungraded: int
    hole: str | None  # reason for a missing value
    choice_probability: float | None  # mean probability of the right choice or text
    others: dict[str, float]  # by `metric,filter`
    baseline: float | None  # the highest of `floors`
    floors: dict[str, float | None] | None
    limit: int | None
    cut: dict[str, int] | None
    max_new_tokens: list[int] | None  # the benchmark's limit and the applied limit
    remarks: list[str]  # reasons against a comparison with published values
    guarded: list[str]  # kernel guards around generated programs
    setting: Setting | None
    seconds: float


class Kept(TypedDict):
    """A kept result with its key and the digest of the weights."""

    key: str
    params_digest: str
    result: SuiteResult
    answers: list[Answer]


class Options(NamedTuple):
    """Options of a measurement. `benchmarks` None is the hub, `limit` measures only the first items, `haystack` returns unseen words."""

    benchmarks: Path | None
    limit: int | None = None
    allow_code: bool = False
    haystack: Haystack | None = None
    needles: Needles | None = None
    include: Path | None = None  # folder of own benchmarks


class Measured(NamedTuple):
    """A row for each benchmark, the file of kept results, and the labels that were read from it."""

    results: list[SuiteResult]
    path: Path
    read: tuple[str, ...]


def run_suite(
    suite: Suite, model: "JaxLanguageModel", options: Options, *, place: Path, weights: str, about: Mapping[str, Any]
) -> Measured:
    """Measure a suite, or read valid results. Each result is written at once next to `place`, with the fields of `about`."""
    from phasewise.trainer.step import params_digest

    if options.benchmarks and not options.benchmarks.is_dir():
        raise ConfigError(f"--benchmarks must be a folder with a folder for each benchmark, found none at {options.benchmarks}.")
    params = params_digest(model.params)
    named = {
        "params": params,
        "computation": model.config.model_dump(mode="json"),
        "tokenizer": digest_of_json([model.tokenizer.to_str(), model.begin_of_text, model.ends, model.begins_texts]),
        "seed": model.seed,
    }
    path = kept_path(place, suite.name, weights, options.limit)
    kept: dict[str, Kept] = {}
    with suppress(FileNotFoundError, NotAsWritten, KeyError):
        benchmarks: dict[str, Kept] = read_sealed(path)["benchmarks"]
        kept = {label: one for label, one in benchmarks.items() if one["params_digest"] == params}
    results: list[SuiteResult] = []
    read: list[str] = []
    for number, asked in enumerate(suite.asked, start=1):
        label = asked.label
        needles = options.needles or Needles(length=asked.length or 64)
        definition = definition_of(asked, needles) if asked.length else find_benchmark(asked.benchmark, options.include)
        try:
            if asked.length:
                prepared = prepare_needles(asked, model, options.haystack, needles=needles)
            else:
                prepared = harness.prepare(definition, asked, options.benchmarks, allow_code=options.allow_code)
            decides = {
                "benchmark": label,
                "model": named,
                "items": prepared.items_digest or harness.hub_items_digest(prepared),
                "definition": prepared.definition_digest,
                "limit": options.limit,
                "code": code_digest(*MEASURING),
            }
            key = digest_of_json(decides)
            if label in kept and kept[label]["key"] == key:
                read.append(label)
                results.append(kept[label]["result"])
                continue
            result, answers = measure(model, prepared, limit=options.limit)
        except NotMeasured as error:
            results.append(_row(definition, asked, hole=str(error)))
            say(f"{number} of {len(suite.asked)}: {label} not measured: {error}")
            continue
        kept[label] = Kept(key=key, params_digest=params, result=result, answers=answers)
        written = {one.label: kept[one.label] for one in suite.asked if one.label in kept}
        write_sealed(path, {**about, "suite": suite.name, "benchmarks": written})
        results.append(result)
        say(
            f"{number} of {len(suite.asked)}: {label} {result['metric']} {result['value']:.3f} (floor {result['baseline']:.3f}), "
            f"{result['items']:,} items, {result['seconds']:.1f} s"
        )
    return Measured(results, path, tuple(read))


def kept_path(place: Path, suite: str, weights: str, limit: int | None) -> Path:
    """Return the file of a suite next to the checkpoint or, for a run, next to the folder of checkpoints."""
    name = f"{suite}-{weights}" if limit is None else f"{suite}-{weights}-first-{limit}"
    of_run = place.parent.name == "checkpoints"
    folder = place.parents[1] / "evaluations" / place.name if of_run else place.with_name(f"{place.name}.evaluations")
    return folder / f"{name}.json"


def measure(model: "JaxLanguageModel", prepared: Prepared, *, limit: int | None) -> tuple[SuiteResult, list[Answer]]:
    """Measure a benchmark, and return its row with all answers."""
    began = time.perf_counter()
    definition, asked = prepared.definition, prepared.asked
    before = (model.num_contexts, model.num_cut_contexts)
    guarded: tuple[str, ...] = ()
    with harness.quiet_harness(offline=any(part.files for part in prepared.parts)) as temporary:
        found = harness.put(model, harness.load_tasks(prepared, temporary), prepared, limit=limit)
        samples = {name: harness.samples_of(found.found, name, definition.filter) for name in found.tasks}
        if definition.metric == "pass":
            [(name, items)] = samples.items()
            guarded = check_sandbox().guarded
            values = _run(definition.name, items, [str(item["filtered_resps"][0]) for item in items])
            answers = [
                Answer(id=f"{name}:{item['doc_id']}", value=value, gold=[], log_likelihoods=[], ungraded=False)
                for item, value in zip(items, values, strict=True)
            ]
            constant = _run(definition.name, items, [CONSTANT_PROGRAM[definition.name]] * len(items))
            floors = {"random": None, "constant": sum(constant) / len(constant), "longest_choice": None}
        else:
            answers: list[Answer] = []
            for name, items in samples.items():
                of_task = [_answer(found.tasks[name], name, item, definition) for item in items]
                reported = float(found.found["results"][name][f"{definition.metric},{definition.filter}"])
                mean = float(np.mean([answer["value"] for answer in of_task]))
                if abs(reported - mean) > 1e-9:
                    raise EvaluationError(
                        f"{name}: lm-eval reports {definition.metric} {reported} and its items have the mean {mean}: they must be equal."
                    )
                answers += of_task
            floors = measure_floors(found.tasks, samples, definition.metric)
    values = [answer["value"] for answer in answers]
    setting = harness.read_setting(found.found, found.tasks, filter_name=definition.filter, precision=model.config.compute_dtype)
    cut = {"contexts": model.num_cut_contexts - before[1], "of": model.num_contexts - before[0]}
    result = {
        **_row(definition, asked), "value": float(np.mean(values)),
        "stderr": float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None, "items": len(values),
        "ungraded": (ungraded := sum(answer["ungraded"] for answer in answers)),
        "interval": list(score_interval(sum(values), len(values), ungraded)) if min(values) >= 0 and max(values) <= 1 else None,
        "choice_probability": _choice_probability(answers), "others": _others(found, definition),
        "baseline": max(floor for floor in floors.values() if floor is not None), "floors": floors, "limit": limit, "cut": cut,
        "max_new_tokens": list(found.max_new_tokens) if found.max_new_tokens else None,
        "remarks": _remarks(definition.remark, setting, cut, limit, found.max_new_tokens, model), "guarded": list(guarded),
        "setting": setting, "seconds": round(time.perf_counter() - began, 3),
    }  # fmt: skip
    return cast(SuiteResult, result), answers


def _row(definition: Definition, asked: Asked, *, hole: str | None = None) -> SuiteResult:
    return SuiteResult(
        benchmark=asked.label, metric=definition.metric, filter=definition.filter, shots=asked.shots, source=asked.source, value=None,
        stderr=None, interval=None, items=0, ungraded=0, hole=hole, choice_probability=None, others={}, baseline=None, floors=None,
        limit=None, cut=None, max_new_tokens=None, remarks=[], guarded=[], setting=None, seconds=0.0,
    )  # fmt: skip


def program_of(benchmark: str, item: Mapping[str, Any], written: str) -> str:
    """Join generated code with the item's tests."""
    if benchmark == "humaneval":
        return f"{item['prompt']}{written}\n{item['test']}\ncheck({item['entry_point']})\n"
    return "\n".join([written, item["test_setup_code"], *item["test_list"], ""])


def _run(benchmark: str, items: Sequence[Sample], written: Sequence[str]) -> list[float]:
    passed: list[float] = []
    for item, text in zip(items, written, strict=True):  # parallel programs would share the limited time
        passed.append(float(run_program(program_of(benchmark, item["doc"], text)).passed))
        advance("programs", len(passed), len(items))
    return passed


def _answer(task: Any, name: str, sample: Sample, definition: Definition) -> Answer:
    metric = definition.metric
    if metric not in sample:
        raise EvaluationError(f"{name} must give the metric {metric}, found {', '.join(sample['metrics'])}: correct its definition.")
    value = float(sample[metric])
    if not math.isfinite(value):
        raise EvaluationError(f"{name} must give a finite {metric}, found {value} for its item {sample['doc_id']}.")
    gold: list[int] = []
    scores: list[float] = []
    if task.OUTPUT_TYPE == "multiple_choice":
        doc = sample["doc"]
        choices = task.doc_to_choice(doc)
        target = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
        every = target if isinstance(target, list) else [target]
        positions = [choices.index(one) if isinstance(one, str) and one in choices else one for one in every]
        # lm-eval only warns about an answer outside the choices, and counts it as wrong
        if not positions or not all(isinstance(position, int) and 0 <= position < len(choices) for position in positions):
            raise NotMeasured(
                f"the answer of {name}'s item {sample['doc_id']} must be one of its {len(choices)} choices, found {target!r}: correct the "
                "item."
            )
        gold = [int(position) for position in positions]
        scores = [float(score) for score, _ in sample["filtered_resps"]][: len(choices)]
    elif task.OUTPUT_TYPE == "loglikelihood":
        gold, scores = [0], [float(sample["filtered_resps"][0][0])]
    ungraded = False
    if task.OUTPUT_TYPE == "generate_until" and value == 0:  # the filter found no answer in the text, or the item has no reference
        steps = [step for one in task.config.filter_list or () if one["name"] == definition.filter for step in one["filter"]]
        fallbacks = {"", *(str(step.get("fallback", "[invalid]")) for step in steps)}
        references = sample["target"] if isinstance(sample["target"], list) else [sample["target"]]
        ungraded = str(sample["filtered_resps"][0]).strip() in fallbacks or not any(str(one).strip() for one in references)
    return Answer(id=f"{name}:{sample['doc_id']}", value=value, gold=gold, log_likelihoods=scores, ungraded=ungraded)


def measure_floors(tasks: Mapping[str, Any], samples: Mapping[str, Sequence[Sample]], metric: str) -> dict[str, float | None]:
    """Score a random choice, the best constant answer and the longest choice by lm-eval's metric. None without choices."""
    pairs = [(tasks[name], sample["doc"], sample["target"]) for name, found in samples.items() for sample in found]
    kinds = {task.OUTPUT_TYPE for task, _, _ in pairs}
    if kinds == {"loglikelihood"}:
        targets = Counter(str(target).strip() for _, _, target in pairs)
        return {"random": None, "constant": targets.most_common(1)[0][1] / len(pairs), "longest_choice": None}
    if kinds != {"multiple_choice"}:
        # GSM8K has the result after `####`
        answers: Counter[str] = Counter()
        for _, _, target in pairs:
            answers.update({str(one).rpartition("#### ")[2].strip() for one in (target if isinstance(target, list) else [target])})
        texts = dict.fromkeys([*(answer for answer, _ in answers.most_common(COMMON_ANSWERS)), *PHRASES])
        values = [np.mean([float(task.process_results(doc, [text])[metric]) for task, doc, _ in pairs]) for text in texts]
        return {"random": None, "constant": float(max(values)), "longest_choice": None}
    rights: list[list[float]] = []
    longest: list[float] = []
    for task, doc, _ in pairs:
        choices = task.doc_to_choice(doc)
        right: list[float] = []
        for chosen in range(len(choices)):
            answer = [(0.0, True) if position == chosen else (-1e9, False) for position in range(len(choices))]
            right.append(float(task.process_results(doc, answer)[metric]))
        rights.append(right)
        longest.append(right[int(np.argmax([len(choice) for choice in choices]))])
    positions = range(max(map(len, rights)))
    constant = max(np.mean([right[position] if position < len(right) else 0.0 for right in rights]) for position in positions)
    random = float(np.mean([np.mean(right) for right in rights]))
    return {"random": random, "constant": float(constant), "longest_choice": float(np.mean(longest))}


def _choice_probability(answers: Sequence[Answer]) -> float | None:
    """Return the mean probability of the right choices among all choices, or of the right text itself."""
    if not all(answer["log_likelihoods"] for answer in answers):
        return None
    shares: list[float] = []
    for answer in answers:
        scores = np.array(answer["log_likelihoods"], np.float64)
        likelihoods = np.exp(scores - (scores.max() if len(scores) > 1 else 0.0))
        shares.append(float(likelihoods[answer["gold"]].sum() / (likelihoods.sum() if len(scores) > 1 else 1.0)))
    return float(np.mean(shares))


def _others(found: Put, definition: Definition) -> dict[str, float]:
    """Average lm-eval's remaining values over the tasks, weighted by items."""
    counts = {name: found.found["n-samples"][name]["effective"] for name in found.tasks}
    totals: dict[str, float] = {}
    for name, count in counts.items():
        for key, value in found.found["results"][name].items():
            is_value = "," in key and not key.partition(",")[0].endswith("_stderr") and not key.startswith("bypass,")
            if is_value and key != f"{definition.metric},{definition.filter}" and isinstance(value, int | float):
                totals[key] = totals.get(key, 0.0) + count * float(value)
    return {key: total / sum(counts.values()) for key, total in sorted(totals.items()) if math.isfinite(total)}


def _remarks(
    remark: str, setting: Setting, cut: Mapping[str, int], limit: int | None, new_tokens: tuple[int, int] | None, model: "JaxLanguageModel"
) -> list[str]:
    remarks = [remark] if remark else []
    if limit is not None:
        remarks.append(f"only the first {setting['asked']:,} of {setting['items']:,} items")
    if cut["contexts"]:
        remarks.append(f"{cut['contexts']:,} of {cut['of']:,} contexts lost their beginning: the model sees fewer tokens")
    if new_tokens and new_tokens[1] < new_tokens[0]:
        remarks.append(f"at most {new_tokens[1]:,} new tokens, where the benchmark lets it write {new_tokens[0]:,}")
    if model.max_length != model.trained_length:
        remarks.append(f"it reads {model.max_length:,} tokens, and was trained on rows of {model.trained_length:,}")
    return remarks
