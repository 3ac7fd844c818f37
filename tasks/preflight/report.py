"""Preflight's report of a setup, in the shape that scripts read."""

import re
from pathlib import Path
from typing import Any

from phasewise.tasks.preflight.estimate import ALL_TO_ALL, ici_seconds, roofline_of
from phasewise.tasks.preflight.plan import GIB, Plan, Setup, spec_for
from phasewise.tasks.preflight.search import Found, limit_bytes
from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import file_system_of
from phasewise.trainer.base.wording import to_places
from phasewise.trainer.flops import step_flops
from phasewise.trainer.model.params import count_active_parameters, count_parameters
from phasewise.trainer.preflight.roofline import UTILISATION, recomputed_flops
from phasewise.trainer.preflight.spec import Result

REGION = re.compile(r"[a-z]+(-[a-z]+\d+)")  # a region, such as us-east5. A multi-region has no dash
TOKENS_OF_TWO_BYTES = 2**16
DAY_SECONDS, HOUR_SECONDS = 86_400, 3_600
UNPROJECTED = (
    "flops_per_step", "flops_recomputed", "flops_per_step_per_chip", "collective_bytes", "collectives", "all_to_all", "hbm_bytes",
    "host_traffic_bytes", "roofline_seconds", "assumed_utilisation", "step_seconds", "mfu", "tokens_per_second", "tokens_per_day",
    "days", "chip_hours",
)  # fmt: skip
"""Null without a plan."""
Report = dict[str, Any]


def report_of(setup: Setup, where: Slice, found: Found) -> Report:
    """Report a compiled or estimated setup."""
    plan, result = found.plan, found.result
    memory = result.memory if result else None
    gib = {name: round(getattr(memory, name) / GIB, 2) if memory else None for name in ("arguments", "temporaries", "peak")}
    gib |= {"limit": round(limit_bytes(result, where) / GIB, 2) if result else None, "maker": where.chip.device_gib}
    execution = spec_for(setup.step, where, plan).execution.model_dump(mode="json") if plan else None
    tried: list[Report] = []
    for one in found.tried:
        line = one.roofline
        tried.append(
            {
                "plan": one.plan.words,
                "reason": one.reason,
                "fits": line is not None,
                "gib": None if one.gib is None else round(one.gib, 2),
                "step_seconds": None if line is None else to_places(line.step_seconds, 3),
                "ranking_seconds": None if line is None else to_places(line.ranking_seconds, 3),
                "binds": None if line is None else line.binds,
            }
        )
    report: Report = {
        "phase": setup.phase,
        "slice": where.name,
        "parameters": count_parameters(setup.step.model),
        "active_parameters": count_active_parameters(setup.step.model),
        "chips": where.chips,
        "devices": where.devices,
        "hosts": where.hosts,
        "mesh": plan.mesh_on(where).model_dump() if plan else where.mesh.model_dump(),
        "batch_sequences": setup.step.batch_sequences,
        "steps": setup.steps,
        "stretches": [list(stretch) for stretch in setup.stretches],
        "fits": plan is not None,
        "estimated": found.estimated,
        "remat": execution["remat"] if execution else None,
        "microbatch_sequences": None if plan is None or plan.parts == 1 else setup.step.batch_sequences // plan.parts,
        "execution": execution,
        "plan": plan.words if plan else None,
        "why": found.why,
        "considered": found.considered,
        "tried": tried,
        "reason": None if plan else f"no plan fits: {'; '.join(f'{one.plan.words} {one.reason}' for one in found.tried)}",
        "gib_per_chip": {**gib, "on_host": round(memory.host / GIB, 2) if memory else None},
        "compile_seconds": round(found.compile_seconds, 1),
        "compiler_host_gib": round(result.host_bytes / GIB, 2) if result else None,
    }
    return report | (_projected(setup, where, found, plan, result) if plan and result else dict.fromkeys(UNPROJECTED))


