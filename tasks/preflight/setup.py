"""One slice with one batch, and the steps of a phase that use them: what has one compiled step."""

from typing import Protocol, TypeVar

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import LossOn, ModelConfig, Optimizer, PackingKind, RollingLimit, Stability, Steps
from phasewise.trainer.preflight.spec import StepShape

T = TypeVar("T")


class Shaped(Protocol):
    """A phase of a recipe, or a run."""

    @property
    def start_step(self) -> int: ...  # noqa: D102

    @property
    def stop_step(self) -> int: ...  # noqa: D102

    @property
    def model(self) -> ModelConfig: ...  # noqa: D102

    @property
    def optimizer(self) -> Optimizer: ...  # noqa: D102

    @property
    def stability(self) -> Stability: ...  # noqa: D102

    @property
    def packing(self) -> PackingKind: ...  # noqa: D102

    @property
    def loss_on(self) -> LossOn: ...  # noqa: D102


class Setup(Frozen):
    """Attributes:
    stretches: start and stop step of each, where the phase comes back to the same slice and batch.
    """

    phase: str
    slice: str
    stretches: tuple[tuple[int, int], ...]
    step: StepShape

    @property
    def steps(self) -> int:
        """Updates of all stretches."""
        return sum(stop - start for start, stop in self.stretches)

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.phase}, {self.step.batch_sequences:,} sequences on {self.slice}"


def step_shape(phase: Shaped, batch_sequences: int) -> StepShape:
    """What of the phase decides its compiled step."""

    def ever(values: Steps[T | None]) -> list[T]:
        return [value for _, value in values.within(phase.start_step, phase.stop_step) if value is not None]

    def window(limits: Steps[RollingLimit | None]) -> int | None:
        return next((limit.window for limit in ever(limits)), None)

    stability = phase.stability
    return StepShape(
        model=phase.model,
        optimizer=phase.optimizer,
        batch_sequences=batch_sequences,
        keeps_average=bool(ever(stability.ema_decay)),
        clips_update_rms=bool(ever(stability.max_update_rms)),
        update_norm_window=window(stability.max_update_norm),
        skip_step_window=window(stability.skip_step),
        packing=phase.packing,
        loss_on=phase.loss_on,
    )
