"""What all launchers share: they start the program of a run on every host, see it end, and stop it.

The progress of a run and its heartbeat are in the files of the run's folder; `tasks.training.attempts` reads them for all launchers.
"""

import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasewise.trainer.base.errors import ExitCode
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process import child_process
from phasewise.trainer.process.signals import stop_seconds

if TYPE_CHECKING:
    from phasewise.tasks.training.hosts import RemoteFolder

GRACE_SECONDS = 5.0
"""How long the others have to say why after one process ended early: they cannot continue."""
DONE_SECONDS = 60.0
"""How long the others have to end after one that is done. They wait for one another at the end, so they end nearly together."""
PASSED_THROUGH = (
    "JAX_", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_CPP_", "PHASEWISE_STALL", "PHASEWISE_HEARTBEAT", "PHASEWISE_JOIN", "PHASEWISE_PUBLISH",
)  # fmt: skip
OF_ONE_PLACE = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_PLATFORMS")
"""Variables that a launcher sets itself, or that are of this machine: it may have no accelerator."""
ORDER = {
    ExitCode.MOVES: 1, ExitCode.STALLED: 2, ExitCode.PREEMPTED: 4, -signal.SIGTERM: 5, ExitCode.LOST: 6, -signal.SIGABRT: 7,
}  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run, from its start on all hosts to its end.

    Attributes:
        run_file: `run.json` in the run's folder, which all hosts see.
        name: no two attempts have the same.
        owner: the process that started it, for people.
    """

    run: RunConfig
    run_file: Path
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    owner: str = field(default_factory=lambda: f"process {os.getpid()} on {socket.gethostname()}")

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.run_file.parent


def env_passthrough(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the launcher's environment that every host of its runs has, too."""
    return {name: value for name, value in environment.items() if name.startswith(PASSED_THROUGH) and name not in OF_ONE_PLACE}


def decisive(codes: Iterable[int]) -> int:
    """Return the exit code of a run whose hosts ended like this: the reason, not what followed from it."""
    return min((code for code in codes if code), key=order_of, default=ExitCode.DONE)


def order_of(code: int) -> int:
    """Return the order of an exit code: of two codes of one run the smaller order is nearer to the reason.

    A refusal, divergence or full disk of one host is not cured by starting again, so it comes first. Then comes the host that saved
    everything for the next slice. A stall or a signal is why others were lost. jax ends a process that misses another one by SIGABRT.
    """
    return ORDER.get(code, 3 if code < 0 else 0)


def ending(code: int) -> str:
    """Return how a process ended, for people."""
    with suppress(ValueError):
        return f"ended {ExitCode(code).name.lower().replace('_', ' ')}"
    return child_process.ending(code)


def size_of(log: Path) -> int:
    """Return the size of a log in bytes; 0 if there is none."""
    return log.stat().st_size if log.exists() else 0


def last_words(log: Path, log_before: int) -> str | None:
    """Return the last line that the trainer itself wrote, after the first `log_before` bytes of its log."""
    said = log.read_bytes()[log_before:].decode(errors="replace") if log.exists() else ""
    lines = [line for line in said.splitlines() if line.startswith("trainer: ")]
    return lines[-1].removeprefix("trainer: ") if lines else None


def write_reason(folder: Path, lines: Iterable[str]) -> None:
    """Append to the first host's log which host was the reason, and why."""
    with open(RunFolder(folder).log(), "a", encoding="utf-8") as log:
        log.writelines(f"trainer: {line}\n" for line in lines)


class ProcessGroup:
    """Processes on all hosts that are one program: if one ends early, all end, and the one that was the reason is named.

    Args:
        done_seconds: how long the others have to end after one that is done.
        on_close: called when all are closed.

    Attributes:
        processes: each has a `name`, the size of its log before it (`log_before`), `code()`, `wait(seconds)`, `stop()`, `kill()`, which
            returns when it and what it started have ended, and `close()`.
        remote: the run's folder, if the hosts do not see it, and have folders of their own.
    """

    def __init__(
        self,
        folder: Path,
        processes: Sequence[Any] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        done_seconds: float = DONE_SECONDS,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder, self._clock, self._done_seconds, self._on_close = folder, clock, done_seconds, on_close
        self.processes: list[Any] = [*processes]
        self.remote: RemoteFolder | None = None
        self._cut: set[int] = set()
        self._first_ended: float | None = None
        self._has_reported = False

    def look(self) -> int | None:
        """Return the exit code of the run, or minus a signal (`trainer.base.errors`); None while any process is at work."""
        codes: list[int | None] = [process.code() for process in self.processes]
        ended = [code for code in codes if code is not None]
        if len(ended) < len(codes):
            if ended:
                grace = stop_seconds() if decisive(ended) == ExitCode.PREEMPTED else GRACE_SECONDS
                if all(code in (ExitCode.DONE, ExitCode.MOVES) for code in ended):
                    grace = self._done_seconds
                self._first_ended = self._clock() if self._first_ended is None else self._first_ended
                if self._clock() - self._first_ended > grace:
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
                words = last_words(RunFolder(self._folder).log(number), self.processes[number].log_before)
                lines.append(f"{names[number]} {ending(code)}{f': {words}' if words else ''}")
            write_reason(self._folder, lines)
        return code

    def wait(self, seconds: float) -> None:
        """Return after so long, or before if a process ended."""
        if running := next((process for process in self.processes if process.code() is None), None):
            running.wait(seconds)

    def stop(self) -> None:
        """Ask all to save and to end. Return at once."""
        for process in self.processes:
            process.stop()

    def kill(self) -> None:
        """End all now, and return when they have ended."""
        for process in self.processes:
            process.kill()

    def close(self) -> None:
        """Release resources after all have ended. Their logs are in the run's folder then."""
        for process in self.processes:
            process.close()
        self._on_close()


class Launcher:
    """Where and how the processes of a run are started; `kind` is `local`, `jobset` or `tpu_vm`."""

    kind: str

    def start(self, attempt: Attempt) -> ProcessGroup:
        """Start the program on every host.

        Raises:
            ConfigError: it cannot be started with these settings.
            TrainingError: other programs have the machines, or these do not answer.
        """
        raise NotImplementedError

    def clear(self, folder: Path) -> None:
        """End the hosts of the run of this folder that outlived their launcher; most end with it."""
