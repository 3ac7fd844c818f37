"""The time of a step by its compiled plan."""

from tasks.preflight.plan import Plan
from tasks.preflight.slices import Slice
from trainer.config import Mesh, Remat
from trainer.flops import step_flops
from trainer.preflight.roofline import Roofline, StepWork, project, recomputed_flops, ring_share
from trainer.preflight.spec import Result, StepShape


def roofline_of(step: StepShape, where: Slice, plan: Plan, result: Result) -> Roofline:
    """The terms of the step, by what was compiled."""
    work = StepWork(
        flops=executed_flops(step, plan.remat) / where.chips,
        hbm_bytes=result.hbm_bytes,
        ici_seconds=sum(each.bytes / ici_speed(each.axis, plan.mesh_on(where), where) for each in result.collectives if each.link == "ici"),
        dcn_bytes=sum(each.bytes for each in result.collectives if each.link == "dcn"),
        host_bytes=result.host_traffic_bytes,
    )
    return project(work, where.chip.speeds)


def executed_flops(step: StepShape, remat: Remat) -> int:
    """The model's FLOPs of a step, and what is computed again, on all chips."""
    sequences = step.batch_sequences
    return step_flops(step.model, sequences).total + recomputed_flops(step.model, sequences, remat)


def ici_speed(axis: str, mesh: Mesh, where: Slice) -> float:
    """Bytes a second that a chip sends along axes of the mesh (`fsdp×tensor`) within its slice."""
    sizes = {**mesh.model_dump(), "replica": max(mesh.replica // where.count, 1)}
    chips = 1
    for name in axis.split("×"):
        chips *= sizes.get(name, 1)
    return where.chip.speeds.ici_bytes * ring_share(chips, where.torus)
