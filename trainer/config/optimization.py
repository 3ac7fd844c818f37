"""Values by step, the learning rate, optimizers, stability limits and recovery."""

import math
import struct
from itertools import pairwise
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field, RootModel, model_validator

from phasewise.trainer.base.frozen import Frozen

T = TypeVar("T")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Steps(RootModel[tuple[tuple[int, T], ...]], Generic[T]):
    """A value that changes at given steps: `((0, 8192), (18_500, 7680))` is 8192 before step 18,500, and then 7680.

    The first entry is also valid before its step. A plain value is valid at every step.
    """

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _is_one_value_or_many(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple | RootModel) else ((0, value),)

    @model_validator(mode="after")
    def _steps_increase(self) -> "Steps[T]":
        if not self.root:
            raise ValueError("a value by steps needs at least one entry, such as [[0, 1024]]")
        for (before, _), (after, _) in pairwise(self.root):
            if after <= before:
                raise ValueError(f"steps must increase, but {after} follows {before}")
        return self

    def at(self, step: int) -> T:
        """Return the value in force when `step` updates have been applied."""
        return next((value for start, value in reversed(self.root) if start <= step), self.root[0][1])

    def within(self, start_step: int, stop_step: int) -> tuple[tuple[int, T], ...]:
        """Return the entries in force over `[start_step, stop_step)`. The first entry has the step `start_step`."""
        inside = tuple(entry for entry in self.root if start_step < entry[0] < stop_step)
        return ((start_step, self.at(start_step)), *inside)


def always(value: T) -> Steps[T]:
    """Return the same value at every step."""
    return Steps(((0, value),))


class LearningRateSegment(Frozen):
    """From `start` at `start_step` to `end` at `end_step`. `inverse` moves 1/value linearly (WSD-S: Wen et al., 2024, §3)."""

    kind: Literal["constant", "linear", "cosine", "inverse"]
    start_step: int = Field(ge=0)
    end_step: int = Field(gt=0)
    start: float = Field(ge=0)
    end: float = Field(ge=0)

    @model_validator(mode="after")
    def _is_possible(self) -> "LearningRateSegment":
        if self.end_step <= self.start_step:
            raise ValueError(f"a segment must end after it starts, found {self.start_step} → {self.end_step}")
        if self.kind == "constant" and self.start != self.end:
            raise ValueError(f"a constant segment has one value, found {self.start} → {self.end}")
        if self.kind == "inverse" and min(self.start, self.end) <= 0:
            raise ValueError(f"an inverse segment needs positive values, found {self.start} → {self.end}")
        return self


Segments = tuple[LearningRateSegment, ...]


def check_segments(segments: Segments, start_step: int, stop_step: int) -> None:
    """Refuse segments with gaps or overlaps. The first segment may start before `start_step`."""
    if not segments or not segments[0].start_step <= start_step < segments[0].end_step or segments[-1].end_step < stop_step:
        covered = f"{segments[0].start_step} → {segments[-1].end_step}" if segments else "nothing"
        raise ValueError(f"the learning rate must cover steps {start_step} → {stop_step}, found {covered}")
    for before, after in pairwise(segments):
        if before.end_step != after.start_step:
            raise ValueError(f"learning-rate segments must join: one ends at {before.end_step}, the next starts at {after.start_step}")


def check_segments_end(segments: Segments, stop_step: int) -> None:
    """Refuse a schedule that ends after the phase."""
    late = [segment for segment in segments if segment.start_step >= stop_step]
    cut = [segment for segment in segments if segment.start_step < stop_step < segment.end_step and segment.kind != "constant"]
    for segment in (*late, *cut):
        place = "never starts" if segment in late else "is not finished"
        raise ValueError(
            f"the learning rate must have its last value at step {stop_step}, where the phase stops, found a {segment.kind} segment from "
            f"{segment.start:g} to {segment.end:g} in steps {segment.start_step} → {segment.end_step}, which {place}. Was the number of "
            f"steps changed, and not the schedule? Let the segments end at {stop_step}, or declare the phase `abandoned`"
        )


def learning_rate_at(segments: Segments, step: int) -> float:
    """Return the learning rate of update number `step` (from 0). The first step of a segment belongs to it, the end step does not."""
    return value_in(next((s for s in segments if s.start_step <= step < s.end_step), segments[-1]), step)


def value_in(segment: LearningRateSegment, step: int) -> float:
    """Return a segment's value at a step. Before and after the segment it is the value at the nearest end."""
    done = min(max((step - segment.start_step) / (segment.end_step - segment.start_step), 0.0), 1.0)
    start, end = segment.start, segment.end
    match segment.kind:
        case "constant":
            return start
        case "linear":
            return start + (end - start) * done
        case "cosine":
            return end + (start - end) * (1 + math.cos(math.pi * done)) / 2
        case "inverse":
            return 1 / ((1 - done) / start + done / end)


def first_changed_rate(before: Segments, now: Segments, start_step: int, stop_step: int) -> tuple[int, float, float] | None:
    """Return the first update (from 0) with another learning rate in float32, with both rates. Equal rates may have different segments."""
    for update in range(start_step, stop_step):
        was, rate = learning_rate_at(before, update), learning_rate_at(now, update)
        if struct.pack("f", was) != struct.pack("f", rate):
            return update, was, rate
    return None


