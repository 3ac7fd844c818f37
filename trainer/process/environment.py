"""The environment of a trainer: rejected variables, recorded variables that may change bits, and the platform of jax.

Launchers use this module, so it imports no jax. `python -m phasewise.trainer.process.environment` prints the devices of jax.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, append_event
from phasewise.trainer.config import RunConfig

LAUNCH_VARIABLE, SLICES_VARIABLE, HOSTS_VARIABLE = "PHASEWISE_LAUNCH", "PHASEWISE_SLICES", "PHASEWISE_HOSTS"
MEGASCALE = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")
OF_ONE_LAUNCH = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", LAUNCH_VARIABLE, SLICES_VARIABLE, HOSTS_VARIABLE)
"""A launcher sets these variables for every process. In the launcher's own environment they are of another launch."""
USUAL = {
    "JAX_ENABLE_X64": "0", "JAX_DEFAULT_PRNG_IMPL": "threefry2x32", "JAX_THREEFRY_PARTITIONABLE": "1", "JAX_RANDOM_SEED_OFFSET": "0",
    "JAX_NUMPY_DTYPE_PROMOTION": "standard", "JAX_NUMPY_RANK_PROMOTION": "allow",
}  # fmt: skip
"""The defaults of jax. Other values change the initial weights or the types of a run, but not its digest."""
TRUE, FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off", "")
LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
DECIDING = ("JAX_", "XLA_", "LIBTPU_", "NCCL_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_")  # prefixes of the variables that may change bits
OF_PLACE = frozenset(
    f"JAX_{name}"
    for name in (
        "COMPILATION_CACHE_DIR", "COORDINATOR_ADDRESS", "LOCAL_DEVICE_IDS", "NUM_CPU_DEVICES", "NUM_PROCESSES", "PLATFORMS", "PROCESS_ID",
        "TRACEBACK_FILTERING",
    )
)  # fmt: skip
"""Variables about the location and number of processes. Platform, processes and mesh are recorded instead."""
FLAGS, FLAGS_OF_PLACE = "XLA_FLAGS", ("--xla_force_host_platform_device_count", "--xla_dump_")


class Conditions(Frozen):
    """The recorded environment of a run's updates."""

    platform: str
    device: str
    processes: int
    versions: dict[str, str]
    variables: dict[str, str]

    def differences(self, now: "Conditions") -> list[str]:
        """Return each difference, with both values."""
        before, after = (
            {"platform": one.platform, "device": one.device, "processes": str(one.processes), **one.versions, **one.variables}
            for one in (self, now)
        )
        return [
            f"{name}: {before.get(name, 'not set')} → {after.get(name, 'not set')}"
            for name in dict.fromkeys([*before, *after])
            if before.get(name) != after.get(name)
        ]


