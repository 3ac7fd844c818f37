"""The time of a step by its compiled plan."""

import math

from phasewise.tasks.preflight.plan import Plan
from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.config import Mesh, Remat
from phasewise.trainer.flops import step_flops
from phasewise.trainer.preflight.roofline import Roofline, StepWork, exchange_share, project, recomputed_flops, ring_share
from phasewise.trainer.preflight.spec import Collective, Result, StepShape

ALL_TO_ALL = "all-to-all"


def roofline_of(step: StepShape, where: Slice, plan: Plan, result: Result) -> Roofline:
    """The terms of the step, by what was compiled."""
    mesh = plan.mesh_on(where)
    work = StepWork(
        flops=executed_flops(step, plan.remat) / where.devices + result.update_flops,
        hbm_bytes=result.hbm_bytes,
        ici_seconds=sum(ici_seconds(each, mesh, where) for each in result.collectives if each.link == "ici"),
        dcn_bytes=sum(each.bytes for each in result.collectives if each.link == "dcn"),
        host_bytes=result.host_traffic_bytes,
    )
    return project(work, where.chip.speeds)


def executed_flops(step: StepShape, remat: Remat) -> int:
    """The model's FLOPs of a step, and what is computed again, on all chips. What the optimizer multiplies is not in it."""
    sequences = step.batch_sequences
    return step_flops(step.model, sequences).total + recomputed_flops(step.model, sequences, remat)


def ici_seconds(each: Collective, mesh: Mesh, where: Slice) -> float:
    """How long a device's links are at work for this. What goes from each to each passes the links of others on its way."""
    speed = exchange_speed if each.kind == ALL_TO_ALL else ici_speed
    return each.bytes / speed(each.axis, mesh, where)


def ici_speed(axis: str, mesh: Mesh, where: Slice) -> float:
    """Bytes a second that a device sends along axes of the mesh (`fsdp×tensor`) within its slice."""
    if where.chip.is_switched:
        return where.chip.speeds.ici_bytes
    return where.chip.speeds.ici_bytes * ring_share(chips_along(axis, mesh, where), where.torus)


def exchange_speed(axis: str, mesh: Mesh, where: Slice) -> float:
    """Bytes a second that a device sends to all others along axes of the mesh within its slice."""
    if where.chip.is_switched:
        return where.chip.speeds.ici_bytes
    return where.chip.speeds.ici_bytes * exchange_share(chips_along(axis, mesh, where), where.torus)


def chips_along(axis: str, mesh: Mesh, where: Slice) -> int:
    """Chips of one slice along axes of the mesh. Devices of one chip have no links of their own: they share the chip's."""
    sizes = {**mesh.model_dump(), "replica": max(mesh.replica // where.count, 1)}
    devices = math.prod(sizes.get(name, 1) for name in axis.split("×"))
    return -(-devices // where.chip.devices)
