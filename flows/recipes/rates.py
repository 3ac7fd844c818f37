"""The shapes of a learning rate: segments with a step and a value at both ends. Steps are those of the lineage."""

from phasewise.trainer.config import LearningRateSegment

Rates = tuple[LearningRateSegment, ...]


def constant(start_step: int, end_step: int, rate: float) -> LearningRateSegment:
    """One rate throughout."""
    return LearningRateSegment(kind="constant", start_step=start_step, end_step=end_step, start=rate, end=rate)


def linear(start_step: int, end_step: int, start: float, end: float) -> LearningRateSegment:
    """From one rate to another in a straight line."""
    return LearningRateSegment(kind="linear", start_step=start_step, end_step=end_step, start=start, end=end)


def cosine(start_step: int, end_step: int, start: float, end: float) -> LearningRateSegment:
    """From one rate to another along half a wave of a cosine."""
    return LearningRateSegment(kind="cosine", start_step=start_step, end_step=end_step, start=start, end=end)


def inverse(start_step: int, end_step: int, start: float, end: float) -> LearningRateSegment:
    """From one rate to another so that 1 / rate moves in a straight line."""
    return LearningRateSegment(kind="inverse", start_step=start_step, end_step=end_step, start=start, end=end)


def cooldown(start_step: int, end_step: int, peak: float, floor: float = 0.0) -> Rates:
    """A straight line down, for a phase that cools down from its first step to its last."""
    return (linear(start_step, end_step, peak, floor),)


def wsd(*, stop_step: int, warmup: int, decay: int, peak: float, floor: float = 0.0) -> Rates:
    """Warm-up from 0, a stable rate, and a straight decay over the last `decay` steps; `decay=0` leaves that to the next phase."""
    segments = [linear(0, warmup, 0.0, peak)] if warmup else []
    segments.append(constant(warmup, stop_step - decay, peak))
    return (*segments, *(cooldown(stop_step - decay, stop_step, peak, floor) if decay else ()))


def wsd_s(*, stop_step: int, cycle: int, decay: int, warmup: int, peak: float, floor: float) -> Rates:
    """Cycles of a plateau and an inverse decay, back to the peak without a warm-up (Wen et al., 2024); the first cycle warms up from 0."""
    segments = [linear(0, warmup, 0.0, peak)]
    for end in range(cycle, stop_step + 1, cycle):
        segments.append(constant(segments[-1].end_step, end - decay, peak))
        segments.append(inverse(end - decay, end, peak, floor))
    return tuple(segments)
