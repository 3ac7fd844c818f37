"""Search the fastest plan that fits: estimate all plans, and compile the best few."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phasewise.tasks.preflight.estimate import Table, roofline_of, state_bytes
from phasewise.tasks.preflight.plan import GIB, Plan, policies_for, settings_for, spec_for
from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.preflight.roofline import EXPOSED, Roofline
from phasewise.trainer.preflight.spec import Memory, Result, Spec, StepShape

RESERVED_BYTES = GIB // 2  # free memory for code and runtime, which took 0.1 to 0.4 GiB in measurements
MAX_COMPILED = 10  # four minutes on two cores. A number and not a time, so that every machine finds the same plan
MIN_GAIN = 0.01  # a plan is compiled only if its estimate is faster than the best plan by this share
MAX_COMPILED_SPARSE, MIN_GAIN_SPARSE = 3, 0.05
"""Limits for models with experts, which take one to four minutes to compile and have coarser estimates."""
MAX_COMPILED_HERE = 3  # limit for CPU devices, whose times are uncertain
HOST_SHARE = 0.5  # share of a host's memory for offloading. The rest is for loader, checkpoints and system


class Tried(Frozen):
    """A compiled plan that was not taken, with the reason. `gib` is its memory, `roofline` is None if it does not fit."""

    plan: Plan
    reason: str
    gib: float | None
    roofline: Roofline | None


class Found(Frozen):
    """The result of the search. Without a plan that fits, `result` has the last compiled plan. `considered` is the number of estimates."""

    plan: Plan | None
    result: Result | None
    tried: tuple[Tried, ...]
    compile_seconds: float
    considered: int
    why: str
    estimated: bool = False
    roofline: Roofline | None = None


class _Compiled(NamedTuple):
    plan: Plan
    result: Result
    refusal: str | None
    roofline: Roofline | None


def find_plan(step: StepShape, where: Slice, attempt: Callable[[Spec], Result], *, machine_code: bool = False) -> Found:
    """Compile the plan by rule, then the fastest estimates, until none beats the best that fits. If none fits, prefer less memory."""
    has_rule, max_compiled, min_gain = False, MAX_COMPILED_HERE, MIN_GAIN_SPARSE
    if where.chip.platform == "tpu":
        has_rule = step.model.experts is None
        max_compiled, min_gain = (MAX_COMPILED, MIN_GAIN) if has_rule else (MAX_COMPILED_SPARSE, MIN_GAIN_SPARSE)
    table = Table(step, where, settings_for(step, where), list(policies_for(step.model, where.chip.platform)))
    compiled: dict[int, _Compiled] = {}
    while len(compiled) < max_compiled:
        limits = [limit_bytes(each.result, where) / GIB for each in compiled.values()]
        room = (limits[-1] if limits else where.chip.device_gib) - RESERVED_BYTES / GIB
        gib, seconds = table.gib(), table.seconds()
        possible = (gib <= room) & (table.host <= host_gib(where))
        possible[list(compiled)] = False
        number = int(np.argmin(np.where(possible, seconds, np.inf)))
        best_seconds = min((each.roofline.ranking_seconds for each in compiled.values() if each.roofline), default=None)
        if not compiled and has_rule:  # the first rows are "full" and "offload" on the mesh by rule
            number = 0 if possible[0] else 1
        elif best_seconds is not None:
            if not possible[number] or seconds[number] >= best_seconds * (1 - min_gain):
                break
        elif not possible.any() or len(compiled) == max_compiled - 1:
            number = int(np.argmin(np.where(table.host <= host_gib(where), gib, np.inf)))
            if number in compiled:
                break
        plan = table.plan(number)
        result = attempt(spec_for(step, where, plan, machine_code=machine_code))
        reason = refusal(result, where)
        roofline = roofline_of(step, where, plan, result) if result.memory is not None and reason is None else None
        compiled[number] = _Compiled(plan, result, reason, roofline)
        table.learn(number, result, roofline)
    done = list(compiled.values())
    compile_seconds = sum(each.result.lower_seconds + each.result.compile_seconds for each in done)
    fitting = [(each.roofline.ranking_seconds, number) for number, each in enumerate(done) if each.roofline is not None]
    best = done[min(fitting)[1]] if fitting else None
    tried: list[Tried] = []
    for each in [each for each in done if each is not best]:
        reason = each.refusal or "not taken"
        if each.refusal is None and each.roofline and best and best.roofline:
            line, more = each.roofline, each.roofline.ranking_seconds / best.roofline.ranking_seconds - 1
            slower = f"{100 * more:.1f} % slower where {EXPOSED:.0%} of what it moves does not overlap"
            reason = f"fits, {line.step_seconds:.2f} s a step; {slower}"
        gib = each.result.memory.peak / GIB if each.result.memory else None
        tried.append(Tried(plan=each.plan, reason=reason, gib=gib, roofline=each.roofline))
    about: dict[str, Any] = {"tried": tuple(tried), "compile_seconds": compile_seconds, "considered": len(table.known)}
    if best is None:
        return Found(plan=None, result=done[-1].result if done else None, why="none fits", **about)
    is_most = len(done) >= max_compiled
    ended = "the most that are compiled" if is_most else f"no other is estimated to be {100 * min_gain:g} % faster and to fit"
    why = f"the fastest of {len(fitting)} that fit, of {len(done)} compiled, of {len(table.known):,} estimated; {ended}"
    return Found(plan=best.plan, result=best.result, why=why, **about)


def host_gib(where: Slice) -> float:
    """Return the host memory for each device."""
    return where.chip.host_memory_gib / (where.chip.chips_per_host * where.chip.devices) * HOST_SHARE


def limit_bytes(result: Result, where: Slice) -> int:
    """Return the memory of a device by the compiler or, if unknown, by the maker."""
    return result.limit_bytes or round(where.chip.device_gib * where.chip.usable * GIB)


def refusal(result: Result, where: Slice) -> str | None:
    """Return the reason why a compiled plan does not fit, or None."""
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


def estimate_plan(step: StepShape, where: Slice) -> Found:
    """Return the plan with the fastest estimate that fits, and the estimates as a compiler's result without collectives."""
    table = Table(step, where, settings_for(step, where), list(policies_for(step.model, where.chip.platform)))
    limit_gib = where.chip.device_gib * where.chip.usable
    gib, seconds = table.gib(), table.seconds()
    fits = (gib + RESERVED_BYTES / GIB <= limit_gib) & (table.host <= host_gib(where))
    least = int(np.argmin(np.where(np.isfinite(table.host), gib, np.inf)))
    best = int(np.argmin(np.where(fits, seconds, np.inf))) if fits.any() else least
    plan, needs = table.plan(best), float(gib[best])
    roofline = Roofline(**dict(zip(Roofline.model_fields, map(float, table.terms[best]), strict=True)))
    mesh, speeds = plan.mesh_on(where), where.chip.speeds
    arguments = state_bytes(step) // (mesh.weight_parts * mesh.tensor)
    peak = max(round(needs * GIB), arguments)
    memory = Memory(arguments=arguments, temporaries=peak - arguments, peak=peak, host=round(float(table.host[best]) * GIB))
    result = Result(
        refusal=None, memory=memory, limit_bytes=round(limit_gib * GIB), collectives=(), update_flops=0, flops_by_xla=None,
        hbm_bytes=round(roofline.hbm * speeds.hbm_bytes), host_traffic_bytes=round(roofline.host * speeds.host_bytes),
        lower_seconds=0.0, compile_seconds=0.0, host_bytes=0,
    )  # fmt: skip
    about: dict[str, Any] = {"result": result, "compile_seconds": 0, "considered": len(table.known), "estimated": True}
    if fits.any():
        why = f"the fastest that is estimated to fit, of {len(table.known):,}"
        return Found(plan=plan, tried=(), why=why, roofline=roofline, **about)
    reason = f"is estimated to need {needs:.1f} GiB of {limit_gib:.2f}, of which {RESERVED_BYTES / GIB:g} stay free"
    tried = (Tried(plan=plan, reason=reason, gib=needs, roofline=None),)
    return Found(plan=None, tried=tried, why="none is estimated to fit", **about)
