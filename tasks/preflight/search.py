"""The fastest plan that fits: estimated for all, compiled for the best few."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from phasewise.tasks.preflight.estimate import FLOAT32_BYTES, Table, count_weights, roofline_of, state_bytes
from phasewise.tasks.preflight.plan import GIB, Plan, policies_for, settings_for, spec_for
from phasewise.tasks.preflight.slices import Slice, find_slice, read_table
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.preflight.roofline import EXPOSED, Roofline
from phasewise.trainer.preflight.spec import Memory, Result, Spec, StepShape

RESERVED_BYTES = GIB // 2
"""Kept free for the program's code and the runtime, which have their place after the buffers: 0.1 to 0.4 GiB, as far as was measured."""
MAX_COMPILED = 10
"""Plans that are compiled for a setup, so that it takes no more than four minutes on two cores. A number of plans and not a time, so that
the same plan is found on every machine."""
MIN_GAIN = 0.01
"""A plan is compiled only where it is estimated to be faster by so much than the best so far."""
MAX_COMPILED_SPARSE, MIN_GAIN_SPARSE = 3, 0.05
"""The same for a model with experts, whose step takes one to four minutes to compile. The estimates are coarser, too."""
MAX_COMPILED_HERE = 3
"""For devices of a CPU, where times are not known well enough to choose by more."""
HOST_SHARE = 0.5
"""Of a host's memory that may be taken for what is offloaded; the rest is the loader's, the checkpoints', the system's."""


class Tried(Frozen):
    """A plan that was compiled.

    Attributes:
        reason: why it is not the one that is taken.
        gib: its memory on a chip; None where the compiler gave no account.
        roofline: None where it does not fit.
    """

    plan: Plan
    reason: str
    gib: float | None
    roofline: Roofline | None


class Found(Frozen):
    """What the search ended with; no plan where none fits. `result` is the plan's, or that of the last that was compiled.

    Attributes:
        considered: how many plans were estimated.
        tried: those compiled and not taken, in the order of the search; the first is the rule's.
        why: why the plan is taken, and why the search ended there.
        estimated: nothing was compiled, and `result` and `roofline` are estimates.
        roofline: that of the plan, where it is not read from the result.
    """

    plan: Plan | None
    result: Result | None
    tried: tuple[Tried, ...]
    compile_seconds: float
    considered: int
    why: str
    estimated: bool = False
    roofline: Roofline | None = None


class Compiled(Frozen):
    """A plan with what the compiler said; `roofline` is None where it does not fit."""

    plan: Plan
    result: Result
    refusal: str | None
    roofline: Roofline | None


def find_plan(step: StepShape, where: Slice, attempt: Callable[[Spec], Result], *, machine_code: bool = False) -> Found:
    """Compile the plan of the rule, then those that promise most, until none promises more than the best that fits.

    Where none fits yet, the estimates go down to plans that need less, and last to the one that needs least: only when that is refused, no
    plan fits.
    """
    table = table_of(step, where)
    if where.chip.platform != "tpu":
        effort = Effort(MAX_COMPILED_HERE, MIN_GAIN_SPARSE, has_rule=False)
    else:
        if step.model.experts is None:
            effort = Effort(MAX_COMPILED, MIN_GAIN, has_rule=True)
        else:
            effort = Effort(MAX_COMPILED_SPARSE, MIN_GAIN_SPARSE, has_rule=False)
    done: dict[int, Compiled] = {}
    while len(done) < effort.max_compiled:
        number = next_plan(table, where, done, effort)
        if number is None:
            break
        plan = table.plan(number)
        result = attempt(spec_for(step, where, plan, machine_code=machine_code))
        reason = refusal(result, where)
        roofline = roofline_of(step, where, plan, result) if result.memory is not None and reason is None else None
        done[number] = Compiled(plan=plan, result=result, refusal=reason, roofline=roofline)
        table.learn(number, result, roofline)
    return conclude(list(done.values()), len(table), effort)


def table_of(step: StepShape, where: Slice) -> Table:
    """Everything that the search chooses from."""
    return Table(step, where, settings_for(step, where), list(policies_for(step.model, where.chip.platform)))


class Effort(NamedTuple):
    """How long the search goes on.

    Attributes:
        has_rule: whether the first plan to compile is the rule's; else it is the one that is estimated to be the fastest.
    """

    max_compiled: int
    min_gain: float
    has_rule: bool


def next_plan(table: Table, where: Slice, done: dict[int, Compiled], effort: Effort) -> int | None:
    """The number of the candidate to compile next; None where none is worth it."""
    limits = [limit_bytes(each.result, where) / GIB for each in done.values()]
    room = (limits[-1] if limits else where.chip.device_gib) - RESERVED_BYTES / GIB
    gib, seconds = table.gib(), table.seconds()
    possible = (gib <= room) & (table.host <= host_gib(where))
    possible[list(done)] = False
    if not done and effort.has_rule:  # the rule's: "full", else "offload", which are the first two of the table
        return 0 if possible[0] else 1
    best = min((each.roofline.ranking_seconds for each in done.values() if each.roofline), default=None)
    if best is not None:
        possible &= seconds < best * (1 - effort.min_gain)
        return int(np.argmin(np.where(possible, seconds, np.inf))) if possible.any() else None
    if possible.any() and len(done) < effort.max_compiled - 1:
        return int(np.argmin(np.where(possible, seconds, np.inf)))
    least = int(np.argmin(np.where(table.host <= host_gib(where), gib, np.inf)))
    return None if least in done else least


def host_gib(where: Slice) -> float:
    """Memory of a host that is there for each of its devices."""
    return where.chip.host_memory_gib / (where.chip.chips_per_host * where.chip.devices) * HOST_SHARE


