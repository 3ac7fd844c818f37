"""What is done where the loss is no number any more, or jumps."""

from typing import Literal

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config.stability import RollingLimit


class Recovery(Frozen):
    """What the trainer does where an update's loss or norms are no number, or its loss lies above a limit. Without one it stops.

    Attributes:
        action: `roll_back` goes back to the state of an earlier checkpoint and passes over the updates between, and their data, for good;
            `ask` stops, and does so once a person has approved it.
        max_loss: the loss may not lie above mean + `sigmas` deviations of the updates before it; None judges only what is no number.
        checkpoints_back: to which of the steps that are saved by rule (`checkpoints.every_steps`, `at_steps`, the phase's start), counted
            back from the update; 1 is the last one before it.
        steps_more: so many updates after the one that was found are passed over, too.
        max_times: how often a phase may roll back; after that it stops.
    """

    action: Literal["roll_back", "ask"]
    max_loss: RollingLimit | None
    checkpoints_back: int = Field(gt=0)
    steps_more: int = Field(ge=0)
    max_times: int = Field(gt=0)
