"""The smallest slice of a kind of chip that a step fits, however slow: asked of the compiler, with the plan that needs least memory."""

from collections.abc import Callable

import numpy as np

from phasewise.tasks.preflight.candidates import policies_for, settings_for
from phasewise.tasks.preflight.estimate import Table
from phasewise.tasks.preflight.plan import GIB, Plan, spec_for
from phasewise.tasks.preflight.search import RESERVED_BYTES, host_gib, refusal
from phasewise.tasks.preflight.sizes import FLOAT32_BYTES, count_weights, state_bytes
from phasewise.tasks.preflight.slices import Slice, find_slice, read_table
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.preflight.spec import Result, Spec, StepShape


class Smallest(Frozen):
    """Attributes:
    where: None where the largest slice is too small.
    plan, result: what was compiled on it: the plan that is estimated to need least, which is not the fastest.
    smaller: the slices below it, each with why it is too small; the last one first.
    """

    where: Slice | None
    plan: Plan | None
    result: Result | None
    smaller: tuple[tuple[str, str], ...]


def smallest_slice(step: StepShape, chip: str, attempt: Callable[[Spec], Result]) -> Smallest:
    """Go up the slices of a kind of chip until one holds the step. A slice that has no room for state and gradients is not compiled for."""
    smaller: list[tuple[str, str]] = []
    for where in slices_of(chip):
        if (reason := _state_refusal(step, where)) is not None:
            smaller.insert(0, (where.name, reason))
            continue
        plan = least_plan(step, where)
        if plan is None:
            smaller.insert(0, (where.name, "no mesh fits model and batch"))
            continue
        result = attempt(spec_for(step, where, plan))
        reason = refusal(result, where)
        if reason is None:
            return Smallest(where=where, plan=plan, result=result, smaller=tuple(smaller))
        smaller.insert(0, (where.name, reason))
    return Smallest(where=None, plan=None, result=None, smaller=tuple(smaller))


def slices_of(chip: str) -> list[Slice]:
    """Those of the table, the smallest first."""
    return sorted((find_slice(name) for name, torus in read_table().slices.items() if torus.chip == chip), key=lambda where: where.chips)


def _state_refusal(step: StepShape, where: Slice) -> str | None:
    """Weights, moments, average and gradients, cut over all devices, against a device's memory: the least that any plan needs."""
    needs = (state_bytes(step) + FLOAT32_BYTES * count_weights(step.model).all) / where.devices
    there = where.chip.device_gib * GIB - RESERVED_BYTES
    return None if needs <= there else f"state and gradients alone need {needs / GIB:.1f} GiB a device, of {there / GIB:.1f}"


def least_plan(step: StepShape, where: Slice) -> Plan | None:
    """The plan that is estimated to need least; None where no mesh fits model and batch."""
    settings = settings_for(step, where)
    if not settings:
        return None
    table = Table(step, where, settings, list(policies_for(step.model)))
    return table.plan(int(np.argmin(np.where(table.host <= host_gib(where), table.gib(), np.inf))))
