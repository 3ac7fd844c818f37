"""The learning rate, as segments with absolute ends."""

from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen


class LearningRateSegment(Frozen):
    """From `start` at `start_step` to `end` at `end_step`. `inverse` moves the reciprocal linearly, as WSD-S decays do."""

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


def check_segments(segments: tuple[LearningRateSegment, ...], start_step: int, stop_step: int) -> None:
    """Refuse segments that leave a step without a learning rate, or give it two. The first may have begun before `start_step`."""
    if not segments or not segments[0].start_step <= start_step < segments[0].end_step or segments[-1].end_step < stop_step:
        covered = f"{segments[0].start_step} → {segments[-1].end_step}" if segments else "nothing"
        raise ValueError(f"the learning rate must cover steps {start_step} → {stop_step}, found {covered}")
    for before, after in pairwise(segments):
        if before.end_step != after.start_step:
            raise ValueError(f"learning-rate segments must join: one ends at {before.end_step}, the next starts at {after.start_step}")


def check_segments_end(segments: tuple[LearningRateSegment, ...], stop_step: int) -> None:
    """Refuse a schedule that goes on after the last step: what it says of the end is not what happens there."""
    late = [segment for segment in segments if segment.start_step >= stop_step]
    cut = [segment for segment in segments if segment.start_step < stop_step < segment.end_step and segment.kind != "constant"]
    for segment in (*late, *cut):
        place = "never starts" if segment in late else "is not finished"
        raise ValueError(
            f"the learning rate must have its last value at step {stop_step}, where the phase stops; found a {segment.kind} segment from "
            f"{segment.start:g} to {segment.end:g} in steps {segment.start_step} → {segment.end_step}, which {place}. Was the number of "
            f"steps changed, and not the schedule? Let the segments end at {stop_step}, or say that the phase was `abandoned`"
        )
