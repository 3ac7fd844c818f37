"""The steps of a recipe on a shorter axis: what a smaller scale does to everything that counts steps."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from phasewise.flows.recipes.phase import GraftFrom, HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.config import CheckpointPolicy, LearningRateSegment, RollingLimit, Steps

T = TypeVar("T")
S = TypeVar("S")
MIN_WINDOW_STEPS, MIN_WINDOW_SAMPLES = 8, 2


class StepAxis(NamedTuple):
    """One step for so many of the recipe's.

    Attributes:
        min_segment_steps: a warm-up or a decay takes so many at least.
        min_warmup_steps: the same, for one that begins at step 0.
    """

    divisor: float
    min_segment_steps: int
    min_warmup_steps: int = 0

    def steps(self, full: int) -> int:
        """A step of the recipe's axis on this one."""
        return round(full / self.divisor)

    def by_steps(self, values: Steps[T], convert: Callable[[T], S]) -> Steps[S]:
        """Each value converted, each step on this axis; of entries that fall together the last one holds."""
        return Steps(tuple({self.steps(step): convert(value) for step, value in values.root}.items()))

    def hand_off(self, start: HandOff) -> HandOff:
        """The same hand-off, with its steps on this axis."""
        grafts = tuple(GraftFrom(part=graft.part, phase=graft.phase, step=self.steps(graft.step)) for graft in start.graft)
        return HandOff(parent=start.parent, step=self.steps(start.step), fresh=start.fresh, graft=grafts, declares=start.declares)

    def segments(self, segments: tuple[LearningRateSegment, ...], *, factor: float = 1.0) -> tuple[LearningRateSegment, ...]:
        """Segments on this axis, their rates times `factor`. One that would be too short takes its steps from the segment before it, the
        first one from the next."""
        last = segments[-1]
        ends = [self.steps(segment.end_step) for segment in segments]
        starts = [self.steps(segments[0].start_step)]
        for index in range(1, len(segments)):
            latest = ends[index] - self.min_segment_steps
            earliest = starts[-1] + self._least(segments[index - 1], ends[index] - starts[-1])
            starts.append(max(earliest, min(self.steps(segments[index].start_step), latest)))
        ends = [*starts[1:], max(starts[-1] + 1, self.steps(last.end_step))]
        return tuple(
            LearningRateSegment(
                kind=segment.kind, start_step=start, end_step=end, start=segment.start * factor, end=segment.end * factor
            )
            for segment, start, end in zip(segments, starts, ends, strict=True)
        )  # fmt: skip

    def _least(self, segment: LearningRateSegment, room: int) -> int:
        """The least that a segment takes, of the room that it has together with the next one."""
        if segment.start_step == 0 and segment.kind != "constant" and self.min_warmup_steps:
            return max(self.min_segment_steps, min(self.min_warmup_steps, room // 2))
        return self.min_segment_steps

    def needed_steps(self, recipe: Recipe, phase: Phase) -> tuple[int, ...]:
        """The steps within a phase that others start from or take a part of."""
        starts = [other.start for other in recipe.phases if isinstance(other.start, HandOff)]
        taken = [(start.parent, start.step) for start in starts] + [(graft.phase, graft.step) for start in starts for graft in start.graft]
        return tuple(sorted({self.steps(step) for name, step in taken if name == phase.name and step < phase.stop_step}))

    def checkpoints(self, policy: CheckpointPolicy, keep_steps: tuple[int, ...], *, every_minutes: float | None) -> CheckpointPolicy:
        """As often by steps; only the last one and those of `keep_steps` are kept."""
        every = max(1, self.steps(policy.every_steps))
        return CheckpointPolicy(every_steps=every, every_minutes=every_minutes, keep_all=False, at_steps=keep_steps)

    def max_window(self, recipe: Recipe) -> int:
        """The most steps that a window holds: full at half of the shortest phase, it guards the other half with all that it can know.

        Branches do not count: what they use is handed on to them full, and some are two steps long.
        """
        phases = [phase for phase in recipe.main_line or recipe.phases if _has_windows(phase)]
        lengths = [self.steps(phase.stop_step) - self.steps(phase.start_step) for phase in phases]
        return max(MIN_WINDOW_STEPS, min(lengths, default=0) // 2)

    def ema(self, decay: float | None, min_steps: int) -> float | None:
        """The decay whose horizon 1 / (1 - decay) is as much shorter as the axis, and at least `min_steps`."""
        return None if decay is None else 1 - 1 / max(min_steps, 1 / (1 - decay) / self.divisor)


def shorter_window(limit: RollingLimit | None, max_window: int) -> RollingLimit | None:
    """The same limit on a window of at most so many steps, from the same share of it on."""
    if limit is None:
        return None
    window = min(limit.window, max_window)
    min_samples = max(MIN_WINDOW_SAMPLES, round(limit.min_samples * window / limit.window))
    return RollingLimit(window=window, min_samples=min_samples, sigmas=limit.sigmas)


def _has_windows(phase: Phase) -> bool:
    entries = (limits.within(phase.start_step, phase.stop_step) for limits in (phase.stability.max_update_norm, phase.stability.skip_step))
    return any(limit is not None for limits in entries for _, limit in limits)
