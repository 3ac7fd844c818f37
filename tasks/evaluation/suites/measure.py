"""One benchmark of a suite: from lm-eval's record of each item to a row."""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phasewise.tasks.evaluation.setting import Setting, read_setting
from phasewise.tasks.evaluation.suites.floors import Floors, highest, measure_floors
from phasewise.tasks.evaluation.suites.harness import Put, Sample, load_tasks, put, quiet_harness, samples_of
from phasewise.tasks.evaluation.suites.prepare import Hole, Prepared
from phasewise.tasks.evaluation.suites.programs import code_floors, score_programs
from phasewise.tasks.evaluation.suites.result import Answer, Cut, SuiteResult
from phasewise.trainer.base.errors import DataError, EvaluationError

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel


class Scored(NamedTuple):
    """Values of the metric by item, with what else counts of them."""

    values: list[float]
    answers: list[Answer]
    floors: Floors
    guarded: tuple[str, ...]


def measure(model: "JaxLanguageModel", prepared: Prepared, *, limit: int | None) -> tuple[SuiteResult, list[Answer]] | Hole:
    """A benchmark's row, and the answer to each of its items.

    Raises:
        EvaluationError: an answer is not finite, or lm-eval did not do as it was asked.
    """
    began = time.perf_counter()
    offline = any(part.files for part in prepared.parts)
    with tempfile.TemporaryDirectory(prefix="phasewise-suite-") as temporary, quiet_harness(offline=offline):
        tasks = load_tasks(prepared, Path(temporary))
        if isinstance(tasks, Hole):
            return tasks
        before = (model.num_contexts, model.num_cut_contexts)
        found = put(model, tasks, prepared, limit=limit)
        if isinstance(found, Hole):
            return found
        cut = Cut(contexts=model.num_cut_contexts - before[1], of=model.num_contexts - before[0])
        try:
            scored = _score(found, prepared)
        except DataError as error:
            return Hole(str(error))
        setting = _setting(found, prepared, precision=model.config.compute_dtype)
    seconds = time.perf_counter() - began
    row = _row(found, prepared, scored, setting=setting, cut=cut, limit=limit, seconds=seconds, longer=_reads_longer(model))
    return row, scored.answers


def _reads_longer(model: "JaxLanguageModel") -> list[str]:
    """That the model reads more than it was trained on, in words; nothing where it does not."""
    if model.max_length == model.trained_length:
        return []
    return [f"it reads {model.max_length:,} tokens, and was trained on rows of {model.trained_length:,}"]


def _score(found: Put, prepared: Prepared) -> Scored:
    definition = prepared.definition
    samples = {name: samples_of(found.found, name, definition.filter) for name in found.tasks}
    if definition.runs_code:
        [(name, of_task)] = samples.items()
        values, guarded = score_programs(definition.name, of_task)
        answers = [_answer(name, sample, value, [], []) for sample, value in zip(of_task, values, strict=True)]
        return Scored(values, answers, code_floors(definition.name, of_task), guarded)
    answers = [
        _read_answer(found.tasks[name], name, sample, _value(sample, definition.metric, name))
        for name, of_task in samples.items()
        for sample in of_task
    ]
    _check_means(found.found, samples, prepared)
    return Scored([answer["value"] for answer in answers], answers, measure_floors(found.tasks, samples, definition.metric), ())


def _value(sample: Sample, metric: str, task: str) -> float:
    if metric not in sample:
        raise EvaluationError(f"{task} must give the metric {metric}, found {', '.join(sample['metrics'])}: correct its definition.")
    value = float(sample[metric])
    if not math.isfinite(value):
        raise EvaluationError(f"{task} must give a finite {metric}, found {value} for its item {sample['doc_id']}.")
    return value


def _read_answer(task: Any, name: str, sample: Sample, value: float) -> Answer:
    if task.OUTPUT_TYPE == "multiple_choice":
        scores = [float(score) for score, _ in sample["filtered_resps"]]
        gold = _gold(task, name, sample)
        return _answer(name, sample, value, gold, scores[: len(task.doc_to_choice(sample["doc"]))])
    if task.OUTPUT_TYPE == "loglikelihood":
        return _answer(name, sample, value, [0], [float(sample["filtered_resps"][0][0])])
    return _answer(name, sample, value, [], [])


def _answer(name: str, sample: Sample, value: float, gold: list[int], scores: list[float]) -> Answer:
    return Answer(id=f"{name}:{sample['doc_id']}", value=value, gold=gold, log_likelihoods=scores)


def _gold(task: Any, name: str, sample: Sample) -> list[int]:
    """Positions of the right choices. lm-eval counts an item whose answer is none of its choices as wrong, with a warning.

    Raises:
        DataError: the answer is none of the choices.
    """
    doc = sample["doc"]
    choices = task.doc_to_choice(doc)
    target = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    every = target if isinstance(target, list) else [target]
    places = [choices.index(one) if isinstance(one, str) and one in choices else one for one in every]
    if not places or not all(isinstance(place, int) and 0 <= place < len(choices) for place in places):
        raise DataError(
            f"the answer of {name}'s item {sample['doc_id']} must be one of its {len(choices)} choices, found {target!r}: correct the item."
        )
    return [int(place) for place in places]


