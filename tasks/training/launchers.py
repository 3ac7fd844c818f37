"""Launchers: they start the program of a run on every host, see its end, and stop it. The local launcher is here.

Progress and heartbeat of a run are in the files of the run's folder, and `tasks.training.attempts` reads them for all launchers.
"""

import os
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError, ExitCode
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process import child_process
from phasewise.trainer.process.accelerator import has_accelerator
from phasewise.trainer.process.child_process import python_command, stop_seconds
from phasewise.trainer.process.environment import HOSTS_VARIABLE, LAUNCH_VARIABLE, check_nothing_left_over
from phasewise.trainer.process.rendezvous import forget_meetings

VIRTUAL_DEVICES = "--xla_force_host_platform_device_count"
GPU_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
VISIBLE = "CUDA_VISIBLE_DEVICES"
GRACE_SECONDS = 5.0  # after the early end of one process, the others can't continue and have this time to write the reason
DONE_SECONDS = 60.0  # the time between the first and the last process that is done. They meet at a barrier before their end
PASSED_THROUGH = (
    "JAX_", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_CPP_", "PHASEWISE_STALL", "PHASEWISE_HEARTBEAT", "PHASEWISE_JOIN", "PHASEWISE_PUBLISH",
)  # fmt: skip
OF_ONE_PLACE = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_PLATFORMS")
"""Variables that a launcher sets, or that describe this machine, which may lack an accelerator."""
ORDER = {
    ExitCode.MOVES: 1, ExitCode.STALLED: 2, ExitCode.PREEMPTED: 4, -signal.SIGTERM: 5, ExitCode.LOST: 6, -signal.SIGABRT: 7,
}  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run, with a unique name. `owner` is the process that started it, for people."""

    run: RunConfig
    run_file: Path
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    owner: str = field(default_factory=lambda: f"process {os.getpid()} on {socket.gethostname()}")

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.run_file.parent


def env_passthrough(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the launcher's environment that its hosts inherit."""
    return {name: value for name, value in environment.items() if name.startswith(PASSED_THROUGH) and name not in OF_ONE_PLACE}


def decisive(codes: Iterable[int]) -> int:
    """Return the exit code of a run from the exit codes of its hosts: the code of the cause, not of its consequences."""
    return min((code for code in codes if code), key=order_of, default=ExitCode.DONE)


def order_of(code: int) -> int:
    """Return the rank of an exit code, the cause first: final refusals, a move, a stall, signals, then the loss of other hosts."""
    return ORDER.get(code, 3 if code < 0 else 0)


def ending(code: int) -> str:
    """Return the end of a process in words."""
    with suppress(ValueError):
        return f"ended {ExitCode(code).name.lower().replace('_', ' ')}"
    return child_process.ending(code)


def size_of(log: Path) -> int:
    """Return the size of a log in bytes, or 0 if it is missing."""
    return log.stat().st_size if log.exists() else 0


def last_words(log: Path, log_before: int) -> str | None:
    """Return the last line of the trainer itself in its log, after the first `log_before` bytes."""
    said = log.read_bytes()[log_before:].decode(errors="replace") if log.exists() else ""
    lines = [line for line in said.splitlines() if line.startswith("trainer: ")]
    return lines[-1].removeprefix("trainer: ") if lines else None


def write_reason(folder: Path, lines: Iterable[str]) -> None:
    """Append the reason of the end to the first host's log."""
    with open(RunFolder(folder).log(), "a", encoding="utf-8") as log:
        log.writelines(f"trainer: {line}\n" for line in lines)


