"""The setups of a phase: stretches of steps on one slice with one batch, which have one compiled step."""

from collections.abc import Iterable
from typing import TypeVar

from flows.recipes.phase import LOCAL_SLICE, Phase
from tasks.preflight.setup import Setup
from trainer.config import RollingLimit, Steps
from trainer.preflight.spec import StepShape

T = TypeVar("T")


def setups_of(phases: Iterable[Phase], slice_name: str | None = None) -> list[Setup]:
    """Every setup that is not on this machine, in order.

    Args:
        slice_name: take this slice in place of the recipe's, for all phases.
    """
    return [setup for phase in phases for setup in _setups(phase, slice_name)]


def _setups(phase: Phase, slice_name: str | None) -> list[Setup]:
    steps = {step for values in (phase.slice, phase.batch) for step, _ in values.within(phase.start_step, phase.stop_step)}
    starts = sorted(steps)
    stretches: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for start, stop in zip(starts, [*starts[1:], phase.stop_step], strict=True):
        stretches.setdefault((slice_name or phase.slice.at(start), phase.batch.at(start)), []).append((start, stop))
    return [
        Setup(phase=phase.name, slice=name, stretches=_joined(found), step=step_shape(phase, batch))
        for (name, batch), found in stretches.items()
        if name != LOCAL_SLICE
    ]


def _joined(stretches: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Neighbours as one: another slice's name may have been between them."""
    joined: list[tuple[int, int]] = []
    for start, stop in stretches:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def step_shape(phase: Phase, batch_sequences: int) -> StepShape:
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
    )