def _check_means(found: Mapping[str, Any], samples: Mapping[str, Sequence[Sample]], prepared: Prepared) -> None:
    """The mean of the items is what lm-eval reports, under the metric and the filter that count."""
    metric, filter_name = prepared.definition.metric, prepared.definition.filter
    for name, of_task in samples.items():
        reported = float(found["results"][name][f"{metric},{filter_name}"])
        mean = float(np.mean([float(sample[metric]) for sample in of_task]))
        if abs(reported - mean) > 1e-9:
            raise EvaluationError(f"{name}: lm-eval reports {metric} {reported} and its items have the mean {mean}: they must be equal.")


def _setting(found: Put, prepared: Prepared, *, precision: str) -> Setting:
    """How the parts were put, as one."""
    names, filter_name = list(found.tasks), prepared.definition.filter
    settings = [read_setting(found.found, name, filter_name=filter_name, precision=precision) for name in names]
    if len(settings) == 1:
        return settings[0]
    from phasewise.trainer.base.identity import digest_of_json

    return Setting(
        version=", ".join(sorted({one["version"] for one in settings})),
        shots=prepared.asked.shots,
        filter=filter_name,
        items=sum(one["items"] for one in settings),
        asked=sum(one["asked"] for one in settings),
        items_digest=digest_of_json([one["items_digest"] for one in settings]),
        prompts_digest=digest_of_json([one["prompts_digest"] for one in settings]),
        precision=precision,
    )


def _row(
    found: Put, prepared: Prepared, scored: Scored, *, setting: Setting, cut: Cut, limit: int | None, seconds: float, longer: list[str]
) -> SuiteResult:  # fmt: skip
    definition, asked, count = prepared.definition, prepared.asked, len(scored.values)
    return SuiteResult(
        benchmark=asked.label,
        metric=definition.metric,
        filter=definition.filter,
        shots=asked.shots,
        source=asked.source,
        value=float(np.mean(scored.values)),
        stderr=float(np.std(scored.values, ddof=1) / math.sqrt(count)) if count > 1 else None,
        items=count,
        hole=None,
        choice_probability=_choice_probability(scored.answers),
        others=_others(found, definition.metric, definition.filter),
        baseline=highest(scored.floors),
        floors=scored.floors,
        limit=limit,
        cut=cut,
        max_new_tokens=list(found.max_new_tokens) if found.max_new_tokens else None,
        remarks=_remarks(definition.remark, setting, cut=cut, limit=limit, max_new_tokens=found.max_new_tokens) + longer,
        guarded=list(scored.guarded),
        setting=setting,
        seconds=round(seconds, 3),
    )


def _choice_probability(answers: Sequence[Answer]) -> float | None:
    """Mean probability of the right choice among the choices, each weighed by its likelihood; of a text without others its own."""
    if not all(answer["log_likelihoods"] for answer in answers):
        return None
    shares: list[float] = []
    for answer in answers:
        scores = np.array(answer["log_likelihoods"], np.float64)
        likelihoods = np.exp(scores - (scores.max() if len(scores) > 1 else 0.0))
        shares.append(float(likelihoods[answer["gold"]].sum() / (likelihoods.sum() if len(scores) > 1 else 1.0)))
    return float(np.mean(shares))


def _others(found: Put, metric: str, filter_name: str) -> dict[str, float]:
    """The other values that lm-eval reports, each item counting once."""
    counts = {name: found.found["n-samples"][name]["effective"] for name in found.tasks}
    totals: dict[str, float] = {}
    for name, count in counts.items():
        for key, value in found.found["results"][name].items():
            is_value = "," in key and not key.partition(",")[0].endswith("_stderr") and not key.startswith("bypass,")
            if is_value and key != f"{metric},{filter_name}" and isinstance(value, int | float):
                totals[key] = totals.get(key, 0.0) + count * float(value)
    return {key: total / sum(counts.values()) for key, total in sorted(totals.items()) if math.isfinite(total)}


def _remarks(remark: str, setting: Setting, *, cut: Cut, limit: int | None, max_new_tokens: tuple[int, int] | None) -> list[str]:
    """Why a value is not to be compared with those of others."""
    remarks = [remark] if remark else []
    if limit is not None:
        remarks.append(f"only the first {setting['asked']:,} of {setting['items']:,} items")
    if cut["contexts"]:
        remarks.append(f"{cut['contexts']:,} of {cut['of']:,} contexts lost their beginning: the model sees fewer tokens")
    if max_new_tokens and max_new_tokens[1] < max_new_tokens[0]:
        remarks.append(f"at most {max_new_tokens[1]:,} new tokens, where the benchmark lets it write {max_new_tokens[0]:,}")
    return remarks
