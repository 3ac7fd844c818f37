"""What a suite says of each of its benchmarks: a row with a value, or a row with the reason why there is none."""

from typing import TypedDict

from phasewise.tasks.evaluation.setting import Setting
from phasewise.tasks.evaluation.suites.definition import Asked, Definition
from phasewise.tasks.evaluation.suites.floors import Floors


class Answer(TypedDict):
    """One item, by lm-eval's task and its number there.

    Attributes:
        value: of the metric.
        gold: positions of the right choices; empty where there are no choices.
        log_likelihoods: of each choice, in nats; of the right text, where an item has one text; empty where a text was written.
    """

    id: str
    value: float
    gold: list[int]
    log_likelihoods: list[float]


class Cut(TypedDict):
    """Contexts that lost their beginning, since the model sees fewer tokens, of all that were read."""

    contexts: int
    of: int


class SuiteResult(TypedDict):
    """A row.

    Attributes:
        benchmark: with its shots, as the suite names it.
        value, stderr: of the metric over all items, each counting once. None where there is a hole.
        hole: why it was not measured; None where it was.
        choice_probability: mean probability of the right choice among the choices, or of the right text; None where a text is written.
        others: value of each other metric and filter of lm-eval's, `metric,filter`, over the same items.
        baseline: the highest of `floors`.
        limit: only so many items of each part were asked; None is all.
        max_new_tokens: what the benchmark lets the model write, and what was let; None where it writes nothing.
        remarks: why the value is not to be compared with that of others; empty where it may be.
        guarded: what the kernel kept from programs that were run.
    """

    benchmark: str
    metric: str
    filter: str
    shots: int
    source: str
    value: float | None
    stderr: float | None
    items: int
    hole: str | None
    choice_probability: float | None
    others: dict[str, float]
    baseline: float | None
    floors: Floors | None
    limit: int | None
    cut: Cut | None
    max_new_tokens: list[int] | None
    remarks: list[str]
    guarded: list[str]
    setting: Setting | None
    seconds: float


def hole(definition: Definition, asked: Asked, reason: str) -> SuiteResult:
    """The row of a benchmark that was not measured."""
    return SuiteResult(
        benchmark=asked.label, metric=definition.metric, filter=definition.filter, shots=asked.shots, source=asked.source, value=None,
        stderr=None, items=0, hole=reason, choice_probability=None, others={}, baseline=None, floors=None, limit=None, cut=None,
        max_new_tokens=None, remarks=[], guarded=[], setting=None, seconds=0.0,
    )  # fmt: skip
