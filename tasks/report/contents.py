"""Contents of a report: facts about a run in chronological order. Numbers may be NaN or infinite, because diverged runs have reports."""

from typing import Literal

from pydantic import ConfigDict, Field

from phasewise.tasks.phase_state import State
from phasewise.trainer.base.decision import State as RulingState
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import Component
from phasewise.validations.verdict import CheckCounts

GATE_EVENTS = {"fails": "phasewise.gate.refused", "waits": "phasewise.gate.waits"}
"""State of a ruling → event for automations. Servers read the names without importing a flow."""
GATE_RESOURCE = "phasewise.gate"
Points = tuple[tuple[int, float], ...]  # step and value


class _Recorded(Frozen):
    model_config = ConfigDict(allow_inf_nan=True)


class VerdictReport(_Recorded):
    """A verdict with the path of its file."""

    name: Literal["data", "training", "gate"]
    counts: CheckCounts
    reasons: tuple[str, ...]  # of failures and warnings
    accepted: tuple[str, ...]  # findings that the recipe accepts, with its reason
    path: str
    ruling: RulingState | None = None  # None: its checks decide
    decided: str = ""  # the person's decision, with time and reason

    @property
    def passes(self) -> bool:
        """Whether all checks passed, or a person approved the failures."""
        return self.counts.passes if self.ruling is None else self.ruling in ("passes", "approved")


class BenchmarkReport(_Recorded):
    """A metric after a phase. `baseline` is the score of the best constant answer."""

    benchmark: str
    metric: str
    value: float
    baseline: float | None
    stderr: float | None


class MeasuredReport(_Recorded):
    """A figure of a phase's last weights and its parent's, as compared by the gate. An unknown value is None."""

    what: str  # a benchmark and its metric, or the macro mean of bits per byte
    higher_is_better: bool
    value: float
    stderr: float | None = None
    parent: float | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None  # of the difference, at 95 %
    smallest_effect: float | None = None  # the smallest detectable fall
    floor: float | None = None  # the score of the best constant answer
    not_compared: str = ""  # reason for a missing parent value


class RecordReport(_Recorded):
    """A published fact about this phase with its source. A measure is a score or a loss."""

    what: str
    value: str
    source: str
    is_measure: bool


class RoutingReport(_Recorded):
    """Routing of a sparse model in a phase."""

    max_violation: Points  # relative excess load of the busiest expert in the worst layer.
    dead_experts: Points  # idle experts over all layers.
    router_entropy: Points  # of the scores, as a share of its maximum
    limit: float | None  # of max_violation
    layers: tuple[int, ...] = ()
    loads: tuple[tuple[float, ...], ...] = ()  # by layer, the load on each expert as a share of the mean
    loads_step: int | None = None


class RollBackReport(_Recorded):
    """Skipped updates after a roll-back, with the deciding recipe or person."""

    steps: str
    sequences: int
    why: str
    decided_by: str


class PhaseReport(_Recorded):
    """A phase of the recipe. Missing values are None or empty."""

    name: str
    start_step: int
    stop_step: int
    tokens: int
    batch_sequences: tuple[tuple[int, int], ...]
    learning_rate_turns: tuple[float, ...]  # the first, the highest if it is above both ends, the last
    learning_rate: Points = ()
    loss: Points = ()
    routing: RoutingReport | None = None
    final_loss: float | None = None
    mixture: tuple[tuple[int, dict[Component, float]], ...] = ()  # first step of the span, component → percent realised
    reads: tuple[str, ...] = ()  # packing of rows, loss and length sampling
    bits_per_byte: dict[Component, float] = Field(default_factory=dict)  # held-out, at the end of the phase
    macro_bits_per_byte: float | None = None  # mean over components
    ema_macro_bits_per_byte: float | None = None
    curves: dict[str, Points] = Field(default_factory=dict)  # score or macro bits per byte → kept checkpoints, with the end
    benchmarks: tuple[BenchmarkReport, ...] = ()
    measured: tuple[MeasuredReport, ...] = ()
    declares: tuple[str, ...] = ()  # changes of the hand-off
    parent: str | None = None
    verdicts: tuple[VerdictReport, ...] = ()
    state: State  # by the results
    params_digest: str | None = None
    reported: tuple[RecordReport, ...] = ()  # published facts, for a smaller scale only scores and losses
    spent: str = ""  # time breakdown
    time: dict[str, float] = Field(default_factory=dict)  # seconds of the wall time by bucket
    computed: str = ""  # execution
    roll_backs: tuple[RollBackReport, ...] = ()


class Report(_Recorded):
    """A run of a recipe."""

    recipe: str
    scale: str
    created: str
    status: Literal["passed", "stopped", "unfinished"]  # stopped: a phase is refused or waits for a person
    headline: str  # one sentence
    parameters: int
    phases: tuple[PhaseReport, ...]
    baselines: dict[str, float] = Field(default_factory=dict)  # simple model → macro bits per byte on the same held-out text
    macro_over: tuple[str, ...] = ()  # components of all macro means, if phases have different components
    unused: tuple[str, ...] = ()  # accepted findings without a verdict
    facts: dict[str, str] = Field(default_factory=dict)  # the small print: tokenizer, seed, versions, home
