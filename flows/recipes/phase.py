"""A phase and its start, as data. Every value is absolute."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, ParamSpec

from pydantic import AfterValidator, Discriminator, Field, PrivateAttr, Tag, model_validator

from phasewise.flows.recipes.benchmarks import checked_names, own_of
from phasewise.flows.recipes.written import Call, call_of
from phasewise.tasks.evaluation.settings import Measured, Renderings, needle_length, needles_of
from phasewise.tasks.training.pretrained import Pretrained, model_of
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import (
    CheckpointPolicy,
    DataOrder,
    ExecutionSettings,
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

LOCAL_SLICE = "local"  # the slice name of this machine
Change = Literal[
    "architecture", "rope", "batch", "learning_rate", "schedule", "optimizer", "optimizer_state", "mixture", "order", "coverage",
    "ema", "z_loss", "max_grad_norm", "max_update_rms", "max_update_norm", "skip_step", "slice", "balancing", "packing", "loss_on",
    "seq_len",
]  # fmt: skip


class Discrepancy(Frozen):
    """A difference between the code and the retrospective of a published run. The recipe follows the code.

    Attributes:
        severity: high if it changes a repetition of the run, medium for lineage and documentation, low for wording.
        place: file and line, issue or section of both.
    """

    field: str
    severity: Literal["high", "medium", "low"]
    code: str
    retrospective: str
    source: str
    place: str


class Note(Frozen):
    """A fact about a field that no report states, from the published code or this project."""

    field: str
    text: str
    source: str
    place: str


class FromScratch(Frozen):
    """Fresh weights from a seed."""

    seed: int = Field(ge=0, lt=2**32)


class GraftFrom(Frozen):
    """A part of the state from the checkpoint of a phase other than the parent."""

    part: StatePart
    phase: str
    step: int = Field(gt=0)


class HandOff(Frozen):
    """The parent checkpoint and the declared changes of a phase. State that is neither `fresh` nor grafted is carried over."""

    parent: str
    step: int = Field(gt=0)
    fresh: tuple[StatePart, ...]
    graft: tuple[GraftFrom, ...] = ()
    declares: tuple[Change, ...]


def _start_kind(start: Any) -> str:
    names = set(start) if isinstance(start, Mapping) else set(type(start).model_fields) if isinstance(start, Frozen) else set[str]()
    if "pretrained" in names:
        return PRETRAINED
    return HAND_OFF if names & (set(HandOff.model_fields) - set(FromScratch.model_fields)) else SCRATCH


HAND_OFF, SCRATCH, PRETRAINED = "hand_off", "from_scratch", "of_pretrained"
Start = Annotated[
    Annotated[FromScratch, Tag(SCRATCH)] | Annotated[HandOff, Tag(HAND_OFF)] | Annotated[Pretrained, Tag(PRETRAINED)],
    Discriminator(_start_kind),
]


class EvaluationSettings(Frozen):
    """The evaluation at the end of a phase and of kept checkpoints, and the held-out loss during training.

    Attributes:
        include: folder of own benchmarks, as YAML of lm-eval or as JSON lines with question and answer.
        benchmarks: measured at the end and judged by the gate. Needles are judged only with `gates.model.needle_error_rate`.
        held_out_tokens: text of each component for bits per byte.
        loss_every_steps: steps between measurements of the loss. None is never.
        loss_sequences: rows of each component for the loss.
        renderings: test items under two renderings, for `gates.model.exposure_error_rate`.
        every_steps: also evaluate the kept checkpoints at multiples of this number, after training. None evaluates only the end.
        held_out: file or folder of own text outside the training data. The gate compares bits per byte of each file and folder in it.
    """

    include: str | None = Field(default=None, min_length=1)
    benchmarks: Annotated[tuple[str, ...], AfterValidator(checked_names)]
    held_out_tokens: int | None = Field(gt=0)
    loss_every_steps: int | None = Field(gt=0)
    loss_sequences: int = Field(gt=0)
    renderings: Renderings | None = None
    held_out: str | None = Field(default=None, min_length=1)
    every_steps: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _uses_include(self) -> "EvaluationSettings":
        if self.include and not own_of(self.benchmarks):
            raise ValueError(f"include: expected a benchmark of {self.include} in benchmarks, such as NAME:0, found none. Take it out")
        return self

    @property
    def measured(self) -> Measured:
        """The measurements at the end of the phase."""
        names = ("benchmarks", "held_out_tokens", "renderings", "include", "held_out", "every_steps")
        return Measured(**{name: getattr(self, name) for name in names})


class Gates(Frozen):
    """The limits for the data before a phase, its training, and its model."""

    data: DataLimits
    health: HealthLimits
    model: GateLimits


GATES = tuple(Gates.model_fields)


class Phase(Frozen):
    """Training from a start to `stop_step`. Every schedule counts the steps of the lineage.

    Attributes:
        recovery: the reaction to a loss that is NaN or jumps. None stops the phase.
        packing: `chunk` cuts all documents, one after the other, into full rows. `pad` gives each document a row, and `greedy` fills rows
            with whole documents. `pad` and `greedy` cut documents that are longer than a row.
        execution: mesh, rematerialization, micro-batches and kernels that replace the plan of the slice.
        loss_on: predict all tokens, or only the answers of conversations.
        forecast: forecast the loss from earlier phases before the training, and ask a person if the loss leaves the band.
        branch: not on the main line. A branch is trained only if it is named.
        abandoned: stopped before the end of its schedule.
        schedule_goes_on: the last segment continues in the next phase, such as one cosine over two phases.
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
    execution: ExecutionSettings = Field(default=ExecutionSettings(), exclude_if=lambda execution: execution == ExecutionSettings())
    recovery: Recovery | None = None
    packing: PackingKind = "chunk"
    loss_on: LossOn = "all"
    forecast: bool = Field(default=False, exclude_if=lambda forecast: not forecast)
    discrepancies: tuple[Discrepancy, ...] = ()
    notes: tuple[Note, ...] = ()
    branch: bool = False
    abandoned: bool = False
    schedule_goes_on: bool = False
    _call: Call | None = PrivateAttr(default=None)

    @property
    def call(self) -> Call | None:
        """The call in a recipe file that wrote the phase. None for a phase from JSON, or of another scale than its file's."""
        return self._call

    def with_order(self, order: DataOrder) -> "Phase":
        """The phase with another data order, and with its call."""
        phase = self.but(order=order)
        phase._call = self._call
        return phase

    def as_branch(self, name: str) -> "Phase":
        """A copy of the phase as a branch with this name."""
        copy = self.but(name=name, branch=True)
        copy._call = self._call and replace(self._call, arguments={**self._call.arguments, "name": name, "branch": True})
        return copy

    @property
    def start_step(self) -> int:
        """The step of the lineage at which the phase starts."""
        return self.start.step if isinstance(self.start, HandOff) else 0

    @property
    def parent(self) -> str | None:
        """The phase whose checkpoint the phase starts from."""
        return self.start.parent if isinstance(self.start, HandOff) else None

    @property
    def tokens(self) -> int:
        """Tokens that the phase trains on."""
        return self.model.seq_len * sequences_between(self.batch, self.start_step, self.stop_step)

    @property
    def components(self) -> tuple[str, ...]:
        """The components of all steps, sorted."""
        return tuple(sorted(self.drawn_in(self.start_step, self.stop_step)))

    def drawn_in(self, start_step: int, stop_step: int) -> frozenset[str]:
        """The components with a share in a range of steps."""
        return frozenset(name for _, shares in self.mixture.within(start_step, stop_step) for name, share in shares.items() if share)

    @property
    def state_parts(self) -> tuple[StatePart, ...]:
        """The parts of the training state next to the weights, with the weights of QK-norm."""
        stability, steps = self.stability, (self.start_step, self.stop_step)
        windows = (*stability.max_update_norm.within(*steps), *stability.skip_step.within(*steps))
        has: dict[StatePart, bool] = {
            "optimizer": True,
            "ema": any(decay is not None for _, decay in stability.ema_decay.within(*steps)),
            "rolling": any(limit is not None for _, limit in windows),
            "qk_norm": self.model.qk_norm,
            "balancing": self.model.experts is not None and isinstance(self.model.experts.balancing, Smebu),
        }
        return tuple(part for part, is_there in has.items() if is_there)

    @model_validator(mode="before")
    @classmethod
    def _takes_model_of_source(cls, given: Any) -> Any:
        """Fill in a model that is left out from the files of the pretrained start."""
        if not isinstance(given, dict) or given.get("model") is not None:
            return given
        start: Any = given.get("start")
        if _start_kind(start) != PRETRAINED:
            return given
        source = Pretrained.model_validate(start)
        model = model_of(source.pretrained, source.revision)
        return given | {"model": model.but(vocab_size=model.vocab_size + source.new_rows, seq_len=min(model.seq_len, MAX_DEFAULT_SEQ_LEN))}

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
                f"phase {self.name} has schedule_goes_on: expected a last segment from before step {self.stop_step} to a later step, "
                f"found {last.start_step} → {last.end_step}. Lengthen the segment, or take schedule_goes_on out"
            )
        if self.gates.health.max_violation is not None and self.model.experts is None:
            raise ValueError(
                f"phase {self.name} limits the balance of experts (gates.health.max_violation), and its model has no experts: take the "
                "limit out"
            )
        for needle in needles_of(self.evaluation.benchmarks):
            if (needle_length(needle) or 0) > self.model.seq_len:
                raise ValueError(
                    f"phase {self.name} cannot measure {needle} (evaluation.benchmarks): its rows have {self.model.seq_len:,} tokens, and "
                    f"the needle would be cut off. Take {needle.partition(':')[0]}:{self.model.seq_len} or less, or longer rows"
                )
        if self.gates.model.needle_error_rate is not None and not needles_of(self.evaluation.benchmarks):
            raise ValueError(
                f"phase {self.name} limits errors on needles (gates.model.needle_error_rate) without a needle: add one to "
                f"evaluation.benchmarks, for example niah:{self.model.seq_len}, or take the limit out"
            )
        every = self.evaluation.every_steps
        points = range(self.start_step - self.start_step % every + every, self.stop_step, every) if every else ()
        if unkept := [step for step in points if not self.checkpoints.keeps(step)]:
            raise ValueError(
                f"phase {self.name}: evaluation.every_steps {every} expects kept checkpoints at its multiples, found none at step "
                f"{unkept[0]}. Set checkpoints.keep_all with checkpoints.every_steps {every}, or take every_steps out"
            )
        if (self.evaluation.renderings is None) != (self.gates.model.exposure_error_rate is None):
            raise ValueError(
                f"phase {self.name} must have both evaluation.renderings and gates.model.exposure_error_rate (for example 0.01), or neither"
            )
        if self.gates.model.min_answer_gain_nats is not None and self.loss_on != "answers":
            raise ValueError(
                f"phase {self.name}: gates.model.min_answer_gain_nats needs loss_on answers, found loss_on {self.loss_on}. Take the limit "
                "out"
            )
        if isinstance(self.start, HandOff):
            declared = (*self.start.fresh, *(graft.part for graft in self.start.graft))
            for part in declared:
                if declared.count(part) > 1:
                    raise ValueError(f"the hand-off to {self.name} declares {part} twice: make it fresh, or graft it once")
                if part not in self.state_parts:
                    raise ValueError(f"the hand-off to {self.name} declares {part}, and the phase has no such state: take it out")
        if late := [step for step in self.checkpoints.at_steps if not self.start_step < step <= self.stop_step]:
            raise ValueError(
                f"phase {self.name}: checkpoints.at_steps must be in {self.start_step + 1} to {self.stop_step}, found {late[0]}"
            )
        return self


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
MAX_DEFAULT_SEQ_LEN = 4096  # tokens in a row of a phase that takes over its model from a source with at least this number of positions
OWN = ("discrepancies", "notes", "abandoned", "schedule_goes_on")  # fields that a phase never takes over from its parent

