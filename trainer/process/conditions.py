"""What of a machine and its environment decides what a trainer computes, beside its run.

What would make it another run – other first weights, other types – is refused by name. What may change the last bits is written down in
the run's folder, and said where a run goes on under other conditions than before.
"""

import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen

USUAL = {
    "JAX_ENABLE_X64": "0",
    "JAX_DEFAULT_PRNG_IMPL": "threefry2x32",
    "JAX_THREEFRY_PARTITIONABLE": "1",
    "JAX_RANDOM_SEED_OFFSET": "0",
    "JAX_NUMPY_DTYPE_PROMOTION": "standard",
    "JAX_NUMPY_RANK_PROMOTION": "allow",
}
"""What jax has by itself. With another value a run would begin with other weights, or compute in other types, under the same digest."""
TRUE, FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off", "")
LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
"""What an update is computed by, as far as it is installed."""
DECIDING = ("JAX_", "XLA_", "LIBTPU_", "NCCL_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_")
"""Beginnings of the names of variables that may change bits."""
OF_PLACE = frozenset(
    {
        "JAX_COMPILATION_CACHE_DIR",
        "JAX_COORDINATOR_ADDRESS",
        "JAX_LOCAL_DEVICE_IDS",
        "JAX_NUM_CPU_DEVICES",
        "JAX_NUM_PROCESSES",
        "JAX_PLATFORMS",
        "JAX_PROCESS_ID",
        "JAX_TRACEBACK_FILTERING",
    }
)
"""Where a process is, and how many there are: platform, processes and mesh say what of it counts."""
FLAGS = "XLA_FLAGS"
FLAGS_OF_PLACE = ("--xla_force_host_platform_device_count", "--xla_dump_")


class Conditions(Frozen):
    """What a run's updates were computed under.

    Attributes:
        platform, device: as jax names them; of a CPU its processor.
        processes: how many there are.
        versions: of `LIBRARIES` and Python.
        variables: those of `deciding_variables`.
    """

    platform: str
    device: str
    processes: int
    versions: dict[str, str]
    variables: dict[str, str]

    def differences(self, now: "Conditions") -> list[str]:
        """Each thing that is not as it was, with both values."""
        before, after = self._flat(), now._flat()
        return [
            f"{name}: {before.get(name, 'not set')} → {after.get(name, 'not set')}"
            for name in dict.fromkeys([*before, *after])
            if before.get(name) != after.get(name)
        ]

    def _flat(self) -> dict[str, str]:
        return {"platform": self.platform, "device": self.device, "processes": str(self.processes), **self.versions, **self.variables}


def check_usual(environment: Mapping[str, str]) -> None:
    """Refuse what would make another run of it.

    Raises:
        ConfigError: a variable has another value than jax takes by itself.
    """
    given = {name: environment[name] for name in USUAL if name in environment}
    if unusual := [name for name, value in given.items() if _plain(value) != USUAL[name]]:
        said = ", ".join(f"{name}={given[name]}" for name in unusual)
        raise ConfigError(
            f"{said} would change what a run begins with or computes in, and no result would say so: unset "
            f"{'it' if len(unusual) == 1 else 'them'}."
        )


def deciding_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that may change the bits of an update. Of `XLA_FLAGS` what is about the number of devices, or what is written down, is left
    out.
    """
    found = {name: value for name, value in sorted(environment.items()) if name.startswith(DECIDING) and name not in OF_PLACE}
    if flags := " ".join(flag for flag in found.pop(FLAGS, "").split() if not flag.startswith(FLAGS_OF_PLACE)):
        found[FLAGS] = flags
    return found


def versions() -> dict[str, str]:
    """By what is installed, without importing it: a launcher reads this module, too."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def conditions_of(environment: Mapping[str, str], *, platform_name: str, device: str, processes: int) -> Conditions:
    """Those of this process; what jax computes on is given, because asking takes the devices."""
    return Conditions(
        platform=platform_name,
        device=processor() if platform_name == "cpu" else device,
        processes=processes,
        versions=versions(),
        variables=deciding_variables(environment),
    )


def processor() -> str:
    """This machine's, as it calls itself."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return platform.processor() or platform.machine()


def _plain(value: str) -> str:
    """A switch as 0 or 1, as jax reads it; anything else as it is."""
    word = value.strip().lower()
    return "1" if word in TRUE else "0" if word in FALSE else word
