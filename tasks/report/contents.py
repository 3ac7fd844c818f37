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
    """One judgement; `path` is the verdict file.

    Attributes:
        reasons: of failures and warnings.
        accepted: findings that the recipe accepts, with its reason.
        ruling: None is the one of its checks alone.
        decided: the person's decision, with time and reason; empty without one.
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
    """One benchmark's metric after a phase. `baseline` is the score of the best dumb answer."""

    benchmark: str
    metric: str
    value: float
    baseline: float | None
    stderr: float | None


class MeasuredReport(Recorded):
    """One figure of a phase's last weights beside its parent's, as its gate compared them. An unknown value is None.

    Attributes:
        what: a benchmark and its metric, or the macro mean of bits per byte.
        interval: of the difference, at 95 %.
        smallest_effect: the least fall that the gate would have seen.
        floor: the score of the best dumb answer.
        not_compared: why there is no parent's value, in words.
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
    """The routers of a sparse model in a phase.

    Attributes:
        max_violation: the busiest expert's load above the mean, in the worst layer; `limit` is its limit.
        dead_experts: experts without any token of a batch, over all layers.
        router_entropy: of the scores, as a share of its maximum.
        loads: by layer, the load on each expert after `loads_step`, as a share of the mean; empty if it was not recorded.
    """

    max_violation: Points
    dead_experts: Points
    router_entropy: Points
    limit: float | None
    layers: tuple[int, ...] = ()
    loads: tuple[tuple[float, ...], ...] = ()
    loads_step: int | None = None


class RollBackReport(Recorded):
    """Updates that a phase passed over with their data after a roll-back, in words; `decided_by` is the recipe, or a person."""

    steps: str
    sequences: int
    why: str
    decided_by: str


class PhaseReport(Recorded):
    """One phase of the recipe. A value that was not measured is None or empty.

    Attributes:
        learning_rate_turns: its first and last, and between them the highest, if it is above both.
        mixture: (first step of the span, component → percent realised).
        reads: packing of rows, loss and length sampling, in words.
        bits_per_byte: component → held-out bits per byte at the end of the phase; the two macro values are means over components.
        declares: declared changes of the hand-off.
        reported: figures that the record reported of the phase at full scale; of a smaller run only scores and losses.
        spent, computed: time breakdown and execution of its training, in words.
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
        status: stopped if a phase is refused or waits for a person; unfinished if the next one may go on.
        headline: one sentence.
        baselines: name → macro bits per byte of a simple model on the same held-out text.
        macro_over: the components of all macro means; empty if each phase was measured on the same ones.
        unused: findings that the recipe accepts and no verdict has, in words.
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
