"""What a recipe is: phases and their lineage, as data, every value absolute and resolved."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from tasks.data.pin import Pin
from tasks.data.source import Source
from trainer.config import (
    CheckpointPolicy,
    DataOrder,
    Frozen,
    LearningRateSegment,
    MixtureShares,
    ModelConfig,
    Optimizer,
    Stability,
    StatePart,
    Steps,
    check_mixture,
    check_segments,
    sequences_between,
)
from trainer.errors import ConfigError
from trainer.schedule import value_in
from validations.limits import DataLimits, GateLimits, HealthLimits

T = TypeVar("T")
Scale = Literal["proxy", "full"]
LOCAL_SLICE = "local"
"""The slice that is this machine."""
CARRIED = "carried"
Change = Literal[
    "architecture", "rope", "batch", "learning_rate", "schedule", "optimizer", "optimizer_state",
    "mixture", "order", "ema", "z_loss", "max_grad_norm", "max_update_rms", "max_update_norm", "skip_step", "slice",
]  # fmt: skip


class Discrepancy(Frozen):
    """Where the record's code and its retrospective differ. The recipe follows the code."""

    field: str
    code: str
    retrospective: str
    source: str


class FromScratch(Frozen):
    """Fresh weights from a seed."""

    seed: int


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


class Evaluation(Frozen):
    """What is measured at a phase's end, and the loss on held-out text while it trains.

    Attributes:
        held_out_tokens: bounds the text of a component that bits per byte are measured on.
        loss_every_steps: the loss is measured each so many steps; None is never.
        loss_sequences: on so many rows of each component that the phase draws from.
    """

    benchmarks: tuple[str, ...]
    held_out_tokens: int | None = Field(gt=0)
    loss_every_steps: int | None = Field(gt=0)
    loss_sequences: int = Field(gt=0)


class Gates(Frozen):
    """The limits of the judgements: of the data before a phase, of its training, and of its model after it."""

    data: DataLimits
    health: HealthLimits
    model: GateLimits


class Tokenizer(Frozen):
    """A tokenizer by name on the hub, or, where `name` is None, a byte-level BPE trained on the recipe's own training split."""

    name: str | None
    vocab_size: int = Field(gt=0)


class Phase(Frozen):
    """From its start to `stop_step`. Every schedule counts the steps of the lineage."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    start: FromScratch | HandOff
    stop_step: int = Field(gt=0)
    model: ModelConfig
    optimizer: Optimizer
    learning_rate: tuple[LearningRateSegment, ...]
    batch: Steps[int]
    mixture: Steps[MixtureShares]
    order: DataOrder
    stability: Stability
    slice: Steps[str]
    checkpoints: CheckpointPolicy
    evaluation: Evaluation
    gates: Gates
    discrepancies: tuple[Discrepancy, ...] = ()

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
        stages = self.mixture.within(self.start_step, self.stop_step)
        return tuple(sorted({name for _, shares in stages for name, share in shares.items() if share}))

    @model_validator(mode="after")
    def _is_whole(self) -> "Phase":
        if self.stop_step <= self.start_step:
            raise ValueError(f"phase {self.name} must stop after step {self.start_step}, found stop_step {self.stop_step}")
        for step, shares in self.mixture.root:
            check_mixture(step, shares)
        check_segments(self.learning_rate, self.start_step, self.stop_step)
        return self


class Recipe(Frozen):
    """Phases in an order in which every parent comes before its children.

    Refused where a hand-off changes something that it does not declare.

    Attributes:
        sources: the components that the recipe brings its own text for, instead of the catalogue's, at every scale.
        pins: finished caches to use, at this scale only. A pin never skips a check.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    scale: Scale
    tokenizer: Tokenizer
    phases: tuple[Phase, ...] = Field(min_length=1)
    sources: dict[str, Source] = Field(default={})
    pins: tuple[Pin, ...] = ()

    @property
    def run_name(self) -> str:
        """What its folders are called."""
        return f"{self.name}-{self.scale}"

    @property
    def components(self) -> tuple[str, ...]:
        """What all phases together draw from, sorted."""
        return tuple(sorted({name for phase in self.phases for name in phase.components}))

    def phase(self, name: str) -> Phase:
        """The phase of that name.

        Raises:
            ConfigError: there is none.
        """
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise ConfigError(f"{self.name} has no phase {name!r}; it has {', '.join(phase.name for phase in self.phases)}.")

    def lineage(self, phase: Phase) -> tuple[Phase, ...]:
        """The phase's ancestors and itself, oldest first."""
        before = self.lineage(self.phase(phase.parent)) if phase.parent else ()
        return (*before, phase)

    def batch_of_lineage(self, phase: Phase) -> Steps[int]:
        """Batch sizes from step 0 to the phase's end."""
        return Steps[int](
            _without_repeats((step, size) for part, stop in self._parts(phase) for step, size in part.batch.within(part.start_step, stop))
        )

    def mixture_of_lineage(self, phase: Phase) -> Steps[MixtureShares]:
        """Mixtures from step 0 to the phase's end: the data order reaches back to the start of the lineage."""
        entries = ((step, shares) for part, stop in self._parts(phase) for step, shares in part.mixture.within(part.start_step, stop))
        return Steps[MixtureShares](_without_repeats(entries))

    def _parts(self, phase: Phase) -> list[tuple[Phase, int]]:
        lineage = self.lineage(phase)
        return [(part, child.start_step) for part, child in pairwise(lineage)] + [(phase, phase.stop_step)]

    @model_validator(mode="after")
    def _hand_offs_are_declared(self) -> "Recipe":
        known: dict[str, Phase] = {}
        for phase in self.phases:
            if phase.name in known:
                raise ValueError(f"two phases are called {phase.name}")
            if isinstance(phase.start, HandOff):
                _check_hand_off(phase, phase.start, known)
            known[phase.name] = phase
        return self

    @model_validator(mode="after")
    def _sources_and_pins_have_components(self) -> "Recipe":
        for kind, names in (("sources", tuple(self.sources)), ("pins", tuple(pin.component for pin in self.pins))):
            if unknown := sorted(set(names) - set(self.components)):
                raise ValueError(
                    f"{kind} names {', '.join(unknown)}, which no phase draws from; they draw from {', '.join(self.components)}"
                )
        caches = [f"{pin.component} ({pin.split})" for pin in self.pins]
        if twice := sorted({cache for cache in caches if caches.count(cache) > 1}):
            raise ValueError(f"pins names the cache of {', '.join(twice)} more than once")
        return self


