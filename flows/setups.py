"""The setups of a phase: stretches of steps on one slice with one batch, which have one compiled step."""

from collections.abc import Iterable

from phasewise.flows.recipes.phase import LOCAL_SLICE, Phase
from phasewise.tasks.preflight.plan import Setup, step_shape


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
    joined: list[tuple[int, int]] = []
    for start, stop in stretches:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)
