"""What preflight says of a setup: the shape that scripts read."""

import re
from pathlib import Path
from typing import Any

from phasewise.tasks.preflight.estimate import ALL_TO_ALL, ici_seconds, roofline_of
from phasewise.tasks.preflight.plan import GIB, Plan, Setup, spec_for
from phasewise.tasks.preflight.search import Found, Tried, limit_bytes
from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import file_system_of
from phasewise.trainer.base.wording import to_places
from phasewise.trainer.flops import step_flops
from phasewise.trainer.model.params import count_active_parameters, count_parameters
from phasewise.trainer.preflight.roofline import UTILISATION, recomputed_flops
from phasewise.trainer.preflight.spec import Result

REGION = re.compile(r"[a-z]+(-[a-z]+\d+)")
"""A region, such as us-east5. The name of a place of several has no dash."""
TOKENS_OF_TWO_BYTES = 2**16
DAY_SECONDS, HOUR_SECONDS = 86_400, 3_600
Report = dict[str, Any]


def report_of(setup: Setup, where: Slice, found: Found) -> Report:
    """A setup that was compiled. Where no plan fits, what follows from a plan is null."""
    plan, result = found.plan, found.result
    execution = spec_for(setup.step, where, plan).execution.model_dump(mode="json") if plan else None
    report = _about(setup, where) | {
        "fits": plan is not None,
        "estimated": found.estimated,
        "mesh": plan.mesh_on(where).model_dump() if plan else where.mesh.model_dump(),
        "remat": execution["remat"] if execution else None,
        "microbatch_sequences": _part(setup, plan),
        "execution": execution,
        "plan": plan.words if plan else None,
        "why": found.why,
        "considered": found.considered,
        "tried": [_tried(tried) for tried in found.tried],
        "reason": None if plan else f"no plan fits: {'; '.join(f'{tried.plan.words} {tried.reason}' for tried in found.tried)}",
        "gib_per_chip": _memory(where, result),
        "compile_seconds": round(found.compile_seconds, 1),
        "compiler_host_gib": round(result.host_bytes / GIB, 2) if result else None,
    }
    return report | (_projected(setup, where, found) if plan and result else _unprojected())


def _tried(tried: Tried) -> Report:
    roofline = tried.roofline
    return {
        "plan": tried.plan.words,
        "reason": tried.reason,
        "fits": roofline is not None,
        "gib": None if tried.gib is None else round(tried.gib, 2),
        "step_seconds": None if roofline is None else to_places(roofline.step_seconds, 3),
        "ranking_seconds": None if roofline is None else to_places(roofline.ranking_seconds, 3),
        "binds": None if roofline is None else roofline.binds,
    }


def refused_report(setup: Setup, where: Slice, reason: str) -> Report:
    """A setup that there is nothing to compile for."""
    refused: Report = {"fits": False, "estimated": False, "remat": None, "microbatch_sequences": None, "execution": None, "plan": None}
    refused |= {"why": None, "considered": 0, "tried": [], "reason": reason}
    nothing = {"gib_per_chip": _memory(where, None), "compile_seconds": 0.0, "compiler_host_gib": None}
    return _about(setup, where) | refused | nothing | _unprojected()


def _about(setup: Setup, where: Slice) -> Report:
    return {
        "phase": setup.phase,
        "slice": where.name,
        "parameters": count_parameters(setup.step.model),
        "active_parameters": count_active_parameters(setup.step.model),
        "chips": where.chips,
        "devices": where.devices,
        "hosts": where.hosts,
        "mesh": where.mesh.model_dump(),
        "batch_sequences": setup.step.batch_sequences,
        "steps": setup.steps,
        "stretches": [list(stretch) for stretch in setup.stretches],
    }


def _part(setup: Setup, plan: Plan | None) -> int | None:
    return None if plan is None or plan.parts == 1 else setup.step.batch_sequences // plan.parts


def _memory(where: Slice, result: Result | None) -> Report:
    memory = result.memory if result else None
    return {
        "arguments": _gib(memory.arguments if memory else None),
        "temporaries": _gib(memory.temporaries if memory else None),
        "peak": _gib(memory.peak if memory else None),
        "limit": _gib(limit_bytes(result, where) if result else None),
        "maker": where.chip.device_gib,
        "on_host": _gib(memory.host if memory else None),
    }


def _gib(size: int | None) -> float | None:
    return None if size is None else round(size / GIB, 2)


