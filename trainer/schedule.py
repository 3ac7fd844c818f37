"""The scheduled values of a step, computed on the host, so that nothing is compiled again when one changes."""

import math
from typing import NamedTuple, TypeVar

from phasewise.trainer.config import AdamC, LearningRateSegment, Optimizer, RollingLimit, RunConfig, Steps

T = TypeVar("T")


class Limit(NamedTuple):
    """mean + `sigmas` standard deviations, once `min_samples` values are there; infinite sigmas are no limit."""

    sigmas: float
    min_samples: int


NO_LIMIT = Limit(math.inf, 1)


class Scheduled(NamedTuple):
    """The scheduled values of one update, as plain numbers; what is off is its neutral value (z_loss 0, max_grad_norm infinity).

    Attributes:
        decay_scale: multiplies the decay of every weight.
        max_update_rms: None where the phase never clips by it, so that it costs nothing.
        max_update_norm, skip_step: they need the windows that `trainer.state.init_rolling` makes for a phase that has them at any step.
    """

    learning_rate: float
    z_loss: float
    max_grad_norm: float
    ema_decay: float
    decay_scale: float = 1.0
    max_update_rms: float | None = None
    max_update_norm: Limit = NO_LIMIT
    skip_step: Limit = NO_LIMIT


def scheduled_at(run: RunConfig, step: int) -> Scheduled:
    """The scheduled values of update number `step` (counted from 0), with the neutral value for what is off."""
    stability = run.stability
    learning_rate = learning_rate_at(run.learning_rate, step)
    max_update_rms = _or_infinite(stability.max_update_rms.at(step)) if ever_on(run, stability.max_update_rms) else None
    return Scheduled(
        learning_rate=learning_rate,
        z_loss=stability.z_loss.at(step) or 0.0,
        max_grad_norm=_or_infinite(stability.max_grad_norm.at(step)),
        ema_decay=stability.ema_decay.at(step) or 0.0,
        decay_scale=decay_scale(run.optimizer, learning_rate),
        max_update_rms=max_update_rms,
        max_update_norm=_limit(stability.max_update_norm.at(step)),
        skip_step=_limit(stability.skip_step.at(step)),
    )


def ever_on(run: RunConfig, values: Steps[T | None]) -> bool:
    """Whether something is on at any step of the phase."""
    return any(value is not None for _, value in values.within(run.start_step, run.stop_step))


def decay_scale(optimizer: Optimizer, learning_rate: float) -> float:
    """learning rate / peak for AdamC, whose effective decay is weight_decay · learning rate² / peak (Defazio, 2025, §4); else 1."""
    return learning_rate / optimizer.peak_learning_rate if isinstance(optimizer, AdamC) else 1.0


def learning_rate_at(segments: tuple[LearningRateSegment, ...], step: int) -> float:
    """The learning rate that update number `step` (counted from 0) uses.

    A step where one segment ends and the next starts belongs to the next.
    """
    segment = next((s for s in segments if s.start_step <= step < s.end_step), segments[-1])
    return value_in(segment, step)


def value_in(segment: LearningRateSegment, step: int) -> float:
    """A segment's value; `inverse` moves 1/value linearly (WSD-S: Wen et al., 2024, §3)."""
    done = min(max((step - segment.start_step) / (segment.end_step - segment.start_step), 0.0), 1.0)
    start = segment.start
    end = segment.end
    match segment.kind:
        case "constant":
            return start
        case "linear":
            return start + (end - start) * done
        case "cosine":
            return end + (start - end) * (1 + math.cos(math.pi * done)) / 2
        case "inverse":
            return 1 / ((1 - done) / start + done / end)


def turns_of(segments: tuple[LearningRateSegment, ...], start_step: int, stop_step: int) -> tuple[float, ...]:
    """The first and the last learning rate of these steps, and between them the highest, where it is above both."""
    parts = [one for one in segments if one.start_step < stop_step and one.end_step > start_step]
    first, last = value_in(parts[0], start_step), value_in(parts[-1], stop_step)
    top = max(value_in(one, step) for one in parts for step in (max(one.start_step, start_step), min(one.end_step, stop_step)))
    return (first, top, last) if top > max(first, last) else (first, last)


def _limit(limit: RollingLimit | None) -> Limit:
    return NO_LIMIT if limit is None else Limit(limit.sigmas, limit.min_samples)


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
