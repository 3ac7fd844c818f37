"""What a phase is, and where it starts from: as data, every value absolute and resolved."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from phasewise.flows.recipes.benchmarks import check_lengths, check_names
from phasewise.tasks.evaluation.settings import Measured, Renderings, needles_of
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import (
    CheckpointPolicy,
    DataOrder,
    Instrumentation,
    LearningRateSegment,
    LossOn,
    MixtureShares,
    ModelConfig,
    Optimizer,
    PackingKind,
    Recovery,
    Smebu,
    Stability,
    StatePart,
    Steps,
    check_mixture,
    check_rows,
    check_segments,
    check_segments_end,
    sequences_between,
)
from phasewise.validations.limits import DataLimits, GateLimits, HealthLimits

LOCAL_SLICE = "local"
"""The slice that is this machine."""
Change = Literal[
    "architecture", "rope", "batch", "learning_rate", "schedule", "optimizer", "optimizer_state", "mixture", "order", "coverage",
    "ema", "z_loss", "max_grad_norm", "max_update_rms", "max_update_norm", "skip_step", "slice", "balancing", "packing", "loss_on",
    "seq_len",
]  # fmt: skip


class Discrepancy(Frozen):
    """Where the record's code and its retrospective differ. The recipe follows the code.

    Attributes:
        severity: high changes what who repeats the run would do, medium is of lineage or documentation, low is of wording.
        place: where both are to be found: file and line, issue, section.
    """

    field: str
    severity: Literal["high", "medium", "low"]
    code: str
    retrospective: str
    source: str
    place: str


class Note(Frozen):
    """What no report of the record states, and what its code or this project has to say of it."""

    field: str
    text: str
    source: str
    place: str


class FromScratch(Frozen):
    """Fresh weights from a seed."""

    seed: int = Field(ge=0, lt=2**32)


class GraftFrom(Frozen):
    """A part of the state that comes from another phase's checkpoint than the rest."""

    part: StatePart
    phase: str
    step: int = Field(gt=0)


class HandOff(Frozen):
    """Where a phase starts from, and what it declares to change. What is neither `fresh` nor grafted is carried over."""

    parent: str
    step: int = Field(gt=0)
    fresh: tuple[StatePart, ...]
    graft: tuple[GraftFrom, ...] = ()
    declares: tuple[Change, ...]


def _start_kind(start: Any) -> str:
    names = set(start) if isinstance(start, Mapping) else set(type(start).model_fields) if isinstance(start, Frozen) else set[str]()
    return HAND_OFF if names & (set(HandOff.model_fields) - set(FromScratch.model_fields)) else SCRATCH


HAND_OFF, SCRATCH = "hand_off", "from_scratch"
Start = Annotated[Annotated[FromScratch, Tag(SCRATCH)] | Annotated[HandOff, Tag(HAND_OFF)], Discriminator(_start_kind)]


class EvaluationSettings(Frozen):
    """What is measured at a phase's end, and the loss on held-out text while it trains.

    Attributes:
        benchmarks: those that are measured, and that the gate asks; of needles only where `gates.model.needle_error_rate` says so.
        held_out_tokens: bounds the text of a component that bits per byte are measured on.
        loss_every_steps: the loss is measured each so many steps; None is never.
        loss_sequences: on so many rows of each component that the phase draws from.
        renderings: test items that the model is asked to read under two renderings, and `gates.model.exposure_error_rate` judges.
    """

    benchmarks: tuple[str, ...]
    held_out_tokens: int | None = Field(gt=0)
    loss_every_steps: int | None = Field(gt=0)
    loss_sequences: int = Field(gt=0)
    renderings: Renderings | None = None

    @property
    def measured(self) -> Measured:
        """What is measured at the phase's end."""
        return Measured(benchmarks=self.benchmarks, held_out_tokens=self.held_out_tokens, renderings=self.renderings)

    @field_validator("benchmarks")
    @classmethod
    def _are_known(cls, benchmarks: tuple[str, ...]) -> tuple[str, ...]:
        check_names(benchmarks)
        return benchmarks


