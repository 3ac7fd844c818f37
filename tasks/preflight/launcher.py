"""Run the compiler in a child process, and keep its results under the digest of everything that decides them, and report them."""

import os
import re
import subprocess
import tempfile
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from phasewise.tasks.home import Home
from phasewise.tasks.preflight.estimate import ALL_TO_ALL, ici_seconds, roofline_of
from phasewise.tasks.preflight.plan import GIB, Plan, Setup, batch_refusal, mesh_refusal, settings_for, spec_for
from phasewise.tasks.preflight.search import Found, estimate_plan, find_plan, limit_bytes
from phasewise.tasks.preflight.slices import Slice, find_slice
from phasewise.trainer.base.errors import ConfigError, ExitCode, PhasewiseError, StorageError, TrainingError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import NotAsWritten, code_digest, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.storage import file_system_of, read_json, write_json
from phasewise.trainer.base.wording import to_places
from phasewise.trainer.config import without_added
from phasewise.trainer.flops import step_flops
from phasewise.trainer.model.params import count_active_parameters, count_parameters
from phasewise.trainer.preflight.roofline import UTILISATION, recomputed_flops
from phasewise.trainer.preflight.spec import Result, Spec
from phasewise.trainer.process.child_process import ending, last_line, python_command
from phasewise.trainer.process.environment import deciding_variables

MAX_SECONDS, MAX_MACHINE_CODE_SECONDS = 1800, 3600
LIBRARIES = ("jax", "jaxlib", "libtpu", "optax")
DECIDING = (
    *(f"trainer/{name}.py" for name in ("interventions", "loss", "metrics", "optimizer", "sharding", "step")),
    *(f"trainer/{name}/**/*.py" for name in ("kernels", "model", "preflight")),
)
"""The files that decide the compiled step and its analysis. They are read, not imported: they need jax."""
DROPPED = ("XLA_FLAGS", "JAX_PLATFORMS", "TPU_LIBRARY_PATH", "JAX_NUM_CPU_DEVICES")  # variables for the devices of this machine
FLAGS = "LIBTPU_INIT_ARGS"
Report = dict[str, Any]
COMPILER = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


class MissingCompiler(PhasewiseError):
    """The TPU compiler is not installed."""


def examine(spec: Spec, home: Home) -> Result:
    """Compile a specification, or read its kept result."""
    key = digest_of(spec)
    kept = home.keyed("preflight", key).with_suffix(".json")
    with suppress(FileNotFoundError, NotAsWritten, KeyError):
        found = read_sealed(kept)
        if found["key"] == key:
            return Result.model_validate(found["result"])
    result = run_compiler(spec)
    about = {"key": key, "spec": spec.model_dump(mode="json"), "versions": versions()}
    write_sealed(kept, {**about, "result": result.model_dump(mode="json")})
    return result


def digest_of(spec: Spec) -> str:
    """Digest of a specification with the versions, flags, variables and code that decide its result."""
    deciding = {
        "spec": without_added(spec.model_dump(mode="json")),
        "versions": versions(),
        "flags": os.environ.get(FLAGS, ""),
        "code": code_digest(*DECIDING),
    }
    others = {name: value for name, value in deciding_variables(os.environ).items() if name not in (*DROPPED, FLAGS)}
    return digest_of_json(deciding | ({"variables": others} if others else {}))


def versions() -> dict[str, str]:
    """Return the versions of the compiling libraries, or raise MissingCompiler."""
    try:
        return {name: version(name) for name in LIBRARIES}
    except PackageNotFoundError as error:
        raise MissingCompiler(
            f"preflight needs the compiler for TPUs, and {error.name} is not installed here: pip install 'phasewise[tpu]'."
        ) from None


def run_compiler(spec: Spec) -> Result:
    """Run `python -m phasewise.trainer.preflight`. The process exits with this process, which holds its standard input."""
    limit = MAX_MACHINE_CODE_SECONDS if spec.machine_code else MAX_SECONDS
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED} | COMPILER
    if spec.topology.platform == "cpu":
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={spec.topology.devices}"
    with tempfile.TemporaryDirectory(prefix="phasewise-preflight-") as folder:
        spec_file, result_file, log = (Path(folder) / name for name in ("spec.json", "result.json", "log"))
        write_json(spec_file, spec.model_dump(mode="json"))
        command = python_command("phasewise.trainer.preflight", str(spec_file), str(result_file), "--with-parent")
        with (
            open(log, "wb") as output,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment) as process,
        ):
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                process.kill()
                raise TrainingError(f"the compiler for TPUs took more than {limit} seconds for {spec.topology.name}: stopped.") from None
            except BaseException:
                process.kill()
                raise
        if code:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("preflight: ")]
            if lines:
                kinds: dict[int, type[PhasewiseError]] = {ExitCode.USAGE: ConfigError, ExitCode.NO_STORAGE: StorageError}
                raise kinds.get(code, TrainingError)(lines[-1].removeprefix("preflight: "))
            reason = last_line(log) or "it said nothing"
            raise TrainingError(f"the compiler for TPUs {ending(code)} for {spec.topology.name}: {reason}")
        return Result.model_validate(read_json(result_file))


