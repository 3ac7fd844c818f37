"""Results of the compiler, made up."""

from collections.abc import Callable

import numpy as np

from phasewise.tasks.preflight.estimate import FIRST_WEIGHTS, estimate, measure_policies
from phasewise.tasks.preflight.plan import GIB, LOSS_TOKENS_A_CHIP, Plan, Setting
from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.preflight.spec import Collective, Memory, Result, Spec, StepShape


def result_of(peak_gib: float, *, limit_gib: float = 30.75, refused: bool = False, host_gib: float = 0.0) -> Result:
    peak = round(peak_gib * GIB)
    memory = Memory(arguments=GIB, temporaries=peak - GIB, peak=peak, host=round(host_gib * GIB))
    gathered = Collective(kind="all-gather", axis="fsdp", link="ici", count=128, bytes=30 * 10**9)
    reduced = gathered.but(kind="all-reduce", count=64, bytes=10 * 10**9)
    collectives = (gathered, reduced, reduced.but(axis="replica", link="dcn", bytes=10**8))
    return Result(
        refusal="RESOURCE_EXHAUSTED: as it says" if refused else None, memory=memory, limit_bytes=round(limit_gib * GIB),
        collectives=collectives, hbm_bytes=5 * 10**11, host_traffic_bytes=0, update_flops=0, flops_by_xla=1e16, lower_seconds=1.0,
        compile_seconds=4.0, host_bytes=GIB,
    )  # fmt: skip


def plan_of(spec: Spec, where: Slice) -> Plan:
    execution = spec.execution
    batch = spec.step.batch_sequences
    tokens = (execution.microbatch_sequences or batch) * spec.step.model.seq_len // where.devices
    chunk = execution.loss_chunk_tokens // where.devices if execution.loss_chunk_tokens else None
    whole = LOSS_TOKENS_A_CHIP if tokens <= LOSS_TOKENS_A_CHIP else 4 * LOSS_TOKENS_A_CHIP
    mesh = None if execution.mesh == where.mesh else execution.mesh
    parts = batch // (execution.microbatch_sequences or batch)
    return Plan(remat=execution.remat, parts=parts, mesh=mesh, loss_tokens_a_chip=chunk or whole)


def compiler_of(step: StepShape, where: Slice, limit_gib: float, factors: np.ndarray) -> tuple[Callable[[Spec], Result], list[Plan]]:
    """A compiler whose memory is linear in what the search estimates by, with other weights; and the plans that it was asked for."""
    asked: list[Plan] = []

    def attempt(spec: Spec) -> Result:
        plan = plan_of(spec, where)
        asked.append(plan)
        setting = Setting(plan.mesh_on(where), plan.parts, plan.loss_tokens_a_chip)
        found = estimate(step, where, setting, measure_policies(step, where, [plan.remat], setting.mesh.tensor))
        peak = float(found.known[0] + found.amounts[0] @ (FIRST_WEIGHTS * factors))
        return result_of(peak, limit_gib=limit_gib, refused=peak > limit_gib, host_gib=float(found.host[0]))

    return attempt, asked