def conclude(done: list[Compiled], considered: int, effort: Effort) -> Found:
    """The fastest of what was compiled and fits."""
    seconds = sum(each.result.lower_seconds + each.result.compile_seconds for each in done)
    fitting = [each for each in done if each.roofline is not None]
    best = min(fitting, key=lambda each: each.roofline.ranking_seconds, default=None) if fitting else None  # type: ignore[union-attr]
    tried = tuple(_tried(each, best) for each in done if each is not best)
    is_most = len(done) >= effort.max_compiled
    ended = "the most that are compiled" if is_most else f"no other is estimated to be {100 * effort.min_gain:g} % faster and to fit"
    why = f"the fastest of {len(fitting)} that fit, of {len(done)} compiled, of {considered:,} estimated; {ended}"
    if best is None:
        last = done[-1].result if done else None
        return Found(plan=None, result=last, tried=tried, compile_seconds=seconds, considered=considered, why="none fits")
    return Found(plan=best.plan, result=best.result, tried=tried, compile_seconds=seconds, considered=considered, why=why)


def _tried(each: Compiled, best: Compiled | None) -> Tried:
    gib = each.result.memory.peak / GIB if each.result.memory else None
    if each.refusal is not None or each.roofline is None or best is None or best.roofline is None:
        return Tried(plan=each.plan, reason=each.refusal or "not taken", gib=gib, roofline=each.roofline)
    own, taken = each.roofline, best.roofline
    more = own.ranking_seconds / taken.ranking_seconds - 1
    reason = f"fits, {own.step_seconds:.2f} s a step; {100 * more:.1f} % slower where {EXPOSED:.0%} of what it moves does not overlap"
    return Tried(plan=each.plan, reason=reason, gib=gib, roofline=own)


def limit_bytes(result: Result, where: Slice) -> int:
    """The memory of a device: what the compiler says, and where it knows none, the maker's."""
    return result.limit_bytes or round(where.chip.device_gib * where.chip.usable * GIB)


def refusal(result: Result, where: Slice) -> str | None:
    """Why what was compiled does not fit; None where it does."""
    limit = limit_bytes(result, where) / GIB
    if result.memory is None:
        return f"the compiler refused it: {result.refusal}" if result.refusal else "the compiler gave no account of its memory"
    needs = f"needs {result.memory.peak / GIB:.1f} GiB"
    if result.refusal:
        return f"{needs} of {limit:.2f}: the compiler refused it"
    if result.memory.peak + RESERVED_BYTES > limit_bytes(result, where):
        return f"{needs} of {limit:.2f}, of which {RESERVED_BYTES / GIB:g} stay free for code and runtime"
    if result.memory.host / GIB > host_gib(where):
        return f"needs {result.memory.host / GIB:.1f} GiB of its host's memory, of which {host_gib(where):.1f} are there for a chip"
    return None


WHY = "the fastest that is estimated to fit, of {considered:,}"


def estimate_plan(step: StepShape, where: Slice) -> Found:
    """The plan that is estimated to be the fastest of those that are estimated to fit; no plan where none is."""
    table = table_of(step, where)
    limit_gib = where.chip.device_gib * where.chip.usable
    gib, seconds = table.gib(), table.seconds()
    fits = (gib + RESERVED_BYTES / GIB <= limit_gib) & (table.host <= host_gib(where))
    least = int(np.argmin(np.where(np.isfinite(table.host), gib, np.inf)))
    best = int(np.argmin(np.where(fits, seconds, np.inf))) if fits.any() else least
    plan, needs = table.plan(best), float(gib[best])
    roofline = Roofline(**dict(zip(Roofline.model_fields, map(float, table.terms[best]), strict=True)))
    mesh = plan.mesh_on(where)
    arguments = state_bytes(step) // (mesh.weight_parts * mesh.tensor)
    # The estimate in the shape of what a compiler says. There are no operations between devices in it: only their time is estimated
    on_host_gib = float(table.host[best])
    peak = max(round(needs * GIB), arguments)
    speeds = where.chip.speeds
    result = Result(
        refusal=None,
        memory=Memory(arguments=arguments, temporaries=peak - arguments, peak=peak, host=round(on_host_gib * GIB)),
        limit_bytes=round(limit_gib * GIB),
        collectives=(),
        hbm_bytes=round(roofline.hbm * speeds.hbm_bytes),
        host_traffic_bytes=round(roofline.host * speeds.host_bytes),
        update_flops=0,
        flops_by_xla=None,
        lower_seconds=0.0,
        compile_seconds=0.0,
        host_bytes=0,
    )
    if fits.any():
        why = WHY.format(considered=len(table))
        return Found(
            plan=plan, result=result, tried=(), compile_seconds=0, considered=len(table), why=why, estimated=True, roofline=roofline
        )  # fmt: skip
    reason = f"is estimated to need {needs:.1f} GiB of {limit_gib:.2f}, of which {RESERVED_BYTES / GIB:g} stay free"
    tried = (Tried(plan=plan, reason=reason, gib=needs, roofline=None),)
    return Found(
        plan=None, result=result, tried=tried, compile_seconds=0, considered=len(table), why="none is estimated to fit", estimated=True
    )  # fmt: skip


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
        # The plan that is estimated to need least; None where no mesh fits model and batch
        settings = settings_for(step, where)
        if not settings:
            plan = None
        else:
            table = Table(step, where, settings, list(policies_for(step.model)))
            plan = table.plan(int(np.argmin(np.where(table.host <= host_gib(where), table.gib(), np.inf))))
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
