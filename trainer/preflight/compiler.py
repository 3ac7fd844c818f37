"""The compiler, asked for the step that the trainer runs: state and batch are shapes. TPUs are a description; a CPU's devices are here."""

import re
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.packing import RowRule
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.preflight.hlo import HBM, HOST, Module
from phasewise.trainer.preflight.module_costs import host_traffic_bytes, read_collectives, traffic_bytes, update_flops
from phasewise.trainer.preflight.spec import Memory, Result, Spec, Topology, run_of
from phasewise.trainer.sharding import build_mesh, state_shardings, token_sharding
from phasewise.trainer.state import abstract_state
from phasewise.trainer.step import build_train_step

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
REFUSED = re.compile(r"RESOURCE_EXHAUSTED.*?\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", re.DOTALL)
USED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")


def read_memory(report: str, buffers: str) -> Memory:
    """Arguments, temporaries and their sum.

    The report adds up what called computations name, too: places of their caller's arrays ("thread-local"), which need no memory. Gathers
    that run beside the rest on a v5p are such calls: with them, 3.1 GB would be reported for a step that needs 0.7.

    Args:
        report: `memory-usage-report.txt` of the compiler; it has a part for each memory space, whose number counts: its names are not those
            of every chip.
        buffers: `buffer-assignment.txt`: a line an allocation; those of arguments name their parameter.
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
    """Bytes that were needed and that there are, where the compiler refused for memory."""
    found = REFUSED.search(message) or USED.search(message)
    if found is None:
        return None
    needed, needed_unit, there, there_unit = found.groups()
    return round(float(needed) * UNITS[needed_unit]), round(float(there) * UNITS[there_unit])


def first_line(message: str) -> str:
    """What the compiler said, without the pages that follow."""
    return message.strip().splitlines()[0][:300] if message.strip() else "no reason given"


MODULE, REPORT, BUFFERS = "after_optimizations_after_buffer_assignment", "memory-usage-report", "buffer-assignment"
LAST = "debug_options"
"""The file that the compiler writes after all the others, before it makes machine code."""
POLL_SECONDS = 0.1
PROBE_BYTES = 2**40


class Compiled(NamedTuple):
    """How far the compiler came: its own words where it refused, and whether it went to the end."""

    refusal: str | None
    seconds: float


def describe_devices(topology: Topology) -> list[Any]:
    """The devices of the slices, which are not here."""
    if topology.platform == "cpu":
        # Devices of this machine's CPU
        wanted = topology.devices or 1
        found = jax.devices("cpu")
        if len(found) < wanted:
            raise ConfigError(
                f"{topology.name} needs {wanted} devices of this CPU, found {len(found)}: start with "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted}."
            )
        return found[:wanted]
    options: dict[str, Any] = {"num_slices": topology.num_slices} if topology.num_slices > 1 else {}
    options |= {"chip_config_name": topology.chip_config} if topology.chip_config else {}
    options |= {"chips_per_host_bounds": topology.chips_per_host} if topology.chips_per_host else {}
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options).devices)
    except Exception as error:  # of several types, by the reason
        raise ConfigError(f"the compiler for TPUs does not know the topology {topology.name}: {first_line(str(error))}") from error


def lower_step(run: RunConfig, devices: list[Any]) -> Any:
    """The trainer's step for these devices, traced with shapes in place of arrays, as `trainer.loop` calls it. One device has no mesh."""
    mesh = build_mesh(run.execution.mesh, devices) if len(devices) > 1 else None
    state = abstract_state(run, with_ema=run.keeps_average)
    alone = jax.sharding.SingleDeviceSharding(devices[0])
    shardings = jax.tree.map(lambda _: alone, state) if mesh is None else state_shardings(state, run.model, mesh)
    placed = jax.tree.map(lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), state, shardings)
    of_batch = alone if mesh is None else token_sharding(mesh)
    rows = jax.ShapeDtypeStruct((run.batch.at(0), run.model.seq_len), jnp.int32, sharding=of_batch)
    step: Any = build_train_step(run.model, run.optimizer, run.execution, mesh)
    chosen = jax.ShapeDtypeStruct(rows.shape, jnp.bool_, sharding=of_batch)
    targets = (chosen,) if RowRule(run.packing, run.loss_on).chooses_targets else ()
    return step.lower(placed, rows, rows, scheduled_at(run, 0), *targets)


