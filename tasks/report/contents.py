"""What a report says about a run: plain facts, in the order in which they happened.

Not-finite numbers are allowed here, because a report is wanted most when training went wrong.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from phasewise.trainer.base.decision import State as RulingState
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import Component
from phasewise.validations.outcomes import CheckCounts, sum_counts

GATE_EVENTS = {"fails": "phasewise.gate.refused", "waits": "phasewise.gate.waits"}
"""State of a ruling → the event that automations know; here, so that a server needs no flow to know them."""
GATE_RESOURCE = "phasewise.gate"


class Recorded(Frozen):
    """Frozen and strict about names, but a number may be NaN or infinite."""

    model_config = ConfigDict(allow_inf_nan=True)


class VerdictReport(Recorded):
    """One judgement. `path` is the verdict file; `counts` says how many of its checks came out how.

    Attributes:
        reasons: why it fails or warns.
        accepted: what was found and the recipe accepts, with its reason.
        ruling: what follows from it and from what people decided of it; None is from its checks alone.
        decided: who let it pass or rejected it, when and why; empty where nobody decided.
    """

    name: Literal["data", "training", "gate"]
    counts: CheckCounts
    reasons: tuple[str, ...]
    accepted: tuple[str, ...]
    path: str
    ruling: RulingState | None = None
    decided: str = ""

    @property
    def passes(self) -> bool:
        """The phase may go on: no check failed and none could not be made, or a person let it pass."""
        return self.counts.passes if self.ruling is None else self.ruling in ("passes", "approved")

    @property
    def waits(self) -> bool:
        """A person has to decide."""
        return self.ruling == "waits"


class BenchmarkReport(Recorded):
    """One benchmark's metric after a phase. `baseline` is what the best dumb answer scores; `stderr` is the standard error of `value`."""

    benchmark: str
    metric: str
    value: float
    baseline: float | None
    stderr: float | None


class MeasuredReport(Recorded):
    """One figure of a phase's last weights beside its parent's, as its gate compared them. What is not known is None.

    Attributes:
        what: a benchmark and its metric, or the macro mean of bits per byte.
        stderr: standard error of `value`.
        parent: the parent's value, where both were measured alike.
        difference: `value` minus `parent`.
        interval: of the difference, at 95 %.
        smallest_effect: the least fall that the gate would have seen.
        floor: what the best dumb answer scores.
        not_compared: why a parent's value is not beside it, in words; empty where it is, and where there is no parent.
    """

    what: str
    higher_is_better: bool
    value: float
    stderr: float | None = None
    parent: float | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    smallest_effect: float | None = None
    floor: float | None = None
    not_compared: str = ""


class RecordReport(Recorded):
    """Something that the record of this phase reported, in words, and where it is printed.

    Attributes:
        is_measure: it is a score or a loss, and no date, slice or event.
    """

    what: str
    value: str
    source: str
    is_measure: bool


Points = tuple[tuple[int, float], ...]
"""Step and value."""


class RoutingReport(Recorded):
    """What the routers of a sparse model did in a phase.

    Attributes:
        max_violation: how far the busiest expert is above the mean, in the worst layer.
        dead_experts: without any token of a batch, over all layers.
        router_entropy: of the scores, as a share of the most that it can be.
        limit: on `max_violation`; None is none.
        layers: the numbers of the layers with experts; empty where the load was not recorded.
        loads: of each of them, the load on each expert after `loads_step`, as a share of the mean.
    """

    max_violation: Points
    dead_experts: Points
    router_entropy: Points
    limit: float | None
    layers: tuple[int, ...] = ()
    loads: tuple[tuple[float, ...], ...] = ()
    loads_step: int | None = None


class RollBackReport(Recorded):
    """Updates that a phase passed over with their data, because it rolled back.

    Attributes:
        steps: which, in words.
        sequences: of data, how many were not trained on.
        why: what was found.
        decided_by: the recipe, or who approved it, when and why.
    """

    steps: str
    sequences: int
    why: str
    decided_by: str


class PhaseReport(Recorded):
    """One phase of the recipe. What was not measured is `None` or empty.

    Attributes:
        learning_rate_turns: its first and last, and between them the highest, where it is above both.
        learning_rate, loss: points (step, value).
        mixture: (first step of the span, component → percent realised).
        reads: how its rows are packed, what its loss is on, which documents are taken by their length, in words.
        bits_per_byte: component → held-out bits per byte at the end of the phase; the two macro values are means over components.
        declares: what the hand-off declares to change.
        parent: the name of the phase that this one starts from.
        measured: what its gate measured, beside the parent's.
        routing: what its routers did; None for dense models.
        reported: what the record reported of the phase, whose run was at full scale; of a smaller one scores and losses alone.
        spent: where the wall time of its training went, in words.
        computed: on what and how it was computed, in words.
        roll_backs: the windows of data that it passed over.
    """

    name: str
    start_step: int
    stop_step: int
    tokens: int
    batch_sequences: tuple[tuple[int, int], ...]
    learning_rate_turns: tuple[float, ...]
    learning_rate: Points = ()
    loss: Points = ()
    routing: RoutingReport | None = None
    final_loss: float | None = None
    mixture: tuple[tuple[int, dict[Component, float]], ...] = ()
    reads: tuple[str, ...] = ()
    bits_per_byte: dict[Component, float] = Field(default_factory=dict)
    macro_bits_per_byte: float | None = None
    ema_macro_bits_per_byte: float | None = None
    benchmarks: tuple[BenchmarkReport, ...] = ()
    measured: tuple[MeasuredReport, ...] = ()
    declares: tuple[str, ...] = ()
    parent: str | None = None
    verdicts: tuple[VerdictReport, ...] = ()
    state: Literal["done", "refused", "waits for a person", "not reached"]
    params_digest: str | None = None
    reported: tuple[RecordReport, ...] = ()
    spent: str = ""
    computed: str = ""
    roll_backs: tuple[RollBackReport, ...] = ()

    @property
    def counts(self) -> CheckCounts:
        """How many checks of its verdicts came out how."""
        return sum_counts(verdict.counts for verdict in self.verdicts)


class Report(Recorded):
    """One run of a recipe.

    Attributes:
        created: ISO time.
        status: stopped where a phase is refused or waits for a person; unfinished where nothing stands in the way of the next one.
        headline: one sentence that says what happened.
        baselines: name → macro bits per byte of a simple model on the same held-out text.
        macro_over: the components that the macro means are over, where some phases were measured on others as well; else none.
        unused: what the recipe accepts and no verdict found, in words.
        facts: the small print: tokenizer, seed, versions, home.
    """

    recipe: str
    scale: str
    created: str
    status: Literal["passed", "stopped", "unfinished"]
    headline: str
    parameters: int
    phases: tuple[PhaseReport, ...]
    baselines: dict[str, float] = Field(default_factory=dict)
    macro_over: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    facts: dict[str, str] = Field(default_factory=dict)
