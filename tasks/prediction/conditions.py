"""What an update's time rests on beside its run: machine, versions, code. What was measured under others counts for nothing."""

import os
from contextlib import suppress
from functools import cache
from importlib.metadata import version

from tasks.preflight.launcher import deciding_code
from tasks.training.machine import Machine, machine_here
from trainer.base.storage import digest_of_json
from trainer.process.conditions import deciding_variables, processor

LIBRARIES = ("jax", "jaxlib", "optax", "orbax-checkpoint")
ENVIRONMENT = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "CUDA_VISIBLE_DEVICES", "PHASEWISE_PROCESSES")
"""What of the environment decides how fast a trainer is, beside what decides its bits. jax does not go by `OMP_NUM_THREADS`, which
Dask sets where data are prepared."""


def conditions_here() -> str:
    """The digest of them. A machine with the same processor, cores, memory and devices counts as this one.

    Raises:
        TrainingError: jax does not start.
    """
    given = tuple({**deciding_variables(os.environ), **{name: os.environ.get(name, "") for name in ENVIRONMENT}}.items())
    return _digest(machine_here(), given, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@cache
def _digest(machine: Machine, environment: tuple[tuple[str, str], ...], cores: int) -> str:
    return digest_of_json(
        {
            "machine": list(machine),
            "processor": processor(),
            "cores": cores,
            "memory_gib": _memory_gib(),
            "environment": dict(environment),
            "versions": {name: version(name) for name in LIBRARIES},
            "code": deciding_code(),
        }
    )


def _memory_gib() -> int:
    with suppress(OSError, ValueError, AttributeError):
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return 0
