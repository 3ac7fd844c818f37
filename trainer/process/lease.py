"""The lease of a run's folder: one trainer at a time, and a fencing token against writes of an older trainer.

The trainer holds the file `lock` (`flock`), which ends with the process. A trainer that is frozen by SIGSTOP or a dead disk still holds
the lock. If its heartbeat does not change for `SILENT_SECONDS`, the next trainer takes the folder over by a new lock file. Each trainer
takes the next number of `token`, checks the token before every row, checkpoint and result, and ends with `TakenOver` if it has changed.

Files are replaced or deleted under `lock.writing`, with the check inside (`Lease.alone`), so that no process can take the folder over in
between. A row is appended without this lock. If a trainer is frozen between check and append, the late row goes to an unlinked file, and a
late checkpoint is either equal to the other trainer's or not committed. A store that several machines share must compare the token itself
(a precondition on the object's generation).
"""

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from phasewise.trainer.base.errors import TakenOver, TrainingError
from phasewise.trainer.base.run_folder import LOCK_NAME, RunFolder
from phasewise.trainer.base.storage import locked, read_json, try_lock, write_json
from phasewise.trainer.process.watchdog import read_heartbeat, signature

SILENT_SECONDS = 30.0
LOOK_SECONDS = 0.1
Alone = Callable[[], AbstractContextManager[None]]


class Lease:
    """The token of a trainer, whose number fences off the previous holder. The caller holds the lock. `check` reads a small file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._name = folder, uuid.uuid4().hex
        place = RunFolder(folder).token
        try:
            self.number = int(read_json(place)["number"]) + 1
        except (OSError, ValueError, KeyError, TypeError):
            self.number = 1  # the random name decides
        write_json(place, {"number": self.number, "name": self._name, "pid": os.getpid(), "host": socket.gethostname()})

    def check(self) -> None:
        """Raise `TakenOver` if a later trainer took the token, or the folder was moved."""
        place = RunFolder(self._folder).token
        try:
            found = read_json(place)
        except (OSError, ValueError) as error:
            raise TakenOver(f"{place} must name this trainer, and cannot be read: {error}. Start the run again.") from error
        if not isinstance(found, dict) or found.get("name") != self._name:
            raise TakenOver(
                f"another trainer took {self._folder} over: this trainer has token {self.number}, the folder has "
                f"{found.get('number') if isinstance(found, dict) else found}. This trainer stops writing."
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prevent a takeover of the folder within the context, for replacing or deleting files. It can't be nested."""
        self.check()  # do not create a folder that was moved away
        with locked(RunFolder(self._folder).writing_lock, wait=True):
            self.check()
            yield


@contextmanager
def only_one_trainer(folder: Path) -> Iterator[Lease]:
    """Hold the run's folder, or raise `TrainingError` if another trainer is alive, or is frozen during a write."""
    run = RunFolder(folder)
    while True:
        with open(run.trainer_lock, "a") as file:
            if not try_lock(file):
                before, since = signature(folder), time.monotonic()
                while time.monotonic() - since < SILENT_SECONDS:
                    time.sleep(LOOK_SECONDS)
                    if signature(folder) != before:
                        said = read_heartbeat(folder)
                        raise TrainingError(
                            f"another trainer is at work in {folder} (process {said.get('pid', 'unknown')}, {said.get('work', 'at work')} "
                            f"after step {said.get('step', 'unknown')}): wait for it, or stop it."
                        )
                with _nobody_writes(folder), locked(run.take_over_lock, wait=True):
                    if not _is_at(run.trainer_lock, file):  # another trainer was first
                        continue
                    fresh = run.trainer_lock.with_name(f".{LOCK_NAME}.{uuid.uuid4().hex}")
                    fresh.touch()
                    os.replace(fresh, run.trainer_lock)
                said = read_heartbeat(folder)
                print(
                    f"trainer: the trainer that holds {folder} (process {said.get('pid', 'unknown')}) has shown no sign of life for "
                    f"{SILENT_SECONDS:g} s, last seen at: {said.get('work', 'nothing')}. It is shut out, and this one goes on.",
                    file=sys.stderr,
                    flush=True,
                )
            elif _is_at(run.trainer_lock, file):  # else another trainer took over between opening and locking
                with _nobody_writes(folder):
                    lease = Lease(folder)
                yield lease
                return


@contextmanager
def _nobody_writes(folder: Path) -> Iterator[None]:
    """Wait for the end of a write, which is short, and prevent further writes."""
    since = time.monotonic()
    with open(RunFolder(folder).writing_lock, "a") as file:
        while not try_lock(file):
            if time.monotonic() - since > SILENT_SECONDS:
                said = read_heartbeat(folder)
                raise TrainingError(
                    f"the trainer that holds {folder} (process {said.get('pid', 'unknown')}) stands still in the middle of a write, for "
                    f"{SILENT_SECONDS:g} s at least: end that process, then start the run again."
                )
            time.sleep(LOOK_SECONDS)
        yield


def _is_at(place: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), place.stat())
    except FileNotFoundError:
        return False
