"""What a launcher is: it starts the program of a run on every host, sees it end, and stops it. Nothing else differs between launchers.

How far a run has come, and whether it is alive, is in the files of the run's folder; `tasks.training.follow` reads them for all launchers.
"""

import os
import signal
import socket
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from phasewise.trainer.base.exit_codes import ExitCode
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process import child_process


@dataclass(frozen=True)
class Life:
    """One life of a run, from its start on all hosts to its end.

    Attributes:
        run_file: `run.json` in the run's folder, which all hosts see.
        name: no two lives have the same.
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


class Attempt(Protocol):
    """The program of a run on all its hosts, at work."""

    @property
    def send_seconds(self) -> float:
        """How long they may take when they were asked to stop and have saved: 0 where nothing has to be sent."""
        ...

    def look(self) -> int | None:
        """How it ended: an exit code of the trainer (`trainer.base.exit_codes`), or minus a signal. None while any host is at work."""
        ...

    def wait(self, seconds: float) -> None:
        """Return after so long, or before, where something ended."""
        ...

    def stop(self) -> None:
        """Ask all hosts to save and to end. Returns at once."""
        ...

    def kill(self) -> None:
        """End all hosts now, and return when they have ended."""
        ...

    def close(self) -> None:
        """Give back what it holds, with everything ended. What every host said is in the run's folder then."""
        ...


class Launcher(Protocol):
    """Where and how the processes of a run are started."""

    @property
    def kind(self) -> str:
        """Its name: `local`, `jobset` or `tpu_vm`."""
        ...

    def start(self, life: Life) -> Attempt:
        """Start the program on every host.

        Raises:
            ConfigError: it cannot be started as it was asked for.
            TrainingError: the machines are somebody else's, or do not answer.
        """
        ...

    def clear(self, folder: Path) -> None:
        """End what the machines still have of the run of this folder, whose launcher is gone, and whose hosts were shut out."""
        ...

    def owner(self, folder: Path) -> str | None:
        """Who else is at work on the run of this folder, by what the machines say; None where nobody is."""
        ...


def log_of(folder: Path, host: int) -> Path:
    """What a host said. The first one's log is `trainer.log`, where the last words of all others are repeated."""
    return RunFolder(folder).log(host)


def decisive(codes: Iterable[int]) -> int:
    """How a run ended whose hosts ended like this: the reason before what followed from it.

    One host's refusal, divergence or full disk is not cured by starting again. Where one says that all is saved for the next slice, it is.
    A stall or a signal is why others were lost. jax ends a process that misses another one by SIGABRT.
    """
    ended = list(codes)
    return min((code for code in ended if code), key=rank, default=ExitCode.DONE)


def rank(code: int) -> int:
    """Of two endings of one run the one with the smaller number is nearer to the reason."""
    known = {
        ExitCode.MOVES: 1, ExitCode.STALLED: 2, ExitCode.PREEMPTED: 4, -signal.SIGTERM: 5, ExitCode.LOST: 6, -signal.SIGABRT: 7,
    }  # fmt: skip
    return known.get(code, 3 if code < 0 else 0)


def ending(code: int) -> str:
    """How a process ended, for people."""
    with suppress(ValueError):
        return f"ended {ExitCode(code).name.lower().replace('_', ' ')}"
    return child_process.ending(code)


def last_words(log: Path, log_before: int) -> str | None:
    """The last line that is the trainer's own, after the first `log_before` bytes of its log."""
    said = log.read_bytes()[log_before:].decode(errors="replace") if log.exists() else ""
    lines = [line for line in said.splitlines() if line.startswith("trainer: ")]
    return lines[-1].removeprefix("trainer: ") if lines else None