def available_bytes(device: Any) -> int:
    """The memory of a chip that a program may use: what the compiler says when it refuses one that needs more than any chip has."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    large = jax.ShapeDtypeStruct((PROBE_BYTES // 512, 128), jnp.float32, sharding=sharding)
    try:
        jax.jit(lambda x: jnp.sin(x)[::-1]).lower(large).compile()
    except jax.errors.JaxRuntimeError as error:
        if found := read_refusal(str(error)):
            return found[1]
        raise TrainingError(f"the compiler did not say how much memory a chip has: {first_line(str(error))}") from error
    raise TrainingError(f"the compiler took a program of {PROBE_BYTES:,} bytes for one chip: its memory is not known.")


def examine(spec: Spec, dump: Path) -> Result:
    """Compile the step and read what it needs.

    Args:
        dump: an empty folder for what the compiler writes down.

    Raises:
        ConfigError: topology, mesh, batch or model do not fit one another.
        TrainingError: the compiler failed for a reason other than memory.
    """
    devices = describe_devices(spec.topology)
    run = run_of(spec.step, spec.execution)
    if spec.topology.platform == "cpu":
        return examine_on_cpu(spec, run, devices)
    limit = available_bytes(devices[0])
    started = time.monotonic()
    lowered = lower_step(run, devices)
    lower_seconds = time.monotonic() - started
    # XLA's count for the whole batch. jax has no public way to it for devices that are not here
    from jax._src import lib  # see above

    count = getattr(getattr(getattr(lib, "xla_client", None), "_xla", None), "hlo_module_cost_analysis", None)
    if count is None:
        flops = None
    else:
        analysis = count(jax.devices("cpu")[0].client, lowered.compiler_ir("hlo").as_hlo_module())
        flops = float(analysis["flops"])
    compiled = compile_into(lowered, dump, machine_code=spec.machine_code)
    report = _file(dump, REPORT)
    buffers = next((path for path in dump.glob("*.txt") if re.search(rf"-{BUFFERS}\.txt$", path.name)), None)
    memory = read_memory(report.read_text(), buffers.read_text()) if report and buffers else None
    path = _file(dump, MODULE)
    module = Module(path.read_text()) if path else None
    return Result(
        refusal=compiled.refusal,
        memory=memory,
        limit_bytes=limit,
        collectives=read_collectives(module, spec.execution.mesh, spec.topology.num_slices) if module else (),
        hbm_bytes=traffic_bytes(module) if module else 0,
        host_traffic_bytes=host_traffic_bytes(module) if module else 0,
        update_flops=update_flops(module) if module else 0,
        flops_by_xla=flops,
        lower_seconds=lower_seconds,
        compile_seconds=compiled.seconds,
        host_bytes=_most_memory_bytes(),
    )


def examine_on_cpu(spec: Spec, run: RunConfig, devices: list[Any]) -> Result:
    """Compile the step for devices that are here: memory is what the executable says of itself, exactly what the trainer will run.

    Nobody limits it; the limit is what `deployments/slices.toml` says of a device.
    """
    started = time.monotonic()
    lowered = lower_step(run, devices)
    lower_seconds, started = time.monotonic() - started, time.monotonic()
    compiled = lowered.compile()
    seconds = time.monotonic() - started
    module = Module(compiled.as_text())
    # What an executable that is here says of itself, a device: results that take the place of arguments are counted once
    analysis = compiled.memory_analysis()
    arguments = int(analysis.argument_size_in_bytes)
    results = max(int(analysis.output_size_in_bytes) - int(analysis.alias_size_in_bytes), 0)
    temporaries = int(analysis.temp_size_in_bytes) + results
    return Result(
        refusal=None,
        memory=Memory(arguments=arguments, temporaries=temporaries, peak=arguments + temporaries, host=0),
        limit_bytes=0,
        collectives=read_collectives(module, spec.execution.mesh, spec.topology.num_slices) if len(devices) > 1 else (),
        hbm_bytes=round(compiled.cost_analysis().get("bytes accessed", 0.0)),
        host_traffic_bytes=0,
        update_flops=0,
        flops_by_xla=compiled.cost_analysis().get("flops"),
        lower_seconds=lower_seconds,
        compile_seconds=seconds,
        host_bytes=_most_memory_bytes(),
    )


def compile_into(lowered: Any, dump: Path, *, machine_code: bool) -> Compiled:
    """Run the compiler, which writes into `dump` what it decided; leave it (in its thread) where machine code is not wanted."""
    options = {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True}
    failures: list[Exception] = []

    def run() -> None:
        try:
            lowered.compile(compiler_options=options)
        except Exception as error:  # handed to the waiting thread
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    started = time.monotonic()
    thread.start()
    written: dict[str, int] = {}
    while thread.is_alive():
        before = written
        written = {path.name: path.stat().st_size for path in dump.glob("*.*")}
        if not machine_code and before == written and is_assigned(dump):
            break
        thread.join(POLL_SECONDS)
    seconds = time.monotonic() - started
    if failures and read_refusal(str(failures[0])) is None:
        raise TrainingError(f"the compiler for TPUs failed: {first_line(str(failures[0]))}") from failures[0]
    return Compiled(first_line(str(failures[0])) if failures else None, seconds)


def is_assigned(dump: Path) -> bool:
    """Whether every buffer has its place, and the module that says so is written to its end: its entry comes last."""
    module = _file(dump, MODULE)
    if module is None or any(_file(dump, kind) is None for kind in (LAST, REPORT)):
        return False
    text = module.read_text(errors="replace").rstrip()
    return "\nENTRY " in text and text.endswith("\n}")


def _file(dump: Path, kind: str) -> Path | None:
    return next(iter(dump.glob(f"*{kind}*")), None)


def _most_memory_bytes() -> int:
    """What this process held at most. `ru_maxrss` would begin with what its parent held when it started this one."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
