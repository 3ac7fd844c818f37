"""Compilation of the trainer's step with shapes in place of arrays, for described TPUs or for this machine's CPU."""

import re
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.data.packing import PLAIN, RowRule
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.preflight.hlo import HBM, HOST, Module
from phasewise.trainer.preflight.module_costs import host_traffic_bytes, read_collectives, traffic_bytes, update_flops
from phasewise.trainer.preflight.spec import Memory, Result, Spec, Topology, run_of
from phasewise.trainer.sharding import build_mesh, named_sharding, state_shardings
from phasewise.trainer.step import abstract_state, build_train_step

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
REFUSED = re.compile(r"RESOURCE_EXHAUSTED.*?\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", re.DOTALL)
USED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
MODULE, REPORT, BUFFERS = "after_optimizations_after_buffer_assignment", "memory-usage-report", "buffer-assignment"
LAST = "debug_options"  # the last file that the compiler writes before machine code
POLL_SECONDS = 0.1
PROBE_BYTES = 2**40


def read_memory(report: str, buffers: str) -> Memory:
    """Return arguments, temporaries and their sum.

    The report also counts "thread-local" buffers of called computations, which are buffers of the caller and need no memory. Asynchronous
    gathers on a v5p are such calls: with them the report has 3.1 GB for a step that needs 0.7.

    Args:
        report: the compiler's `memory-usage-report.txt`. Memory spaces are identified by number, because names differ between chips.
        buffers: `buffer-assignment.txt`, one line per allocation. Arguments have the number of their parameter.
    """
    totals = {
        int(color): int(size) for color, size in re.findall(r"^Memory Space: .*\(color=(\d+)\)\nTotal bytes: (\d+)", report, re.MULTILINE)
    }
    named = re.findall(r"^allocation \d+: size (\d+),(.*), parameter \d+,", buffers, re.MULTILINE)
    arguments = sum(int(size) for size, words in named if "color" not in words)
    lent = re.findall(r"^allocation \d+: size (\d+),(.*), thread-local:", buffers, re.MULTILINE)
    peak = totals.get(HBM, 0) - sum(int(size) for size, words in lent if "color" not in words)
    return Memory(arguments=arguments, temporaries=max(peak - arguments, 0), peak=peak, host=totals.get(HOST, 0))


def read_refusal(message: str) -> tuple[int, int] | None:
    """Return required and available bytes if the compiler refused for memory."""
    found = REFUSED.search(message) or USED.search(message)
    if found is None:
        return None
    needed, needed_unit, available, available_unit = found.groups()
    return round(float(needed) * UNITS[needed_unit]), round(float(available) * UNITS[available_unit])


def first_line(message: str) -> str:
    """Return the first line of the compiler's message."""
    return message.strip().splitlines()[0][:300] if message.strip() else "no reason given"


def examine(spec: Spec, dump: Path) -> Result:
    """Compile the step as `trainer.loop` traces it, with files in the empty folder `dump`. Raises ConfigError or TrainingError."""
    devices, limit = _describe_devices(spec.topology)
    run = run_of(spec.step, spec.execution)

    started = time.monotonic()
    mesh = build_mesh(run.execution.mesh, devices) if len(devices) > 1 else None
    state = abstract_state(run, with_ema=run.keeps_average)
    single = jax.sharding.SingleDeviceSharding(devices[0])
    shardings = jax.tree.map(lambda _: single, state) if mesh is None else state_shardings(state, run.model, mesh)
    placed = jax.tree.map(lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state, shardings)
    of_batch = single if mesh is None else named_sharding(mesh, "batch", "position")
    rows = jax.ShapeDtypeStruct((run.batch.at(0), run.model.seq_len), jnp.int32, sharding=of_batch)
    chosen = jax.ShapeDtypeStruct(rows.shape, jnp.bool_, sharding=of_batch)
    targets = (chosen,) if RowRule(run.packing, run.loss_on) != PLAIN else ()
    step: Any = build_train_step(run.model, run.optimizer, run.execution, mesh)
    lowered = step.lower(placed, rows, rows, scheduled_at(run, 0), *targets)
    lower_seconds = time.monotonic() - started

    found: dict[str, Any]
    if spec.topology.platform == "cpu":  # the executable that the trainer will run, without a limit of memory (`deployments/slices.toml`)
        compiled = lowered.compile()
        compile_seconds = time.monotonic() - started - lower_seconds
        analysis, costs = compiled.memory_analysis(), compiled.cost_analysis()
        arguments = int(analysis.argument_size_in_bytes)
        # results in place of arguments need no further memory
        results = max(int(analysis.output_size_in_bytes) - int(analysis.alias_size_in_bytes), 0)
        temporaries = int(analysis.temp_size_in_bytes) + results
        module = Module(compiled.as_text()) if mesh is not None else None
        found = {
            "refusal": None,
            "memory": Memory(arguments=arguments, temporaries=temporaries, peak=arguments + temporaries, host=0),
            "collectives": read_collectives(module, spec.execution.mesh, spec.topology.num_slices) if module else (),
            "hbm_bytes": round(costs.get("bytes accessed", 0.0)),
            "host_traffic_bytes": 0,
            "update_flops": 0,
            "flops_by_xla": costs.get("flops"),
            "compile_seconds": compile_seconds,
        }
    else:
        from jax._src import lib  # jax has no public function that counts for absent devices

        count = getattr(getattr(getattr(lib, "xla_client", None), "_xla", None), "hlo_module_cost_analysis", None)
        module = lowered.compiler_ir("hlo").as_hlo_module()
        flops = None if count is None else float(count(jax.devices("cpu")[0].client, module)["flops"])
        found = {"flops_by_xla": flops, **_compile_for_tpu(spec, lowered, dump)}
    # `ru_maxrss` would include the parent's memory at the fork
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return Result(limit_bytes=limit, lower_seconds=lower_seconds, host_bytes=peak_bytes, **found)


