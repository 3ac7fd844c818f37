"""What the environment says of other hosts, and whether that is of this launch or left over from another one.

| variable | what a launcher says with it |
|---|---|
| `PHASEWISE_LAUNCH` | the name of this life of the run; all its hosts have the same |
| `PHASEWISE_SLICES` | how many slices the launch has; 1 where it is not set |
| `PHASEWISE_HOSTS` | the names of its hosts in order, with commas between |
"""

from collections.abc import Mapping

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.process.conditions import check_usual

LAUNCH_VARIABLE, SLICES_VARIABLE, HOSTS_VARIABLE = "PHASEWISE_LAUNCH", "PHASEWISE_SLICES", "PHASEWISE_HOSTS"
MEGASCALE = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")
OF_ONE_LAUNCH = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", LAUNCH_VARIABLE, SLICES_VARIABLE, HOSTS_VARIABLE)
"""What a launcher gives to every process anew: in its own environment it can only be left over."""


def left_over(environment: Mapping[str, str]) -> list[str]:
    """Variables that name the hosts or slices of some other launch."""
    found = [name for name in OF_ONE_LAUNCH if environment.get(name)]
    found += sorted(name for name in environment if name.startswith("MEGASCALE_"))
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):
        found.append("TPU_WORKER_HOSTNAMES")
    return found


def check_nothing_left_over(environment: Mapping[str, str]) -> None:
    """For a program that starts all processes of a run itself.

    Raises:
        ConfigError: the environment names hosts of another launch; or as `check_usual`.
    """
    check_usual(environment)
    if found := left_over(environment):
        said = ", ".join(f"{name}={environment[name]}" for name in found)
        raise ConfigError(
            f"the local launcher starts all processes of a run itself, found {said} in the environment, from another launch: unset "
            f"{'it' if len(found) == 1 else 'them'}, or choose the launcher that these are for (PHASEWISE_LAUNCHER=tpu_vm)."
        )


def check_surroundings(environment: Mapping[str, str]) -> None:
    """For a process of a run, before it joins others.

    Raises:
        ConfigError: a variable is left over from another launch, or one of a group is missing; or as `check_usual`.
    """
    check_usual(environment)
    several = any(environment.get(name) for name in ("JAX_COORDINATOR_ADDRESS", "TPU_WORKER_HOSTNAMES", "MEGASCALE_COORDINATOR_ADDRESS"))
    if not several and environment.get("JAX_NUM_PROCESSES", "1") != "1":
        raise ConfigError(
            f"JAX_NUM_PROCESSES={environment['JAX_NUM_PROCESSES']} needs the address of process 0, found no JAX_COORDINATOR_ADDRESS: set "
            "it to host:port, or unset JAX_NUM_PROCESSES and JAX_PROCESS_ID."
        )
    if environment.get(LAUNCH_VARIABLE):
        _check_slices(environment)


def _check_slices(environment: Mapping[str, str]) -> None:
    slices = environment.get(SLICES_VARIABLE, "1")
    found = {name: environment[name] for name in sorted(environment) if name.startswith("MEGASCALE_")}
    said = ", ".join(f"{name}={value}" for name, value in found.items()) or "none of them"
    if slices == "1":
        if found and found.get("MEGASCALE_NUM_SLICES") != "1":  # a cluster may say of every launch how many slices it has
            raise ConfigError(f"this launch has one slice, found {said} in the environment, from another launch: unset them on this host.")
        return
    missing = [name for name in MEGASCALE if not found.get(name)]
    number = found.get("MEGASCALE_SLICE_ID", "")
    if missing or found["MEGASCALE_NUM_SLICES"] != slices or not (number.isdecimal() and int(number) < int(slices)):
        raise ConfigError(
            f"this launch has {slices} slices and needs {', '.join(MEGASCALE)} that say so, found {said}: unset what is left over from "
            "another launch on this host, and start all hosts again."
        )
