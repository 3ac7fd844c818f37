"""At which point of its learning rate a phase ended: two models are compared on scores where this is alike."""

from typing import TypedDict

from phasewise.trainer.config import RunConfig, value_in


class SchedulePoint(TypedDict):
    """The end of a phase's schedule.

    Attributes:
        end: learning rate at its last step.
        peak: its highest learning rate from start to end.
        optimizer: kind of the optimizer. A rate means another thing to each.
    """

    end: float
    peak: float
    optimizer: str


def read_schedule_point(run: RunConfig) -> SchedulePoint:
    """Of a run as it is resolved. Segments are monotonic, so a phase's highest rate is at an end of one of them."""
    inside = [one for one in run.learning_rate if one.start_step < run.stop_step and one.end_step > run.start_step]
    rates = [value_in(one, step) for one in inside for step in (max(one.start_step, run.start_step), min(one.end_step, run.stop_step))]
    return SchedulePoint(end=value_in(inside[-1], run.stop_step), peak=max(rates), optimizer=run.optimizer.kind)