def preflight_setup(setup: Setup, home: Home, *, machine_code: bool = False, estimated: bool = False) -> Report:
    """Find the fastest plan that fits the setup on its slice, with time and cost. `estimated` compiles nothing, as for GPUs."""
    where = find_slice(setup.slice)
    if not settings_for(setup.step, where):
        reason = batch_refusal(setup.step.batch_sequences, where) or mesh_refusal(setup.step, where)
        nothing = Found(plan=None, result=None, tried=(), compile_seconds=0.0, considered=0, why="")
        return report_of(setup, where, nothing) | {"why": None, "reason": reason}
    if estimated or where.chip.platform == "gpu":
        return report_of(setup, where, estimate_plan(setup.step, where))
    return report_of(setup, where, find_plan(setup.step, where, partial(examine, home=home), machine_code=machine_code))


REGION = re.compile(r"[a-z]+(-[a-z]+\d+)")  # a region, such as us-east5. A multi-region has no dash
TOKENS_OF_TWO_BYTES = 2**16
DAY_SECONDS, HOUR_SECONDS = 86_400, 3_600
UNPROJECTED = (
    "flops_per_step", "flops_recomputed", "flops_per_step_per_chip", "collective_bytes", "collectives", "all_to_all", "hbm_bytes",
    "host_traffic_bytes", "roofline_seconds", "assumed_utilisation", "step_seconds", "mfu", "tokens_per_second", "tokens_per_day",
    "days", "chip_hours",
)  # fmt: skip
"""Null without a plan."""


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
        "phase": setup.phase, "slice": where.name, "parameters": count_parameters(setup.step.model),
        "active_parameters": count_active_parameters(setup.step.model), "chips": where.chips, "devices": where.devices,
        "hosts": where.hosts, "mesh": plan.mesh_on(where).model_dump() if plan else where.mesh.model_dump(),
        "batch_sequences": setup.step.batch_sequences, "steps": setup.steps, "stretches": [list(stretch) for stretch in setup.stretches],
        "fits": plan is not None, "estimated": found.estimated, "remat": execution["remat"] if execution else None,
        "microbatch_sequences": None if plan is None or plan.parts == 1 else setup.step.batch_sequences // plan.parts,
        "execution": execution, "plan": plan.words if plan else None, "why": found.why, "considered": found.considered, "tried": tried,
        "reason": None if plan else f"no plan fits: {'; '.join(f'{one.plan.words} {one.reason}' for one in found.tried)}",
        "gib_per_chip": {**gib, "on_host": round(memory.host / GIB, 2) if memory else None},
        "compile_seconds": round(found.compile_seconds, 1), "compiler_host_gib": round(result.host_bytes / GIB, 2) if result else None,
    }  # fmt: skip
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
        "flops_per_step": flops, "flops_recomputed": again,
        "flops_per_step_per_chip": {
            "analytic": flops / where.devices,
            "executed": (flops + again) / where.devices,
            "update": result.update_flops,
            "xla": None if result.flops_by_xla is None else result.flops_by_xla / where.devices,
        },
        "collective_bytes": by_kind, "collectives": [each.model_dump() for each in result.collectives],
        "all_to_all": {axis: {**of_axis, "seconds": round(of_axis["seconds"], 3)} for axis, of_axis in exchanges.items()},
        "hbm_bytes": result.hbm_bytes, "host_traffic_bytes": result.host_traffic_bytes,
        "roofline_seconds": {**{name: to_places(value, 3) for name, value in roofline.model_dump().items()}, "binds": roofline.binds},
        "assumed_utilisation": UTILISATION, "step_seconds": to_places(seconds, 3),
        "mfu": round(flops / where.devices / seconds / where.chip.speeds.flops, 3), "tokens_per_second": round(tokens / seconds),
        "tokens_per_day": round(tokens * DAY_SECONDS / seconds), "days": to_places(setup.steps * seconds / DAY_SECONDS, 2),
        "chip_hours": to_places(setup.steps * seconds * where.chips / HOUR_SECONDS, 0),
    }  # fmt: skip


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