def check_usual(environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` if a variable has another value than jax's default (`USUAL`)."""
    words = {name: environment[name].strip().lower() for name in USUAL if name in environment}
    plain = {name: "1" if word in TRUE else "0" if word in FALSE else word for name, word in words.items()}
    if unusual := [f"{name}={environment[name]}" for name, word in plain.items() if word != USUAL[name]]:
        raise ConfigError(
            f"{', '.join(unusual)} would change the initial weights or the types of a run, but not its digest: unset "
            f"{'it' if len(unusual) == 1 else 'them'}."
        )


def check_nothing_left_over(environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` if the environment of a local launcher names hosts of another launch."""
    check_usual(environment)
    found = [name for name in OF_ONE_LAUNCH if environment.get(name)]
    found += sorted(name for name in environment if name.startswith("MEGASCALE_"))
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):
        found.append("TPU_WORKER_HOSTNAMES")
    if found:
        said = ", ".join(f"{name}={environment[name]}" for name in found)
        raise ConfigError(
            f"the local launcher starts all processes of a run itself, found {said} in the environment, from another launch: unset "
            f"{'it' if len(found) == 1 else 'them'}, or choose the launcher that these are for (PHASEWISE_LAUNCHER=tpu_vm)."
        )


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` if variables of a process are missing, or are of another launch. Call it before joining other processes."""
    check_usual(environment)
    several = any(environment.get(name) for name in ("JAX_COORDINATOR_ADDRESS", "TPU_WORKER_HOSTNAMES", "MEGASCALE_COORDINATOR_ADDRESS"))
    if not several and environment.get("JAX_NUM_PROCESSES", "1") != "1":
        raise ConfigError(
            f"JAX_NUM_PROCESSES={environment['JAX_NUM_PROCESSES']} needs the address of process 0, found no JAX_COORDINATOR_ADDRESS: set "
            "it to host:port, or unset JAX_NUM_PROCESSES and JAX_PROCESS_ID."
        )
    if not environment.get(LAUNCH_VARIABLE):
        return
    slices = environment.get(SLICES_VARIABLE, "1")
    found = {name: environment[name] for name in sorted(environment) if name.startswith("MEGASCALE_")}
    said = ", ".join(f"{name}={value}" for name, value in found.items()) or "none of them"
    if slices == "1":
        if found and found.get("MEGASCALE_NUM_SLICES") != "1":  # a cluster may set it for every launch
            raise ConfigError(f"this launch has one slice, found {said} in the environment, from another launch: unset them on this host.")
        return
    missing = [name for name in MEGASCALE if not found.get(name)]
    number = found.get("MEGASCALE_SLICE_ID", "")
    if missing or found["MEGASCALE_NUM_SLICES"] != slices or not (number.isdecimal() and int(number) < int(slices)):
        raise ConfigError(
            f"this launch has {slices} slices and needs matching {', '.join(MEGASCALE)}, found {said}: unset the variables of "
            "another launch on this host, and start all hosts again."
        )


def deciding_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may change the bits of an update. In `XLA_FLAGS` the number of devices and the dumps are left out."""
    found = {name: value for name, value in sorted(environment.items()) if name.startswith(DECIDING) and name not in OF_PLACE}
    if flags := " ".join(flag for flag in found.pop(FLAGS, "").split() if not flag.startswith(FLAGS_OF_PLACE)):
        found[FLAGS] = flags
    return found


def versions() -> dict[str, str]:
    """Return the versions of Python and the installed libraries, without importing the libraries."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def conditions_of(environment: Mapping[str, str], *, platform_name: str, device: str, processes: int) -> Conditions:
    """Return the conditions of this process. The caller names jax's devices, because listing devices acquires them."""
    if platform_name == "cpu":
        device = platform.processor() or platform.machine()
        with suppress(OSError):
            lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
            device = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return Conditions(
        platform=platform_name, device=device, processes=processes, versions=versions(), variables=deciding_variables(environment)
    )


def note_conditions(
    run: RunConfig, saved_step: int | None, *, alone: Callable[[], AbstractContextManager[None]] = nullcontext
) -> str | None:
    """Record the conditions of this process, and log and return their differences from the recorded conditions on resume."""
    import jax

    if jax.process_index():
        return None
    folder, device = RunFolder(run.output), jax.devices()[0]
    before = read_conditions(folder.path)
    now = conditions_of(os.environ, platform_name=device.platform, device=device.device_kind, processes=jax.process_count())
    if before == now:
        return None
    with alone():
        write_sealed(folder.conditions, now.model_dump(mode="json"))
    if saved_step is None or before is None:
        return None
    changed = "; ".join(before.differences(now))
    text = f"resuming from step {saved_step:,} under other conditions, on the same batches, and perhaps no longer bit for bit: {changed}"
    print(f"trainer: {text}", file=sys.stderr, flush=True)
    append_event(run.output, "replanned", saved_step, text)
    return text


def read_conditions(folder: Path) -> Conditions | None:
    """Return the recorded conditions, or None if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        return Conditions.model_validate(read_sealed(RunFolder(folder).conditions))
    return None


if __name__ == "__main__":  # for programs that must not acquire the devices
    import jax

    devices = jax.devices()
    print(json.dumps({"platform": jax.default_backend(), "kind": devices[0].device_kind, "devices": len(devices)}))
