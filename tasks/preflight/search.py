"""The first plan that fits."""

from collections.abc import Callable

from tasks.preflight.plan import GIB, Plan, estimate_refusal, plans_for, spec_for
from tasks.preflight.slices import Slice
from trainer.base.frozen import Frozen
from trainer.preflight.spec import Result, Spec, StepShape

RESERVED_BYTES = GIB // 2
"""Kept free for the program's code and the runtime, which have their place after the buffers: 0.1 to 0.4 GiB, as far as was measured."""


class Tried(Frozen):
    """A plan that was not taken, and why."""

    plan: Plan
    reason: str


class Found(Frozen):
    """What the search ended with; no plan where none fits. `result` is that of the last plan that was compiled."""

    plan: Plan | None
    result: Result | None
    tried: tuple[Tried, ...]
    compile_seconds: float


def find_plan(step: StepShape, where: Slice, attempt: Callable[[Spec], Result], *, machine_code: bool = False) -> Found:
    """Try the plans in order. Each costs more time in training than the one before it, and less memory."""
    tried: list[Tried] = []
    result, seconds = None, 0.0
    for plan in plans_for(step.batch_sequences, where.mesh):
        reason = estimate_refusal(step, where, plan)
        if reason is None:
            result = attempt(spec_for(step, where, plan, machine_code=machine_code))
            seconds += result.lower_seconds + result.compile_seconds
            reason = refusal(result)
            if reason is None:
                return Found(plan=plan, result=result, tried=tuple(tried), compile_seconds=seconds)
        tried.append(Tried(plan=plan, reason=reason))
    return Found(plan=None, result=result, tried=tuple(tried), compile_seconds=seconds)


def refusal(result: Result) -> str | None:
    """Why what was compiled does not fit; None where it does."""
    limit = result.limit_bytes / GIB
    if result.memory is None:
        return f"the compiler refused it: {result.refusal}" if result.refusal else "the compiler gave no account of its memory"
    needs = f"needs {result.memory.peak / GIB:.1f} GiB"
    if result.refusal:
        return f"{needs} of {limit:.2f}: the compiler refused it"
    if result.memory.peak + RESERVED_BYTES > result.limit_bytes:
        return f"{needs} of {limit:.2f}, of which {RESERVED_BYTES / GIB:g} stay free for code and runtime"
    return None
