"""The learning rate at a step, from segments with absolute ends."""

import math

from trainer.config import LearningRateSegment


def learning_rate_at(segments: tuple[LearningRateSegment, ...], step: int) -> float:
    """The learning rate that update number `step` (counted from 0) uses.

    A step where one segment ends and the next starts belongs to the next.
    """
    segment = next((s for s in segments if s.start_step <= step < s.end_step), segments[-1])
    return value_in(segment, step)


def value_in(segment: LearningRateSegment, step: int) -> float:
    """A segment's value; `inverse` moves 1/value linearly (WSD-S: Wen et al., 2024, §3)."""
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