@dataclass
class ProcessGroup:
    """Processes on all hosts that are one program: if one ends early, all end, and the log names the cause.

    Each of `processes` has a `name`, the size of its log at its start (`log_before`), `code()`, `wait(seconds)`, `stop()`, `kill()`, which
    returns after the end of the process and its children, and `close()`.
    """

    folder: Path
    processes: list[Any] = field(default_factory=list[Any])
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    done_seconds: float = field(default=DONE_SECONDS, kw_only=True)
    on_close: Callable[[], None] = field(default=lambda: None, kw_only=True)
    remote: Any = None  # a `tasks.training.hosts.RemoteFolder`, if the hosts have no shared file system
    _cut: set[int] = field(default_factory=set[int])
    _first_ended: float | None = None
    _has_reported: bool = False

    def look(self) -> int | None:
        """Return the exit code of the run, or minus a signal (`trainer.base.errors`), or None while a process runs."""
        codes: list[int | None] = [process.code() for process in self.processes]
        ended = [code for code in codes if code is not None]
        if len(ended) < len(codes):
            if ended:
                grace = stop_seconds() if decisive(ended) == ExitCode.PREEMPTED else GRACE_SECONDS
                if all(code in (ExitCode.DONE, ExitCode.MOVES) for code in ended):
                    grace = self.done_seconds
                self._first_ended = self.clock() if self._first_ended is None else self._first_ended
                if self.clock() - self._first_ended > grace:
                    self._cut |= {number for number, code in enumerate(codes) if code is None}
                    for number in self._cut:
                        self.processes[number].kill()
            return None
        own = {number: code for number, code in enumerate(ended) if number not in self._cut}
        code = decisive(own.values())
        if not code and self._cut:
            code = ExitCode.LOST
        if len(codes) > 1 and not self._has_reported:
            self._has_reported = True
            names = [f"host {number} ({process.name})" for number, process in enumerate(self.processes)]
            lines = [f"{names[number]} did not end with the others" for number in sorted(self._cut)] if code == ExitCode.LOST else []
            for number in [number for number, one in own.items() if one == code and code][:1]:
                words = last_words(RunFolder(self.folder).log(number), self.processes[number].log_before)
                lines.append(f"{names[number]} {ending(code)}{f': {words}' if words else ''}")
            write_reason(self.folder, lines)
        return code

    def wait(self, seconds: float) -> None:
        """Wait until the time is over or a process ends."""
        if running := next((process for process in self.processes if process.code() is None), None):
            running.wait(seconds)

    def stop(self) -> None:
        """Ask all processes to save and to end, without waiting."""
        for process in self.processes:
            process.stop()

    def kill(self) -> None:
        """Kill all processes, and wait for their end."""
        for process in self.processes:
            process.kill()

    def close(self) -> None:
        """Release resources after the end of all processes. Their logs are then in the run's folder."""
        for process in self.processes:
            process.close()
        self.on_close()


class Launcher:
    """A way to start the processes of a run. `kind` is `local`, `jobset` or `tpu_vm`."""

    kind: str

    def start(self, attempt: Attempt) -> ProcessGroup:
        """Start the program on every host, or raise a `PhasewiseError`."""
        raise NotImplementedError

    def clear(self, folder: Path) -> None:
        """End the hosts of the run in this folder that outlived their launcher."""


@dataclass(eq=False)
class LocalLauncher(Launcher):
    """One process on this machine, or several that are joined over loopback. They end with this process, which holds their inputs."""

    kind = "local"

    processes: int | None = None  # None is one per GPU of the run's mesh, or one without GPUs
    root: Path = field(default=Path("/"), kw_only=True)  # the file system for finding devices
    python: str | None = field(default=None, kw_only=True)  # the Python that trains

    def start(self, attempt: Attempt) -> ProcessGroup:
        """See `Launcher`."""
        check_nothing_left_over(os.environ)
        environments = self.environments(attempt, os.environ)
        forget_meetings(attempt.folder)
        command = python_command("phasewise.trainer", str(attempt.run_file), "--with-parent", python=self.python)
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
        if not has_accelerator(found, self.root):
            found = {"JAX_PLATFORMS": "cpu", **found}
        gpus: list[str] = []
        if re.search(r"cuda|gpu", found.get("JAX_PLATFORMS", "cuda")):
            gpus = [str(number) for number, _ in enumerate(self.root.glob("dev/nvidia[0-9]*"))]
            if gpus and not any(find_spec(name) for name in GPU_PLUGINS):
                say("there is a GPU, and jax has no plugin for it: this trains on the CPU (pip install 'jax[cuda13]')")
                gpus = []
            elif (chosen := found.get(VISIBLE)) is not None:
                gpus = [name for name in chosen.split(",") if name]
        count = self.processes or (devices if gpus else 1)
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
    """A trainer in its own process group."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, number: int) -> None:
        self.name, self.log_before = f"process {number}", size_of(log)
        with open(log, "ab") as said:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=environment, process_group=0)
        self.code = self._process.poll
        self.stop = self._process.terminate  # send SIGTERM. Closing the standard input would end the process at once

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
