"""What keeps a run steady. Everything can be switched at a step; None is off."""

from typing import Annotated

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config.schema import Steps

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RollingLimit(Frozen):
    """mean + `sigmas` standard deviations of the last `window` values; no limit until `min_samples` of them are there."""

    window: int = Field(gt=1)
    min_samples: int = Field(gt=1)
    sigmas: float = Field(gt=0)

    @model_validator(mode="after")
    def _can_be_reached(self) -> "RollingLimit":
        if self.min_samples > self.window:
            raise ValueError(f"min_samples must be at most the window, found {self.min_samples} of {self.window}")
        return self


class Stability(Frozen):
    """`trainer.step` says what each of these does.

    Attributes:
        max_grad_norm: clips the global norm of the gradients.
        max_update_rms: clips each weight's update, before the learning rate, to this root mean square.
        max_update_norm: clips the global norm of the update, before the learning rate, by the unclipped norms before it.
        skip_step: an update whose loss or gradient norm lies above the limit is not applied.
        z_loss: weight of mean(logsumexp²) in the loss.
        ema_decay: of the moving average of the weights; while it is off the average is the weights themselves.
    """

    max_grad_norm: Steps[Positive | None]
    max_update_rms: Steps[Positive | None]
    max_update_norm: Steps[RollingLimit | None]
    skip_step: Steps[RollingLimit | None]
    z_loss: Steps[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None]
    ema_decay: Steps[Annotated[float, Field(ge=0, lt=1)] | None]

    @model_validator(mode="after")
    def _one_window_each(self) -> "Stability":
        for name, limits in (("max_update_norm", self.max_update_norm), ("skip_step", self.skip_step)):
            windows = {limit.window for _, limit in limits.root if limit}
            if len(windows) > 1:
                raise ValueError(f"{name} must keep one window through a phase, found {', '.join(map(str, sorted(windows)))}")
        return self
