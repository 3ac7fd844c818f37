"""Machines that launchers start runs on: this one, a cluster behind an API server, and hosts behind an SSH server."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.training.jobset import ClusterSettings, JobSetLauncher, build_manifest
from phasewise.tasks.training.kubernetes_cluster import Cluster, Conflict
from phasewise.tasks.training.launchers import Attempt, Launcher, LocalLauncher
from phasewise.tasks.training.tpu_vm import TpuVmLauncher, Workers
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.identity import HOUSE
from phasewise.trainer.process.child_process import stop_seconds
from tests.ports import free_port
from tests.tasks.training.api_server import api_server
from tests.tasks.training.ssh_hosts import ssh_hosts


class Machines(NamedTuple):
    """Two hosts and their names in reports. `refuses_second` checks that a launcher which cannot see the folder's lock is refused."""

    kind: str
    launcher: Callable[[], Launcher]
    names: tuple[str, str]
    refuses_second: Callable[[Attempt], None]
    are_clean: Callable[[], bool]


@contextmanager
def machines_of(kind: str, folder: Path, python: Path, **variables: str) -> Iterator[Machines]:
    quick = {name: os.environ[name] for name in ("JAX_DISABLE_MOST_OPTIMIZATIONS",) if name in os.environ}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1".strip()
    plain = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(HOUSE.parent), "XLA_FLAGS": flags}
    environment = {**quick, **plain, **variables}
    if kind == "local":  # the trainer refuses a second one by its own lock: `tests/trainer/process/test_lease.py`
        yield Machines(kind, lambda: LocalLauncher(2, python=str(python)), ("process 0", "process 1"), lambda _: None, lambda: True)
    elif kind == "jobset":
        with api_server(folder) as server:
            settings = ClusterSettings(image="here", python=str(python), stop_seconds=stop_seconds(), passed_on=environment)
            cluster, slices = Cluster("default", host=server.address), find_slice("v5p-16")

            def refused_by_server(attempt: Attempt) -> None:
                [name] = before = dict(server.jobsets)
                with pytest.raises(Conflict):
                    cluster.create(build_manifest(attempt, slices, settings, name=name))
                assert server.jobsets == before

            yield Machines(
                kind, lambda: JobSetLauncher(cluster, slices, settings), ("-slice-0-0", "-slice-0-1"), refused_by_server,
                lambda: not server.jobsets and not server.pods,
            )  # fmt: skip
    else:
        with ssh_hosts(folder, 2) as hosts:

            def launcher() -> Launcher:
                workers = Workers(
                    slices=(tuple(hosts.names),), python=str(python), project=str(HOUSE.parent), port=free_port(),
                    known_hosts=hosts.known_hosts, key=hosts.key, environment=environment,
                )  # fmt: skip
                return TpuVmLauncher(workers)

            def refused_by_hosts(attempt: Attempt) -> None:
                with pytest.raises(TrainingError, match=r"has a trainer already, of process \d+ on "):
                    launcher().start(attempt)

            first, second = (name.partition("@")[2] for name in hosts.names)
            yield Machines(kind, launcher, (first, second), refused_by_hosts, lambda: hosts.at_work == 0)