def _projected(setup: Setup, where: Slice, found: Found, plan: Plan, result: Result) -> Report:
    sequences = setup.step.batch_sequences
    tokens = sequences * setup.step.model.seq_len
    flops = step_flops(setup.step.model, sequences).total
    again = recomputed_flops(setup.step.model, sequences, plan.remat)
    roofline = found.roofline or roofline_of(setup.step, where, plan, result)
    seconds = roofline.step_seconds
    mesh = plan.mesh_on(where)
    by_kind: dict[str, int] = {}
    exchanges: dict[str, Report] = {}
    for each in result.collectives:
        by_kind[each.kind] = by_kind.get(each.kind, 0) + each.bytes
        if each.kind == ALL_TO_ALL:
            of_axis = exchanges.setdefault(each.axis, {"bytes": 0, "seconds": 0})
            of_axis["bytes"] += each.bytes
            of_axis["seconds"] += ici_seconds(each, mesh, where) if each.link == "ici" else 0
    return {
        "flops_per_step": flops,
        "flops_recomputed": again,
        "flops_per_step_per_chip": {
            "analytic": flops / where.devices,
            "executed": (flops + again) / where.devices,
            "update": result.update_flops,
            "xla": None if result.flops_by_xla is None else result.flops_by_xla / where.devices,
        },
        "collective_bytes": by_kind,
        "collectives": [each.model_dump() for each in result.collectives],
        "all_to_all": {axis: {**of_axis, "seconds": round(of_axis["seconds"], 3)} for axis, of_axis in exchanges.items()},
        "hbm_bytes": result.hbm_bytes,
        "host_traffic_bytes": result.host_traffic_bytes,
        "roofline_seconds": {**{name: to_places(value, 3) for name, value in roofline.model_dump().items()}, "binds": roofline.binds},
        "assumed_utilisation": UTILISATION,
        "step_seconds": to_places(seconds, 3),
        "mfu": round(flops / where.devices / seconds / where.chip.speeds.flops, 3),
        "tokens_per_second": round(tokens / seconds),
        "tokens_per_day": round(tokens * DAY_SECONDS / seconds),
        "days": to_places(setup.steps * seconds / DAY_SECONDS, 2),
        "chip_hours": to_places(setup.steps * seconds * where.chips / HOUR_SECONDS, 0),
    }


class Reads(Frozen):
    """Reads of a phase's tokens from another region. The cost is None without a price."""

    phase: str
    slice: str
    bucket_region: str
    slice_region: str
    read_bytes: int
    usd_per_gib: float | None
    usd: float | None


def region_of(home: Path) -> str | None:
    """Return the lowercase region of a home's bucket, or None for a local home. A ConfigError reports a store without this permission."""
    store = file_system_of(home)
    if store is None:
        return None
    file_system: Any = store[0]
    bucket = store[1].split("/", 1)[0]
    try:
        return str(file_system.call("GET", "b/{}", bucket, json_out=True)["location"]).lower()
    except Exception as error:  # stores and credentials have their own error types
        raise ConfigError(
            f"--region needs the location of the bucket {bucket}, which the store did not report: {error}. Get the permission "
            "storage.buckets.get, or leave --region out."
        ) from error


def check_region(name: str) -> None:
    """Raise a ConfigError for a malformed region."""
    if not REGION.fullmatch(name):
        raise ConfigError(f"--region must be the region of the slice, such as us-east5, found {name!r}.")


def reads_between(setup: Setup, bucket_region: str, slice_region: str, usd_per_gib: float | None = None) -> Reads | None:
    """Return a setup's reads across regions, or None within a region."""
    if bucket_region == slice_region:
        return None
    step = setup.step
    width = 2 if step.model.vocab_size <= TOKENS_OF_TWO_BYTES else 4
    read_bytes = setup.steps * step.batch_sequences * step.model.seq_len * width
    return Reads(
        phase=setup.phase, slice=setup.slice, bucket_region=bucket_region, slice_region=slice_region, read_bytes=read_bytes,
        usd_per_gib=usd_per_gib, usd=None if usd_per_gib is None else usd_per_gib * read_bytes / GIB,
    )  # fmt: skip
