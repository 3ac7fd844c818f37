"""Variables of the launcher's own environment that every host of its runs has, too."""

from collections.abc import Mapping

PREFIXES = (
    "JAX_",
    "XLA_FLAGS",
    "LIBTPU_INIT_ARGS",
    "TF_CPP_",
    "PHASEWISE_STALL",
    "PHASEWISE_HEARTBEAT",
    "PHASEWISE_JOIN",
    "PHASEWISE_PUBLISH",
)
OF_ONE_PLACE = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_PLATFORMS")
"""What a launcher says itself, and what is of this machine: it may have no accelerator."""


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What hosts get of this environment."""
    return {name: value for name, value in environment.items() if name.startswith(PREFIXES) and name not in OF_ONE_PLACE}
