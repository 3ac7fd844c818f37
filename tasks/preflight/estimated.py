"""A plan without a compiler: for GPUs, which are not compiled for where there are none, and for TPUs where minutes are too long.

Memory and times are those of `tasks.preflight.estimate`, whose first weights were found for TPUs. Nothing here says that it was compiled.
"""

import numpy as np

from phasewise.tasks.preflight.plan import GIB
from phasewise.tasks.preflight.search import RESERVED_BYTES, Found, Tried, host_gib, table_of
from phasewise.tasks.preflight.sizes import state_bytes
from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.preflight.roofline import Roofline
from phasewise.trainer.preflight.spec import Memory, Result, StepShape

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
    result = _result(where, roofline, arguments=arguments, needs_gib=needs, on_host_gib=float(table.host[best]), limit_gib=limit_gib)
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


def _result(where: Slice, roofline: Roofline, *, arguments: int, needs_gib: float, on_host_gib: float, limit_gib: float) -> Result:
    """The estimate in the shape of what a compiler says. There are no operations between devices in it: only their time is estimated."""
    peak = max(round(needs_gib * GIB), arguments)
    speeds = where.chip.speeds
    return Result(
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