def changes_between(parent: Phase, phase: Phase) -> dict[Change, tuple[object, object]]:
    """What the hand-off changes: name → (before, after).

    A learning rate counts as changed where it jumps by more than 1 %. The state of the optimizer is its own and that of the rolling
    windows; fresh gains of QK-norm come with a change of architecture.
    """
    before, after = phase.start_step - 1, phase.start_step
    rate_before, rate_after = value_in(segment_at(parent, before), after), value_in(segment_at(phase, after), after)
    batches_after = tuple(dict.fromkeys(size for _, size in phase.batch.within(after, phase.stop_step)))
    ema_before, ema_after = parent.stability.ema_decay.at(before), phase.stability.ema_decay.at(after)
    ema_state, optimizer_state, windows = (_origin(phase.start, part) for part in ("ema", "optimizer", "rolling"))
    compared: dict[Change, tuple[object, object]] = {
        "architecture": (parent.model.model_copy(update={"rope": None}), phase.model.model_copy(update={"rope": None})),
        "rope": (parent.model.rope, phase.model.rope),
        "batch": ((parent.batch.at(before),), batches_after),
        "schedule": (_shape(segment_at(parent, before)), _shape(segment_at(phase, after))),
        "optimizer": (parent.optimizer, phase.optimizer),
        "optimizer_state": ({"optimizer": CARRIED, "windows": CARRIED}, {"optimizer": optimizer_state, "windows": windows}),
        "mixture": (parent.mixture.at(before), phase.mixture.at(after)),
        "order": (parent.order, phase.order),
        "ema": (CARRIED, ema_state) if ema_before == ema_after else (ema_before, ema_after),
        "z_loss": (parent.stability.z_loss.at(before), phase.stability.z_loss.at(after)),
        "max_grad_norm": (parent.stability.max_grad_norm.at(before), phase.stability.max_grad_norm.at(after)),
        "max_update_rms": (parent.stability.max_update_rms.at(before), phase.stability.max_update_rms.at(after)),
        "max_update_norm": (parent.stability.max_update_norm.at(before), phase.stability.max_update_norm.at(after)),
        "skip_step": (parent.stability.skip_step.at(before), phase.stability.skip_step.at(after)),
        "slice": (parent.slice.at(before), phase.slice.at(after)),
    }
    found: dict[Change, tuple[object, object]] = {name: pair for name, pair in compared.items() if pair[0] != pair[1]}
    if abs(rate_after - rate_before) > 0.01 * max(rate_before, rate_after):
        found["learning_rate"] = (rate_before, rate_after)
    return found


def _origin(start: FromScratch | HandOff, part: StatePart) -> str:
    """Where a part of the state comes from, in words."""
    if not isinstance(start, HandOff):
        return CARRIED
    grafts = [f"grafted from {graft.phase} {graft.step}" for graft in start.graft if graft.part == part]
    return "fresh" if part in start.fresh else grafts[0] if grafts else CARRIED


def segment_at(phase: Phase, step: int) -> LearningRateSegment:
    """The segment that update number `step` falls into."""
    return next((segment for segment in phase.learning_rate if segment.start_step <= step < segment.end_step), phase.learning_rate[-1])


def _shape(segment: LearningRateSegment) -> str:
    """A segment in a word or two: constant, linear decay, linear warm-up …"""
    if segment.kind == "constant":
        return "constant"
    return f"{segment.kind} {'decay' if segment.end < segment.start else 'warm-up'}"


def _check_hand_off(phase: Phase, start: HandOff, known: dict[str, Phase]) -> None:
    parent = _having(known, start.parent, start.step, f"phase {phase.name} starts from")
    for graft in start.graft:
        _having(known, graft.phase, graft.step, f"phase {phase.name} grafts {graft.part} from")
    undeclared = sorted(set(changes_between(parent, phase)) - set(start.declares))
    if undeclared:
        raise ValueError(
            f"the hand-off {parent.name} → {phase.name} changes {', '.join(undeclared)} without declaring it: "
            "add it to `declares`, or take the change back"
        )


def _having(known: dict[str, Phase], name: str, step: int, takes_from: str) -> Phase:
    """The phase of that name, which must be there already and have that step."""
    phase = known.get(name)
    if phase is None:
        raise ValueError(f"{takes_from} {name}, which is no phase before it")
    if not phase.start_step < step <= phase.stop_step:
        raise ValueError(f"{takes_from} step {step} of {name}, a step it never has: it trains steps {phase.start_step} → {phase.stop_step}")
    return phase


def _without_repeats(entries: Iterable[tuple[int, T]]) -> tuple[tuple[int, T], ...]:
    kept: list[tuple[int, T]] = []
    for step, value in entries:
        if not kept or kept[-1][1] != value:
            kept.append((step, value))
    return tuple(kept)
