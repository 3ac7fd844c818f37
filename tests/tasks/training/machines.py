"""Machines that launchers start runs on: this one, a cluster behind an API server, and hosts behind an SSH server."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.training.jobset import JobSetLauncher
from phasewise.tasks.training.jobset_manifest import ClusterSettings, build_manifest
from phasewise.tasks.training.kubernetes_cluster import Cluster, Conflict
from phasewise.tasks.training.launchers import Attempt, Launcher
from phasewise.tasks.training.local import LocalLauncher
from phasewise.tasks.training.tpu_vm import TpuVmLauncher, Workers
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.identity import HOUSE
from phasewise.trainer.process.signals import stop_seconds
from tests.ports import free_port
from tests.tasks.training.api_server import ApiServer, api_server
from tests.tasks.training.schema import problems_of
from tests.tasks.training.ssh_hosts import SshHosts, ssh_hosts

DEVICES_EACH = 1

KINDS = ("local", "jobset", "tpu_vm")


class ThisMachine:
    """Two processes."""

    kind, names = "local", ("process 0", "process 1")

    def __init__(self, python: Path) -> None:
        self.python = python

    def launcher(self) -> Launcher:
        return LocalLauncher(2, python=str(self.python))

    def second_is_refused(self, life: Attempt) -> None:
        """The trainer refuses it by its own lock: `tests/trainer/process/test_lease.py`."""

    def is_clean(self) -> bool:
        return True


class SmallCluster:
    """Two pods that are processes, behind an API server."""

    kind, names = "jobset", ("-slice-0-0", "-slice-0-1")

    def __init__(self, server: ApiServer, address: str, python: Path) -> None:
        self.server, self.address = server, address
        self.settings = settings_here(python)

    def launcher(self) -> JobSetLauncher:
        return JobSetLauncher(Cluster("default", host=self.address), find_slice("v5p-16"), self.settings)

    def second_is_refused(self, life: Attempt) -> None:
        """One that cannot see the lock of the folder makes no second JobSet; the API server refuses it."""
        before = dict(self.server.jobsets)
        [name] = before
        manifest = build_manifest(life, find_slice("v5p-16"), self.settings, name=name)
        with pytest.raises(Conflict):
            Cluster("default", host=self.address).create(manifest)
        assert self.server.jobsets == before

    def is_clean(self) -> bool:
        return not self.server.jobsets and not self.server.pods


class SshMachines:
    """Two hosts behind SSH servers."""

    kind = "tpu_vm"

    def __init__(self, hosts: SshHosts, python: Path) -> None:
        self.hosts, self.python = hosts, python
        self.names = (hosts.names[0].partition("@")[2], hosts.names[1].partition("@")[2])

    def launcher(self) -> TpuVmLauncher:
        return TpuVmLauncher(
            Workers(
                slices=(tuple(self.hosts.names),),
                python=str(self.python),
                project=str(HOUSE.parent),
                port=free_port(),
                known_hosts=self.hosts.known_hosts,
                key=self.hosts.key,
                environment=environment_here(),
            )
        )

    def second_is_refused(self, life: Attempt) -> None:
        """One that cannot see the lock of the folder finds the hosts taken."""
        with pytest.raises(TrainingError, match=r"has a trainer already, of process \d+ on "):
            self.launcher().start(life)

    def is_clean(self) -> bool:
        return self.hosts.at_work == 0


def environment_here() -> dict[str, str]:
    """Of hosts that are processes of this machine."""
    passed_on = {name: os.environ[name] for name in ("JAX_DISABLE_MOST_OPTIMIZATIONS",) if name in os.environ}
    devices = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES_EACH}".strip()
    return {**passed_on, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(HOUSE.parent), "XLA_FLAGS": devices}


def settings_here(python: Path) -> ClusterSettings:
    """Of pods that are processes of this machine."""
    return ClusterSettings(image="here", python=str(python), stop_seconds=stop_seconds(), passed_on=environment_here())


Machines = ThisMachine | SmallCluster | SshMachines
"""Two hosts of one kind: a launcher for them, the refusal of a second owner, and whether nothing of a run is left on them."""


@contextmanager
def machines_of(kind: str, folder: Path, python: Path) -> Iterator[Machines]:
    """Of a kind of launcher, where `python` is what is called as Python is."""
    if kind == "local":
        yield ThisMachine(python)
    elif kind == "jobset":
        with api_server(folder, problems_of) as (server, address):
            yield SmallCluster(server, address, python)
    else:
        with ssh_hosts(folder, 2) as hosts:
            yield SshMachines(hosts, python)
