"""The execution of a run: the devices of this machine, and a summary of a run's execution."""

import json
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from phasewise.tasks.preflight.plan import kept_in_words
from phasewise.tasks.training.run_identity import read_run
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.run_folder import read_events
from phasewise.trainer.base.wording import plural
from phasewise.trainer.config import Execution, Mesh, RunConfig
from phasewise.trainer.config.execution import check_kernel
from phasewise.trainer.process.accelerator import has_accelerator
from phasewise.trainer.process.child_process import ending, python_command
from phasewise.trainer.process.environment import read_conditions

KERNELS = {"xla": "XLA", "cudnn": "cuDNN", "splash": "Splash"}
ASK_SECONDS = 120
ONE_DEVICE = Execution(mesh=Mesh(replica=1, fsdp=1, tensor=1))


class Machine(NamedTuple):
    """The devices of a trainer: platform `cpu`, `gpu` or `tpu`, the vendor's name of the device, and the number of devices."""

    platform: str
    kind: str
    devices: int


CPU = Machine("cpu", "CPU", 1)  # all cores of a CPU are one device, so that bits don't depend on the number of cores


def machine_here(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Machine:
    """Return the devices of a trainer on this machine. If there is an accelerator, a separate process starts jax, once."""
    platforms = environment.get("JAX_PLATFORMS", "")
    if platforms == "cpu" or (not platforms and not has_accelerator(environment, root)):
        return CPU
    return _devices_of_jax(tuple(sorted(environment.items())))


@cache
def _devices_of_jax(environment: tuple[tuple[str, str], ...]) -> Machine:
    command = python_command("phasewise.trainer.process.environment")
    try:
        answer = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise TrainingError(f"jax did not list its devices within {ASK_SECONDS} s. Set JAX_PLATFORMS=cpu to train on the CPU.") from None
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise TrainingError(f"jax does not start here ({ending(answer.returncode)}): {last} Set JAX_PLATFORMS=cpu to train on the CPU.")
    found = json.loads(answer.stdout.strip().splitlines()[-1])
    machine = Machine("gpu" if found["platform"] in ("gpu", "cuda", "rocm") else found["platform"], found["kind"], found["devices"])
    return CPU if machine.platform == "cpu" else machine


def execution_here(run: RunConfig, machine: Machine) -> Execution:
    """Return the execution on all devices of a machine, or on one device if they don't divide every batch and the model."""
    batches = [size for _, size in run.batch.within(run.start_step, run.stop_step)]
    fits = all(size % machine.devices == 0 for size in batches) and run.model.d_model % machine.devices == 0
    if machine.devices == 1 or machine.platform == "cpu" or not fits:
        return ONE_DEVICE
    return Execution(mesh=Mesh(fsdp=machine.devices))


def in_words(run: RunConfig, machine: Machine) -> str:
    """Return `1 × CPU, float32, XLA attention`."""
    count = run.execution.mesh.devices
    kernel = check_kernel(run.execution.attention, machine.platform, run.model, context=run.execution.mesh.context)
    left = f" of {machine.devices}" if machine.devices > count else ""
    return f"{count}{left} × {machine.kind.removeprefix('NVIDIA ')}, {run.model.compute_dtype}, {KERNELS[kernel]} attention"


def mesh_words(execution: Execution) -> str:
    """Return `2 devices (fsdp 2)`."""
    mesh = execution.mesh
    if mesh.devices == 1:
        return "1 device"
    axes = [f"{name} {size}" for name, size in mesh.model_dump().items() if size > 1]
    return f"{plural(mesh.devices, 'device')} ({', '.join(axes)})"


def execution_summary(folder: Path, slice_name: str) -> str:
    """Return the execution of a phase and its restarts, from its run's folder. Empty if it has not started."""
    run = read_run(folder)
    if run is None:
        return ""
    execution = run.execution
    kernel, size, conditions = KERNELS.get(execution.attention), execution.microbatch_sequences, read_conditions(folder)
    words = [
        f"{slice_name}: {mesh_words(execution)}",
        run.model.compute_dtype,
        *([f"{kernel} attention"] if kernel else []),
        kept_in_words(execution.remat),
        "the batch at once" if size is None else f"the batch in parts of {plural(size, 'sequence')}",
        *(f"{name}={value}" for name, value in (conditions.variables if conditions else {}).items()),
    ]
    events = read_events(folder)
    moved = [str(event.get("text")) for event in events if event.get("kind") == "moved"]
    moved = [f"before that {text.removeprefix('trained ').partition(', and saved')[0]}" for text in moved]
    steps = [event.get("step") for event in events if event.get("kind") in ("restart", "resumed")]
    resumed = ", ".join("the beginning" if step is None else f"step {step:,}" for step in steps)
    continuity = [f"it resumed from {resumed}"] if resumed else [] if moved else ["from its start to its end"]
    replanned = [
        f"to step {event.get('step') or 0:,} otherwise ({str(event.get('text')).rpartition('bit for bit: ')[2]})"
        for event in events
        if event.get("kind") == "replanned"
    ]
    return "; ".join([", ".join(words), *moved, *continuity, *replanned])
