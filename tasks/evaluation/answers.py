"""What a model answered to each item of a benchmark, and how likely it finds each choice: a gate tells by it what a score is worth.

Importing this module is cheap; lm-eval is imported when it is first used.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from phasewise.tasks.evaluation.benchmark_folder import Benchmark
from phasewise.tasks.evaluation.setting import Setting

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

Sample = Mapping[str, Any]
"""lm-eval's record of one item: the item as `doc`, the metric by its name, the responses as `filtered_resps`."""


class ItemAnswer(TypedDict):
    """One item.

    Attributes:
        baseline_right: whether the baseline's one answer is right here; None where the baseline guesses.
        group: number of the items whose openings and answers are scored crosswise; None where an item has choices of its own.
        gold: position of the right choice.
        log_likelihoods: of each choice after the opening, in nats; empty where there is nothing to choose from. `gold` says nothing then.
    """

    id: str
    right: bool
    baseline_right: bool | None
    group: int | None
    gold: int
    log_likelihoods: list[float]


class BenchmarkResult(TypedDict):
    """A benchmark's score with its standard error beside what the best dumb answer scores, what was answered to each item, and how the
    benchmark was put.

    Attributes:
        checkpoint_values: the score of the last checkpoints of the phase, oldest first, where at least three are kept.
    """

    benchmark: str
    metric: str
    value: float
    stderr: float
    items: int
    baseline: float
    answers: list[ItemAnswer]
    setting: Setting
    checkpoint_values: NotRequired[list[float]]


def read_answers(benchmark: Benchmark, samples: Sequence[Sample], model: "JaxLanguageModel") -> list[ItemAnswer]:
    """An answer an item. A benchmark of choices was scored by lm-eval; where words were generated, the choices are scored here."""
    if benchmark.metric == "acc":
        scores: list[list[float]] = [[float(score) for score, _ in sample["filtered_resps"]] for sample in samples]
    else:
        scores = _score_choices(samples, model)
    return [
        _answer(benchmark, sample["doc"], is_right=bool(sample[benchmark.metric]), scores=of_item)
        for sample, of_item in zip(samples, scores, strict=True)
    ]


def _answer(benchmark: Benchmark, item: Mapping[str, Any], *, is_right: bool, scores: list[float]) -> ItemAnswer:
    constant = benchmark.baseline.answer
    return ItemAnswer(
        id=item["id"],
        right=is_right,
        baseline_right=None if constant is None else item["answer"] == constant,
        group=item.get("group"),
        gold=item["gold"],
        log_likelihoods=scores,
    )


def _score_choices(samples: Sequence[Sample], model: "JaxLanguageModel") -> list[list[float]]:
    """The log-likelihood of each choice after its item's opening, as one word after one space."""
    from lm_eval.api.instance import Instance

    items = [sample["doc"] for sample in samples]
    pairs = [(item["opening"], f" {choice}") for item in items for choice in item["choices"]]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    scored = iter(model.loglikelihood(requests))
    return [[next(scored)[0] for _ in item["choices"]] for item in items]