P = ParamSpec("P")


def phase_function(function: Callable[P, Phase]) -> Callable[P, Phase]:
    """Decorate a function that writes a phase: the phase keeps the call."""

    @functools.wraps(function)
    def write(*args: P.args, **kwargs: P.kwargs) -> Phase:
        phase = function(*args, **kwargs)
        phase._call = call_of(write, *args, **kwargs)  # pyright: ignore[reportPrivateUsage]  # the phase is new
        return phase

    return write


@phase_function
def continued(parent: Phase, *, name: str, stop_step: int, declares: Sequence[Change], **settings: Any) -> Phase:
    """A phase that starts from the end of its parent and keeps the parent's settings, except for the given settings.

    `step`, `fresh` and `graft` belong to the hand-off. Discrepancies, notes, `checkpoints.at_steps`, `abandoned` and `schedule_goes_on`
    are never taken over.
    """
    start: dict[str, Any] = {"parent": parent.name, "step": parent.stop_step, "fresh": (), "declares": declares}
    start |= {part: settings.pop(part) for part in ("step", "fresh", "graft") if part in settings}
    kept = {field: getattr(parent, field) for field in Phase.model_fields if field not in OWN}
    kept["checkpoints"] = parent.checkpoints.model_dump() | {"at_steps": ()}
    return Phase.model_validate({**kept, "name": name, "start": start, "stop_step": stop_step, **settings})
