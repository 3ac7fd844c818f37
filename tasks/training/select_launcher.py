"""Select the launcher of a phase by its slice and the environment (docs/reference/environment.md)."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from phasewise.tasks.preflight.slices import Slice, find_slice
from phasewise.tasks.store.publisher import keeper_of
from phasewise.tasks.training.launchers import Launcher, LocalLauncher, env_passthrough
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.identity import HOUSE
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process.child_process import stop_seconds
from phasewise.trainer.process.rendezvous import JOIN_VARIABLE

LAUNCHER_VARIABLE, PROCESSES_VARIABLE = "PHASEWISE_LAUNCHER", "PHASEWISE_PROCESSES"
HERE = "local"
LauncherKind = Literal["local", "jobset", "tpu_vm"]
KINDS: tuple[LauncherKind, ...] = get_args(LauncherKind)
NEEDED = {
    "jobset": ("PHASEWISE_GKE_IMAGE", "the image that every host starts"),
    "tpu_vm": ("PHASEWISE_TPU_HOSTS", "the workers of the slice"),
}
"""Kind of launcher → its required variable, in words."""


def chosen_kind(environment: Mapping[str, str] = os.environ) -> LauncherKind:
    """Return the launcher kind of `PHASEWISE_LAUNCHER`."""
    kind = environment.get(LAUNCHER_VARIABLE) or HERE
    if kind not in KINDS:
        raise ConfigError(f"{LAUNCHER_VARIABLE} must be one of {', '.join(KINDS)}, found '{kind}'. Correct it, or leave it unset.")
    return kind


def select_launcher(run: RunConfig, slice_name: str, environment: Mapping[str, str] = os.environ) -> Launcher:
    """Return the launcher of a run on a slice."""
    kind = chosen_kind(environment)
    devices = run.execution.mesh.devices
    if slice_name == HERE or kind == HERE:
        text = environment.get(PROCESSES_VARIABLE, "")
        if text and not (text.isdecimal() and int(text)):
            raise ConfigError(f"{PROCESSES_VARIABLE} must be a whole number above 0, found '{text}'. Correct it, or leave it unset.")
        count = int(text) if text else None
        if count and devices % count:
            raise ConfigError(
                f"the processes of {run.phase} on {slice_name} must have equally many of its {devices} devices, found {count} in "
                f"{PROCESSES_VARIABLE}: take a number that divides them, or leave it unset."
            )
        return LocalLauncher(count)
    slices = find_slice(slice_name)
    if devices != slices.devices:
        raise ConfigError(
            f"the mesh of {run.phase} must have the {slices.devices} devices of {slice_name}, found {devices} in execution.mesh: "
            "plan the phase for that slice (phasewise preflight), or name another slice."
        )
    name, what = NEEDED[kind]
    if not (value := environment.get(name)):
        raise ConfigError(f"{LAUNCHER_VARIABLE}={kind} needs {what} in {name}, found none: set it.")
    return _jobset(run, slices, environment, value) if kind == "jobset" else _tpu_vm(slices, environment, value)


def _jobset(run: RunConfig, slices: Slice, environment: Mapping[str, str], image: str) -> Launcher:
    from phasewise.tasks.training.hosts import send_seconds
    from phasewise.tasks.training.jobset import IN_MEMORY, ClusterSettings, JobSetLauncher
    from phasewise.tasks.training.kubernetes_cluster import Cluster

    claim, mount = environment.get("PHASEWISE_GKE_CLAIM"), environment.get("PHASEWISE_GKE_MOUNT")
    if bool(claim) != bool(mount):
        raise ConfigError("PHASEWISE_GKE_CLAIM and PHASEWISE_GKE_MOUNT must be set both or not at all: the volume, and where the home is.")
    scratch = environment.get("PHASEWISE_GKE_SCRATCH") or None
    is_on_store = keeper_of(Path(run.output)) is not None
    if is_on_store and claim:
        raise ConfigError(
            f"{run.phase} has its home on a store, which pods reach by themselves, found the volume {claim} in PHASEWISE_GKE_CLAIM: "
            "unset PHASEWISE_GKE_CLAIM and PHASEWISE_GKE_MOUNT, or take a home in a folder below that mount."
        )
    if scratch and not is_on_store:
        raise ConfigError(
            f"PHASEWISE_GKE_SCRATCH is for a home on a store, found {run.output}, a folder that all pods see: unset it, or take a home on gs://."
        )
    if scratch and scratch != IN_MEMORY and not scratch.startswith("/"):
        raise ConfigError(
            f"PHASEWISE_GKE_SCRATCH must be a folder of the node, from / on, or '{IN_MEMORY}', found '{scratch}'. Correct it, or leave it "
            "unset."
        )
    settings = ClusterSettings(
        image=image, namespace=environment.get("PHASEWISE_GKE_NAMESPACE") or "default", claim=claim or None, mount=mount or None,
        service_account=environment.get("PHASEWISE_GKE_SERVICE_ACCOUNT") or None, stop_seconds=stop_seconds(),
        passed_on={name: value for name, value in env_passthrough(environment).items() if name != JOIN_VARIABLE}, scratch=scratch,
        send_seconds=send_seconds(environment),
    )  # fmt: skip
    return JobSetLauncher(Cluster(settings.namespace), slices, settings)


def _tpu_vm(slices: Slice, environment: Mapping[str, str], text: str) -> Launcher:
    from phasewise.tasks.training.tpu_vm import TpuVmLauncher, Workers

    if "=" in text:
        named = {find_slice(name.strip()).name: workers for name, _, workers in (part.partition("=") for part in text.split("|"))}
        if slices.name not in named:
            raise ConfigError(
                f"PHASEWISE_TPU_HOSTS must name the workers of {slices.name}, found those of {', '.join(named)}: add '| {slices.name}=…'."
            )
        text = named[slices.name]
    groups = tuple(tuple(name.strip() for name in one.split(",") if name.strip()) for one in text.split(";"))
    each = slices.hosts // slices.count
    if [len(one) for one in groups] != [each] * slices.count:
        raise ConfigError(
            f"{slices.name} has {slices.count} × {each} hosts, found {' and '.join(str(len(one)) for one in groups)} in "
            "PHASEWISE_TPU_HOSTS: name all workers of a slice with commas between, and slices with semicolons between."
        )
    known_hosts, key = environment.get("PHASEWISE_TPU_KNOWN_HOSTS"), environment.get("PHASEWISE_TPU_KEY")
    return TpuVmLauncher(
        Workers(
            slices=groups,
            python=environment.get("PHASEWISE_TPU_PYTHON") or sys.executable,
            project=environment.get("PHASEWISE_TPU_PROJECT") or str(HOUSE.parent),
            known_hosts=Path(known_hosts) if known_hosts else None,
            key=Path(key) if key else None,
            scratch=environment.get("PHASEWISE_TPU_SCRATCH") or None,
        )
    )