def _projected(setup: Setup, where: Slice, found: Found) -> Report:
    plan, result = found.plan, found.result
    assert plan is not None
    assert result is not None
    model = setup.step.model
    sequences = setup.step.batch_sequences
    flops = step_flops(model, sequences).total
    again = recomputed_flops(model, sequences, plan.remat)
    roofline = found.roofline or roofline_of(setup.step, where, plan, result)
    seconds = roofline.step_seconds
    return {
        "flops_per_step": flops,
        "flops_recomputed": again,
        "flops_per_step_per_chip": {
            "analytic": flops / where.devices,
            "executed": (flops + again) / where.devices,
            "update": result.update_flops,
            "xla": _each(result.flops_by_xla, where),
        },
        "collective_bytes": _by_kind(result),
        "collectives": [each.model_dump() for each in result.collectives],
        "all_to_all": _all_to_all(where, plan, result),
        "hbm_bytes": result.hbm_bytes,
        "host_traffic_bytes": result.host_traffic_bytes,
        "roofline_seconds": {**{name: to_places(value, 3) for name, value in roofline.model_dump().items()}, "binds": roofline.binds},
        "assumed_utilisation": UTILISATION,
        "step_seconds": to_places(seconds, 3),
        "mfu": round(flops / where.devices / seconds / where.chip.speeds.flops, 3),
        "tokens_per_second": round(sequences * model.seq_len / seconds),
        "tokens_per_day": round(sequences * model.seq_len * DAY_SECONDS / seconds),
        "days": to_places(setup.steps * seconds / DAY_SECONDS, 2),
        "chip_hours": to_places(setup.steps * seconds * where.chips / HOUR_SECONDS, 0),
    }


def _unprojected() -> Report:
    names = (
        "flops_per_step", "flops_recomputed", "flops_per_step_per_chip", "collective_bytes", "collectives", "all_to_all", "hbm_bytes",
        "host_traffic_bytes", "roofline_seconds", "assumed_utilisation", "step_seconds", "mfu", "tokens_per_second", "tokens_per_day",
        "days", "chip_hours",
    )  # fmt: skip
    return dict.fromkeys(names)


def _each(flops: float | None, where: Slice) -> float | None:
    return None if flops is None else flops / where.devices


def _all_to_all(where: Slice, plan: Plan, result: Result) -> Report:
    """By the axes of the mesh: bytes that a device sends, and how long links within the slice are at work for them: part of `ici`."""
    found = [each for each in result.collectives if each.kind == ALL_TO_ALL]
    mesh = plan.mesh_on(where)
    return {
        axis: {
            "bytes": sum(each.bytes for each in found if each.axis == axis),
            "seconds": round(sum(ici_seconds(each, mesh, where) for each in found if each.axis == axis and each.link == "ici"), 3),
        }
        for axis in dict.fromkeys(each.axis for each in found)
    }


def _by_kind(result: Result) -> dict[str, int]:
    kinds = dict.fromkeys(each.kind for each in result.collectives)
    return {kind: sum(each.bytes for each in result.collectives if each.kind == kind) for kind in kinds}


class Reads(Frozen):
    """What a phase reads on one slice, from another region.

    Attributes:
        read_bytes: its tokens, once.
        usd_per_gib, usd: None where no price was given: stores change theirs, and none is kept here.
    """

    phase: str
    slice: str
    bucket_region: str
    slice_region: str
    read_bytes: int
    usd_per_gib: float | None
    usd: float | None


def region_of(home: Path) -> str | None:
    """Where the bucket of a home is, in small letters; None for a home on this machine.

    Raises:
        ConfigError: the store does not say.
    """
    store = file_system_of(home)
    if store is None:
        return None
    file_system: Any = store[0]
    name = store[1]
    bucket = name.split("/", 1)[0]
    try:
        return str(file_system.call("GET", "b/{}", bucket, json_out=True)["location"]).lower()
    except Exception as error:  # stores and credentials have error types of their own
        raise ConfigError(
            f"--region needs the location of the bucket {bucket}, and the store does not say it: {error}. Who asks needs the "
            "permission storage.buckets.get; or leave --region out."
        ) from error


def check_region(name: str) -> None:
    """Refuse what is no region's name.

    Raises:
        ConfigError: see above.
    """
    if not REGION.fullmatch(name):
        raise ConfigError(f"--region must be the region of the slice, such as us-east5, found {name!r}.")


def reads_between(setup: Setup, bucket_region: str, slice_region: str, usd_per_gib: float | None = None) -> Reads | None:
    """What a setup reads from another region; None where it is the same one.

    Args:
        usd_per_gib: the store's price of such reads.
    """
    if bucket_region == slice_region:
        return None
    step = setup.step
    width = 2 if step.model.vocab_size <= TOKENS_OF_TWO_BYTES else 4
    read_bytes = setup.steps * step.batch_sequences * step.model.seq_len * width
    return Reads(
        phase=setup.phase,
        slice=setup.slice,
        bucket_region=bucket_region,
        slice_region=slice_region,
        read_bytes=read_bytes,
        usd_per_gib=usd_per_gib,
        usd=None if usd_per_gib is None else usd_per_gib * read_bytes / GIB,
    )