def _describe_devices(topology: Topology) -> tuple[list[Any], int]:
    """Return the devices, and the memory of a chip for programs, from the refusal of a program that exceeds any chip (0 for a CPU)."""
    if topology.platform == "cpu":
        wanted = topology.devices or 1
        found = jax.devices("cpu")
        if len(found) < wanted:
            raise ConfigError(
                f"{topology.name} needs {wanted} devices of this CPU, found {len(found)}: start with "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted}."
            )
        return found[:wanted], 0
    options: dict[str, Any] = {"num_slices": topology.num_slices} if topology.num_slices > 1 else {}
    options |= {"chip_config_name": topology.chip_config} if topology.chip_config else {}
    options |= {"chips_per_host_bounds": topology.chips_per_host} if topology.chips_per_host else {}
    try:
        devices = list(topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options).devices)
    except Exception as error:  # the type depends on the reason
        raise ConfigError(f"the compiler for TPUs does not know the topology {topology.name}: {first_line(str(error))}") from error

    sharding = jax.sharding.SingleDeviceSharding(devices[0])
    large = jax.ShapeDtypeStruct((PROBE_BYTES // 512, 128), jnp.float32, sharding=sharding)
    try:
        jax.jit(lambda x: jnp.sin(x)[::-1]).lower(large).compile()
    except jax.errors.JaxRuntimeError as error:
        if found := read_refusal(str(error)):
            return devices, found[1]
        raise TrainingError(f"the compiler did not report the memory of a chip: {first_line(str(error))}") from error
    raise TrainingError(f"the compiler accepted a program of {PROBE_BYTES:,} bytes for one chip: its memory is unknown.")


def _compile_for_tpu(spec: Spec, lowered: Any, dump: Path) -> dict[str, Any]:
    """Fields of the result from the compiler's files. Without `machine_code` the compiler is abandoned after buffer assignment."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            lowered.compile(compiler_options={"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True})
        except Exception as error:  # for the waiting thread
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    started = time.monotonic()
    thread.start()
    written: dict[str, int] = {}
    while thread.is_alive():
        before = written
        written = {path.name: path.stat().st_size for path in dump.glob("*.*")}
        if not spec.machine_code and before == written and is_assigned(dump):
            break
        thread.join(POLL_SECONDS)
    seconds = time.monotonic() - started
    if failures and read_refusal(str(failures[0])) is None:
        raise TrainingError(f"the compiler for TPUs failed: {first_line(str(failures[0]))}") from failures[0]
    report, text = _file(dump, REPORT), _file(dump, MODULE)
    buffers = next((path for path in dump.glob("*.txt") if re.search(rf"-{BUFFERS}\.txt$", path.name)), None)
    module = Module(text.read_text()) if text else None
    return {
        "refusal": first_line(str(failures[0])) if failures else None,
        "memory": read_memory(report.read_text(), buffers.read_text()) if report and buffers else None,
        "collectives": read_collectives(module, spec.execution.mesh, spec.topology.num_slices) if module else (),
        "hbm_bytes": traffic_bytes(module) if module else 0,
        "host_traffic_bytes": host_traffic_bytes(module) if module else 0,
        "update_flops": update_flops(module) if module else 0,
        "compile_seconds": seconds,
    }


def is_assigned(dump: Path) -> bool:
    """Whether buffer assignment is complete and its module is written to the end. The entry computation comes last."""
    module = _file(dump, MODULE)
    if module is None or any(_file(dump, kind) is None for kind in (LAST, REPORT)):
        return False
    text = module.read_text(errors="replace").rstrip()
    return "\nENTRY " in text and text.endswith("\n}")


def _file(dump: Path, kind: str) -> Path | None:
    return next(iter(dump.glob(f"*{kind}*")), None)
