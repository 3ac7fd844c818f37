"""The launcher for this machine: the trainer as one process, or as several that are joined over loopback.

jax chooses where it computes if there is a TPU or a GPU; without one it computes on the CPU. With several GPUs each process has its own.
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
from phasewise.tasks.training.launchers import Attempt, Launcher, ProcessGroup, size_of
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.process.child_process import python_command
from phasewise.trainer.process.environment import HOSTS_VARIABLE, LAUNCH_VARIABLE, check_nothing_left_over, has_accelerator
from phasewise.trainer.process.rendezvous import forget_meetings

VIRTUAL_DEVICES = "--xla_force_host_platform_device_count"
GPU_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalLauncher(Launcher):
    """Processes of this machine. They end with this process, which holds the other end of their inputs.

    Args:
        processes: how many; None is one for each GPU that the run's mesh has a place for, and one if there is none.
        root: where devices are looked for.
        python: the Python that trains; None is that of this process.
    """

    kind = "local"

    def __init__(self, processes: int | None = None, *, root: Path = Path("/"), python: str | None = None) -> None:
        self._processes, self._root, self._python = processes, root, python

    def start(self, attempt: Attempt) -> ProcessGroup:
        """See `Launcher`."""
        check_nothing_left_over(os.environ)
        environments = self.environments(attempt, os.environ)
        forget_meetings(attempt.folder)
        command = python_command("phasewise.trainer", str(attempt.run_file), "--with-parent", python=self._python)
        group = ProcessGroup(attempt.folder)
        try:
            for number, environment in enumerate(environments):
                group.processes.append(_LocalProcess(command, environment, RunFolder(attempt.folder).log(number), number))
        except BaseException:
            group.close()
            raise
        return group

    def environments(self, attempt: Attempt, given: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the environment of each process."""
        devices = attempt.run.execution.mesh.devices
        found = {"TF_CPP_MIN_LOG_LEVEL": "3", **given}
        if not has_accelerator(found, self._root):
            found = {"JAX_PLATFORMS": "cpu", **found}
        gpus: list[str] = []
        if re.search(r"cuda|gpu", found.get("JAX_PLATFORMS", "cuda")):
            gpus = [str(number) for number, _ in enumerate(self._root.glob("dev/nvidia[0-9]*"))]
            if gpus and not any(find_spec(name) for name in GPU_PLUGINS):
                say("there is a GPU, and jax has no plugin for it: this trains on the CPU (pip install 'jax[cuda13]')")
                gpus = []
            elif (chosen := found.get(VISIBLE)) is not None:
                gpus = [name for name in chosen.split(",") if name]
        count = self._processes or (devices if gpus else 1)
        if devices % count:
            raise ConfigError(
                f"the processes of a run have equally many devices, found {devices} devices in execution.mesh for {count} processes: take "
                "a number that divides the devices (PHASEWISE_PROCESSES)."
            )
        each = devices // count
        if gpus and devices > len(gpus):
            raise ConfigError(
                f"execution.mesh needs {devices} devices, found {len(gpus)} GPUs ({', '.join(gpus)}): take a smaller slice, or another "
                "machine."
            )
        flags = found.get("XLA_FLAGS", "")
        has_own_devices = VIRTUAL_DEVICES in flags or "JAX_NUM_CPU_DEVICES" in found
        if not gpus and devices > 1 and found.get("JAX_PLATFORMS") == "cpu" and not has_own_devices:
            found["XLA_FLAGS"] = f"{flags} {VIRTUAL_DEVICES}={each}".strip()
        own = [found | ({VISIBLE: ",".join(gpus[number * each : (number + 1) * each])} if gpus else {}) for number in range(count)]
        if count == 1:
            return own
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        names = ",".join(f"process {number}" for number in range(count))
        joined = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count), LAUNCH_VARIABLE: attempt.name, HOSTS_VARIABLE: names}
        return [environment | joined | {"JAX_PROCESS_ID": str(number)} for number, environment in enumerate(own)]


class _LocalProcess:
    """One trainer, in its own process group."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, number: int) -> None:
        self.name, self.log_before = f"process {number}", size_of(log)
        with open(log, "ab") as said:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=environment, process_group=0)
        self.code = self._process.poll
        self.stop = self._process.terminate
        """SIGTERM; its standard input stays open, because the end of that would end it at once."""

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        if self._process.stdin:
            self._process.stdin.close()
