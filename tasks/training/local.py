"""The launcher for this machine: the trainer as one process, or as several that are joined over loopback.

Where jax computes is left to jax if there is a TPU or a GPU, and to the CPU if there is none. With several GPUs each process has its own.
"""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from phasewise.tasks.progress import say
from phasewise.tasks.training.group import Group
from phasewise.tasks.training.protocol import Life, log_of
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.process.child_process import python_command
from phasewise.trainer.process.platform import has_accelerator
from phasewise.trainer.process.roll_call import forget_roll_calls
from phasewise.trainer.process.surroundings import HOSTS_VARIABLE, LAUNCH_VARIABLE, check_nothing_left_over

VIRTUAL_DEVICES = "--xla_force_host_platform_device_count"
GPU_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalLauncher:
    """Processes of this machine. They end with this process, which holds the other end of their inputs.

    Args:
        processes: how many; None is one for each GPU that the run's mesh has a place for, and one where there is none.
        root: where devices are looked for.
        python: what trains; None is the Python of this process.
    """

    kind = "local"

    def __init__(self, processes: int | None = None, *, root: Path = Path("/"), python: str | None = None) -> None:
        self._processes, self._root, self._python = processes, root, python

    def clear(self, folder: Path) -> None:
        """Nothing: processes end with their launcher."""

    def owner(self, folder: Path) -> str | None:
        """Nobody that the lock of the folder does not name."""
        return None

    def start(self, life: Life) -> Group:
        """See `Launcher`."""
        check_nothing_left_over(os.environ)
        environments = self.environments(life, os.environ)
        forget_roll_calls(life.folder)
        command = python_command("phasewise.trainer", str(life.run_file), "--with-parent", python=self._python)
        group = Group(life.folder)
        try:
            for number, environment in enumerate(environments):
                group.add(LocalProcess(command, environment, log_of(life.folder, number), number))
        except BaseException:
            group.close()
            raise
        return group

    def environments(self, life: Life, given: Mapping[str, str]) -> list[dict[str, str]]:
        """Of each process.

        Raises:
            ConfigError: the mesh does not fit the GPUs or the processes.
        """
        devices = life.run.execution.mesh.devices
        found = {"TF_CPP_MIN_LOG_LEVEL": "3", **given}
        if not has_accelerator(found, self._root):
            found = {"JAX_PLATFORMS": "cpu", **found}
        gpus = self._gpus(found)
        count = self._processes or (devices if gpus else 1)
        if devices % count:
            raise ConfigError(
                f"the processes of a run have equally many devices, found {devices} devices in execution.mesh for {count} processes: take "
                "a number that divides the devices (PHASEWISE_PROCESSES)."
            )
        own = self._on_gpus(found, gpus, devices, count) if gpus else _on_cpu(found, devices, count)
        if count == 1:
            return own
        address = f"127.0.0.1:{free_port()}"
        names = ",".join(f"process {number}" for number in range(count))
        return [
            environment
            | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(number)}
            | {LAUNCH_VARIABLE: life.name, HOSTS_VARIABLE: names}
            for number, environment in enumerate(own)
        ]

    def _gpus(self, environment: Mapping[str, str]) -> list[str]:
        """The GPUs that processes may use, as `CUDA_VISIBLE_DEVICES` names them; none where jax was told of another platform."""
        if not re.search(r"cuda|gpu", environment.get("JAX_PLATFORMS", "cuda")):
            return []
        there = sorted(int(path.name.removeprefix("nvidia")) for path in self._root.glob("dev/nvidia[0-9]*"))
        if there and not any(find_spec(name) for name in GPU_PLUGINS):
            say("there is a GPU, and jax has no plugin for it: this trains on the CPU (pip install 'jax[cuda13]')")
            return []
        chosen = environment.get(VISIBLE)
        return [str(number) for number in range(len(there))] if chosen is None else [name for name in chosen.split(",") if name]

    def _on_gpus(self, environment: Mapping[str, str], gpus: list[str], devices: int, count: int) -> list[dict[str, str]]:
        if devices > len(gpus):
            raise ConfigError(
                f"execution.mesh needs {devices} devices, found {len(gpus)} GPUs ({', '.join(gpus)}): take a smaller slice, or another "
                "machine."
            )
        each = devices // count
        return [{**environment, VISIBLE: ",".join(gpus[number * each : (number + 1) * each])} for number in range(count)]


class LocalProcess:
    """One trainer, in a process group of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, number: int) -> None:
        self.name = f"process {number}"
        self.log_before = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as said:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=environment, process_group=0)

    def code(self) -> int | None:
        """See `Member`."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        """See `Member`."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def stop(self) -> None:
        """Its standard input stays open: the end of that would end it at once."""
        self._process.terminate()

    def kill(self) -> None:
        """See `Member`."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """See `Member`."""
        if self._process.poll() is None:
            self.kill()
        if self._process.stdin:
            self._process.stdin.close()


def _on_cpu(environment: Mapping[str, str], devices: int, count: int) -> list[dict[str, str]]:
    """Virtual devices, unless the environment says how many there are, or jax decides."""
    flags = environment.get("XLA_FLAGS", "")
    if (
        devices > 1
        and environment.get("JAX_PLATFORMS") == "cpu"
        and VIRTUAL_DEVICES not in flags
        and "JAX_NUM_CPU_DEVICES" not in environment
    ):
        environment = {**environment, "XLA_FLAGS": f"{flags} {VIRTUAL_DEVICES}={devices // count}".strip()}
    return [dict(environment) for _ in range(count)]


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
