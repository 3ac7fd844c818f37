"""One trainer at a time in a run's folder, and a token that keeps an older one from writing there.

Who trains holds the file `lock` (`flock`), which goes with the process. A trainer that only stands still, stopped by SIGSTOP or caught in a
dead disk, still holds it: when its heartbeat does not change for `SILENT_SECONDS`, the next one takes the folder over, by a new lock file.
Each takes the next number of `token`. Before every row, checkpoint and result the trainer looks whether its number is still there, and
ends with `TakenOver` where it is not.

What replaces or deletes files is done with `lock.writing` held, and with the look inside it (`Fence.alone`): nobody takes the folder over
between the two. Who would is refused where a trainer stands still just there. Between the look and the appending of a row lies no lock.
On one machine what a trainer that is stopped just there still writes is harmless: its row goes to a file that has no name any more, and its
checkpoint is one that the other has, or is not committed. A store that several machines share must compare the number itself, when it takes
the file (a precondition on the object's generation).
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
from phasewise.trainer.base.file_lock import locked, try_lock
from phasewise.trainer.base.run_folder import LOCK_NAME, RunFolder
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.process.heartbeat import read_heartbeat, signature

SILENT_SECONDS = 30.0
LOOK_SECONDS = 0.1


Alone = Callable[[], AbstractContextManager[None]]


class Fence:
    """The number of a trainer. `check` is cheap: it reads one small file."""

    def __init__(self, folder: Path, number: int, name: str) -> None:
        self.number = number
        self._folder, self._name = folder, name

    @classmethod
    def take(cls, folder: Path) -> "Fence":
        """The next number; whoever had the one before is fenced off from here on. Call it with the lock held."""
        name = uuid.uuid4().hex
        number = _number_in(folder) + 1
        write_json(RunFolder(folder).token, {"number": number, "name": name, "pid": os.getpid(), "host": socket.gethostname()})
        return cls(folder, number, name)

    def check(self) -> None:
        """Go on only if nobody came later.

        Raises:
            TakenOver: somebody did, or the folder is not where it was.
        """
        try:
            found = read_json(RunFolder(self._folder).token)
        except (OSError, ValueError) as error:
            raise TakenOver(
                f"{RunFolder(self._folder).token} must name this trainer, and cannot be read: {error}. Start the run again."
            ) from error
        if not isinstance(found, dict) or found.get("name") != self._name:
            raise TakenOver(
                f"another trainer took {self._folder} over: this one has token {self.number}, the folder has "
                f"{found.get('number') if isinstance(found, dict) else found}. Nothing more is written here; the other one goes on."
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it this is the trainer of the folder, however long it takes: what is replaced or deleted is its own. Not within itself.

        Raises:
            TakenOver: as `check`.
        """
        self.check()  # a folder that was moved away is not made again
        with locked(RunFolder(self._folder).writing_lock, wait=True):
            self.check()
            yield


def no_check() -> None:
    """The check of who writes nothing that another could."""


@contextmanager
def only_one_trainer(folder: Path) -> Iterator[Fence]:
    """Hold the run's folder. The lock goes with the process, however it ends.

    Raises:
        TrainingError: another trainer holds it and is alive, or stands still in the middle of a write.
    """
    with _locked(folder, _say):
        with _nobody_writes(folder):
            fence = Fence.take(folder)
        yield fence


@contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    place = RunFolder(folder).trainer_lock
    while True:
        with open(place, "a") as file:
            if try_lock(file):
                if _is_at(place, file):
                    yield
                    return
                continue  # somebody took it over between opening and locking
            _wait_for_silence(folder)
            with _nobody_writes(folder):
                _replace(place, file, say)


def _wait_for_silence(folder: Path) -> None:
    """Until the holder has shown no sign of life for long enough, by the clock of this process.

    Raises:
        TrainingError: it shows one.
    """
    before, since = signature(folder), time.monotonic()
    while time.monotonic() - since < SILENT_SECONDS:
        time.sleep(LOOK_SECONDS)
        if signature(folder) != before:
            said = read_heartbeat(folder)
            raise TrainingError(
                f"another trainer is at work in {folder} (process {said.get('pid', 'unknown')}, {said.get('work', 'at work')} after step "
                f"{said.get('step', 'unknown')}): wait for it, or stop it."
            )


@contextmanager
def _nobody_writes(folder: Path) -> Iterator[None]:
    """Between the writes of the trainer that has the folder; they are short.

    Raises:
        TrainingError: it stands still in one.
    """
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


def _replace(place: Path, held: IO[str], say: Callable[[str], None]) -> None:
    """Put a new lock file in the place of the one that a silent process holds; one at a time, and only if it is still that one."""
    with locked(RunFolder(place.parent).take_over_lock, wait=True):
        if not _is_at(place, held):
            return
        fresh = place.with_name(f".{LOCK_NAME}.{uuid.uuid4().hex}")
        fresh.touch()
        os.replace(fresh, place)
    said = read_heartbeat(place.parent)
    say(
        f"the trainer that holds {place.parent} (process {said.get('pid', 'unknown')}) has shown no sign of life for {SILENT_SECONDS:g} s, "
        f"last seen at: {said.get('work', 'nothing')}. It is shut out, and this one goes on."
    )


def _is_at(place: Path, file: IO[str]) -> bool:
    """Whether the open file is the one of that name now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), place.stat())
    except FileNotFoundError:
        return False


def _number_in(folder: Path) -> int:
    """The last number that was taken; one that does not read counts as none, since names decide."""
    try:
        return int(read_json(RunFolder(folder).token)["number"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _say(message: str) -> None:
    print(f"trainer: {message}", file=sys.stderr, flush=True)