def turns_of(segments: Segments, start_step: int, stop_step: int) -> tuple[float, ...]:
    """Return the first and the last learning rate of the steps, and between them a higher maximum if it exists."""
    parts = [one for one in segments if one.start_step < stop_step and one.end_step > start_step]
    first, last = value_in(parts[0], start_step), value_in(parts[-1], stop_step)
    top = max(value_in(one, step) for one in parts for step in (max(one.start_step, start_step), min(one.end_step, stop_step)))
    return (first, top, last) if top > max(first, last) else (first, last)


class Adam(Frozen):
    """Settings of every kind of Adam (Kingma and Ba, 2015). The learning rate also multiplies the decay."""

    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    epsilon: float = Field(gt=0)
    weight_decay: float = Field(ge=0)


class AdamW(Adam):
    """Adam with decoupled decay (Loshchilov and Hutter, 2019): effective decay = learning rate × `weight_decay`."""

    kind: Literal["adamw"]


class AdamC(Adam):
    """AdamW whose decay is `weight_decay` × learning rate / `peak_learning_rate` (Defazio, 2025)."""

    kind: Literal["adamc"]
    peak_learning_rate: float = Field(gt=0)


class NAdamW(Adam):
    """AdamW with Nesterov's momentum (Dozat, 2016)."""

    kind: Literal["nadamw"]


class Muon(Frozen):
    """Muon for the matrices of the blocks, AdamW for embedding, head and gains (Jordan et al., 2024)."""

    kind: Literal["muon"]
    momentum: float = Field(ge=0, lt=1)
    nesterov: bool
    newton_schulz_steps: int = Field(gt=0)
    epsilon: float = Field(gt=0)  # addend of the norm before the Newton–Schulz steps
    weight_decay: float = Field(ge=0)
    adam: AdamW
    adam_learning_rate_scale: float = Field(gt=0)  # factor of the run's learning rate for AdamW's group
    # limit of AdamW's group, after `stability.max_grad_norm`
    max_adam_grad_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    newton_schulz_coefficients: Literal["jordan", "dion"] = "jordan"  # one triple for all steps, or Dion's triple for each of five steps

    @model_validator(mode="after")
    def _has_a_triple_for_each_step(self) -> "Muon":
        if self.newton_schulz_coefficients == "dion" and self.newton_schulz_steps != 5:
            raise ValueError(f"newton_schulz_steps must be 5 with the coefficients of dion, found {self.newton_schulz_steps}")
        return self


Optimizer = Annotated[AdamW | AdamC | NAdamW | Muon, Field(discriminator="kind")]


class RollingLimit(Frozen):
    """mean + `sigmas` standard deviations of the last `window` values. No limit for fewer than `min_samples` values."""

    window: int = Field(gt=1)
    min_samples: int = Field(gt=1)
    sigmas: float = Field(gt=0)

    @model_validator(mode="after")
    def _can_be_reached(self) -> "RollingLimit":
        if self.min_samples > self.window:
            raise ValueError(f"min_samples must be at most the window, found {self.min_samples} of {self.window}")
        return self


SkipOn = Literal["loss_and_grad_norm", "update_norm"]


class SkipLimit(RollingLimit):
    """Limit of skip-step: on loss and gradient norm (OLMo and Levanter), or on the unclipped update norm (32B retrospective, Phase 1)."""

    skip_on: SkipOn = "loss_and_grad_norm"


class Stability(Frozen):
    """Stability limits by step. None is off."""

    max_grad_norm: Steps[Positive | None]  # global norm of the gradients
    max_update_rms: Steps[Positive | None]  # root mean square of each weight's update, before the learning rate
    max_update_norm: Steps[RollingLimit | None]  # global norm of the update, before the learning rate, from earlier unclipped norms
    skip_step: Steps[SkipLimit | None]  # an update above the limit is not applied
    z_loss: Steps[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None]  # weight of mean(logsumexp²) in the loss
    ema_decay: Steps[Annotated[float, Field(ge=0, lt=1)] | None]  # while it is off, the moving average equals the weights

    @model_validator(mode="after")
    def _one_window_each(self) -> "Stability":
        for name, limits in (("max_update_norm", self.max_update_norm), ("skip_step", self.skip_step)):
            windows = {(limit.window, getattr(limit, "skip_on", "")) for _, limit in limits.root if limit}
            if len(windows) > 1:
                found = ", ".join(f"{window} {on}".strip() for window, on in sorted(windows))
                raise ValueError(f"{name} must keep one window through a phase, found {found}")
        return self


class Recovery(Frozen):
    """Reaction to an update with NaN in loss or norms, or with a loss above a limit. Without a recovery, the trainer stops."""

    action: Literal["roll_back", "ask"]  # return to an earlier checkpoint and skip the data, or wait for a person
    max_loss: RollingLimit | None  # None rejects only NaN
    checkpoints_back: int = Field(gt=0)  # among steps saved by rule (`every_steps`, `at_steps`, the phase's start), 1 is the last
    steps_more: int = Field(ge=0)  # updates to skip after the rejected update
    max_times: int = Field(gt=0)  # roll-backs of a phase