class Gates(Frozen):
    """The limits of the judgements: of the data before a phase, of its training, and of its model after it."""

    data: DataLimits
    health: HealthLimits
    model: GateLimits


class Phase(Frozen):
    """From its start to `stop_step`. Every schedule counts the steps of the lineage.

    Attributes:
        recovery: what is done where the loss is no number, or jumps; None stops the phase.
        packing: how documents become rows: `chunk` cuts all of them, one after the other, into full rows; `pad` gives each a row of its
            own; `greedy` fills rows with whole ones. The last two cut what is longer than a row, and pad.
        loss_on: which tokens are predicted: all, or the answers of conversations alone.
        branch: it is not of the main line, and is trained where it is named.
        abandoned: it was stopped before the end of its schedule, which may go on after `stop_step`.
        schedule_goes_on: its last segment goes on after `stop_step`, for the phase that starts from its end: one cosine over two phases.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    start: Start
    stop_step: int = Field(gt=0)
    model: ModelConfig
    optimizer: Optimizer
    learning_rate: tuple[LearningRateSegment, ...]
    batch: Steps[Annotated[int, Field(ge=1)]]
    mixture: Steps[MixtureShares]
    order: DataOrder
    stability: Stability
    slice: Steps[str]
    checkpoints: CheckpointPolicy
    evaluation: EvaluationSettings
    gates: Gates
    instrumentation: Instrumentation = Instrumentation()
    recovery: Recovery | None = None
    packing: PackingKind = "chunk"
    loss_on: LossOn = "all"
    discrepancies: tuple[Discrepancy, ...] = ()
    notes: tuple[Note, ...] = ()
    branch: bool = False
    abandoned: bool = False
    schedule_goes_on: bool = False

    @property
    def start_step(self) -> int:
        """The step of the lineage at which this phase starts."""
        return self.start.step if isinstance(self.start, HandOff) else 0

    @property
    def parent(self) -> str | None:
        """The phase that this one starts from."""
        return self.start.parent if isinstance(self.start, HandOff) else None

    @property
    def tokens(self) -> int:
        """Tokens that the phase trains on."""
        return self.model.seq_len * sequences_between(self.batch, self.start_step, self.stop_step)

    @property
    def components(self) -> tuple[str, ...]:
        """What it draws from, sorted."""
        return tuple(sorted(self.drawn_in(self.start_step, self.stop_step)))

    def drawn_in(self, start_step: int, stop_step: int) -> frozenset[str]:
        """The components that have a share at any of these steps."""
        return frozenset(name for _, shares in self.mixture.within(start_step, stop_step) for name, share in shares.items() if share)

    @model_validator(mode="after")
    def _is_whole(self) -> "Phase":
        _check_sizes(self.model_dump(exclude={"discrepancies": True, "notes": True, "order": {"seed"}}), ())
        if self.stop_step <= self.start_step:
            raise ValueError(f"phase {self.name} must stop after step {self.start_step}, found stop_step {self.stop_step}")
        for step, shares in self.mixture.root:
            check_mixture(step, shares)
        check_segments(self.learning_rate, self.start_step, self.stop_step)
        check_rows(self.packing, self.loss_on, self.order)
        last = self.learning_rate[-1]
        if not (self.abandoned or self.schedule_goes_on):
            check_segments_end(self.learning_rate, self.stop_step)
        if self.schedule_goes_on and not last.start_step < self.stop_step < last.end_step:
            raise ValueError(
                f"phase {self.name} says schedule_goes_on, so its last segment must begin before step {self.stop_step} and end after "
                f"it; found {last.start_step} → {last.end_step}. Let the segment go on, or take schedule_goes_on out"
            )
        if self.gates.health.max_violation is not None and self.model.experts is None:
            raise ValueError(
                f"phase {self.name} limits how far its experts may be off their balance (gates.health.max_violation), and its model has "
                "none: take the limit out"
            )
        check_lengths(self.name, self.evaluation.benchmarks, self.model.seq_len)
        if self.gates.model.needle_error_rate is not None and not needles_of(self.evaluation.benchmarks):
            raise ValueError(
                f"phase {self.name} is asked to find needles (gates.model.needle_error_rate), and hides none: name them in "
                f"evaluation.benchmarks, for example niah:{self.model.seq_len}, or take the limit out"
            )
        if (self.evaluation.renderings is None) != (self.gates.model.exposure_error_rate is None):
            raise ValueError(
                f"phase {self.name} must have both or neither: items under two renderings (evaluation.renderings), and how often a "
                "model that never saw them may be refused for how it reads them (gates.model.exposure_error_rate, for example 0.01)"
            )
        if self.gates.model.min_answer_gain_nats is not None and self.loss_on != "answers":
            raise ValueError(
                f"phase {self.name} must have loss_on answers to be asked how much likelier answers became (gates.model."
                f"min_answer_gain_nats), found loss_on {self.loss_on}: take the limit out"
            )
        self._has_what_it_declares()
        if late := [step for step in self.checkpoints.at_steps if not self.start_step < step <= self.stop_step]:
            raise ValueError(
                f"phase {self.name} cannot keep the checkpoint of step {late[0]} (checkpoints.at_steps): it has those of steps "
                f"{self.start_step + 1} to {self.stop_step}"
            )
        return self

    def _has_what_it_declares(self) -> None:
        """Refuse a part of the state that is declared and that no step of the phase has."""
        if not isinstance(self.start, HandOff):
            return
        stability, steps = self.stability, (self.start_step, self.stop_step)
        windows = (*stability.max_update_norm.within(*steps), *stability.skip_step.within(*steps))
        has = {
            "optimizer": True,
            "ema": any(decay is not None for _, decay in stability.ema_decay.within(*steps)),
            "rolling": any(limit is not None for _, limit in windows),
            "qk_norm": self.model.qk_norm,
            "balancing": self.model.experts is not None and isinstance(self.model.experts.balancing, Smebu),
        }
        declared = (*self.start.fresh, *(graft.part for graft in self.start.graft))
        for part in declared:
            if declared.count(part) > 1:
                raise ValueError(f"the hand-off to {self.name} declares twice where its {part} comes from: make it fresh, or graft it once")
            if not has[part]:
                raise ValueError(f"the hand-off to {self.name} declares where its {part} comes from, and the phase has none: take it out")


def _check_sizes(value: Any, place: tuple[str, ...]) -> None:
    if isinstance(value, Mapping):
        for name, part in value.items():
            _check_sizes(part, (*place, str(name)))
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            _check_sizes(part, (*place, str(number)))
    elif isinstance(value, int) and abs(value) > MAX_COUNT:
        raise ValueError(f"{'.'.join(place)}: expected at most {MAX_COUNT:,}, found {value:,}")


MAX_COUNT = 2**31 - 1
OWN = ("discrepancies", "notes", "abandoned", "schedule_goes_on")
"""What a phase never has from the one before it."""


def continued(parent: Phase, *, name: str, stop_step: int, declares: Sequence[Change], **settings: Any) -> Phase:
    """The phase that starts from another one's end and keeps its settings, but for those that are named.

    `step`, `fresh` and `graft` are the hand-off's; every other setting is a field of the phase. Discrepancies, notes, steps whose
    checkpoints are kept for others, that it was abandoned and that its schedule goes on are each phase's own.
    """
    start: dict[str, Any] = {"parent": parent.name, "step": parent.stop_step, "fresh": (), "declares": declares}
    start |= {part: settings.pop(part) for part in ("step", "fresh", "graft") if part in settings}
    kept = {field: getattr(parent, field) for field in Phase.model_fields if field not in OWN}
    kept["checkpoints"] = parent.checkpoints.model_dump() | {"at_steps": ()}
    return Phase.model_validate({**kept, "name": name, "start": start, "stop_step": stop_step, **settings})
