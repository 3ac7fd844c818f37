"""Named errors, the exit codes of the trainer's process, and errors of the operating system as one line each."""

import errno
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """How the trainer's process ended: the launcher decides by these numbers."""

    DONE = 0
    REFUSED = 1  # no verdict, or a damaged cache or checkpoint
    USAGE = 2
    DIVERGED = 3  # the loss or a norm is NaN, or the loss spiked beyond the recipe's limit
    STALLED = 4  # one kind of work took longer than its limit
    LOST = 5  # another process of the run is gone
    TAKEN_OVER = 6  # a later trainer has the run's folder
    NO_STORAGE = 7
    ASKS = 8  # as DIVERGED, and a person must decide
    MOVES = 9  # saved, as the phase continues on another slice
    PREEMPTED = 75  # stopped by SIGTERM, and saved (EX_TEMPFAIL)


GOES_ON = frozenset({ExitCode.STALLED, ExitCode.LOST, ExitCode.PREEMPTED})
"""After these, as after a kill, the same command resumes from the last checkpoint."""


class PhasewiseError(Exception):
    """A refusal with its reason."""

    exit_code = 1


class ConfigError(PhasewiseError):
    """The configuration or the command cannot be used as written."""

    exit_code = 2


class RecipeError(ConfigError):
    """A recipe is refused for its content, or cannot be run as requested."""

    exit_code = 1


class DataError(PhasewiseError):
    """A source, a cache or a manifest is damaged, missing or not as declared."""


class VerdictError(PhasewiseError):
    """The data or the model did not pass validation, or was not validated."""


class WaitsForPerson(VerdictError):
    """A verdict that a person may waive has no decision yet (`verdict` is its file)."""

    def __init__(self, message: str, verdict: str = "") -> None:  # unpickling gives only the message, and then sets the attribute
        super().__init__(message)
        self.verdict = verdict


class CheckpointError(PhasewiseError):
    """A checkpoint is missing, damaged, or does not fit the run."""


class EvaluationError(PhasewiseError):
    """A model gave no answer to score."""


class TrainingError(PhasewiseError):
    """The trainer process ended without a result."""


class HostMissing(PhasewiseError):
    """A host of the run did not start: all are started again."""

    exit_code = ExitCode.LOST


class TakenOver(PhasewiseError):
    """A later trainer has the run's folder: this one must not write to it."""

    exit_code = ExitCode.TAKEN_OVER


class StorageError(PhasewiseError):
    """A file could not be written or read: the disk is full, or read-only."""

    exit_code = ExitCode.NO_STORAGE


class TrainingDiverged(PhasewiseError):
    """The loss or the gradients are not finite, or the loss is above the recipe's limit."""

    exit_code = ExitCode.DIVERGED


class AsksPerson(TrainingDiverged):
    """The run diverged, and its recipe asks a person, who has not decided yet."""

    exit_code = ExitCode.ASKS


class MemoryShortage(PhasewiseError):
    """The process has less memory than the work takes."""


class DeepNesting(PhasewiseError):
    """Data is nested deeper than Python can follow."""


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
REMEDIES = {
    errno.ENOSPC: "Make room there",
    errno.EDQUOT: "Make room there, or raise the quota",
    errno.EROFS: "Make the disk writable, or choose another folder (--home, TMPDIR)",
    errno.EACCES: "Let this user read and write it",
    errno.EPERM: "Let this user read and write it",
    errno.EIO: "Check the disk (dmesg names its faults)",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.ENFILE: "Raise the limit of open files (sysctl fs.file-max)",
    errno.ENAMETOOLONG: "Choose a shorter name or folder",
}
HARD = FULL | {errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE}
"""Errors of the machine: they count wherever they are in a chain of exceptions."""
SAID = {
    errno.ENOSPC: "No space left on device|database or disk is full|ENOSPC",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EROFS: "Read-only file system|attempt to write a readonly database",
    errno.EIO: "disk I/O error|Input/output error",
}
"""How libraries with their own errors state them: SQLite, Arrow, TensorStore."""
OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|[Oo]ut of memory|malloc of size .* failed|std::bad_alloc")
AGAIN = "run the same command again: what is finished is kept."


@contextmanager
def refused_by_system(*places: str | Path | None) -> Iterator[None]:
    """Raise an error of the system, also wrapped by a library, as a `PhasewiseError` of one line. `places` are folders of written files."""
    try:
        yield
    except PhasewiseError:
        raise
    except Exception as error:
        if refusal := refusal_of(error, *places):
            raise refusal from error
        raise


def refusal_of(error: BaseException, *places: str | Path | None) -> PhasewiseError | None:
    """Return the refusal behind an exception, or None for a fault of the code."""
    if isinstance(error, PhasewiseError):
        return error
    waiting, seen = [error], set[int]()  # the exception, members of its group, and its causes
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        if before := one.__cause__ or (None if one.__suppress_context__ else one.__context__):
            waiting.append(before)
        if isinstance(one, (StorageError, MemoryShortage, DeepNesting)):
            return one
        if isinstance(one, BrokenPipeError):
            return None  # the reader of standard output has left: click ends the command
        if isinstance(one, OSError) and (one is error or one.errno in HARD):
            return storage_refusal(one, *places)
        if number := number_in(str(one)):
            return storage_refusal(OSError(number, _one_line(one)), *places)
        frames = traceback.extract_tb(one.__traceback__)
        work = f"{Path(frames[-1].filename).stem}.{frames[-1].name}" if frames else "the work"
        if isinstance(one, MemoryError) or (not isinstance(one, OSError) and OUT_OF_MEMORY.search(str(one))):
            said = f": {_one_line(one)}" if str(one) else ""
            return MemoryShortage(f"the memory does not suffice for {work}{said}. Make room, or take smaller pieces, and {AGAIN}")
        if isinstance(one, RecursionError):
            return DeepNesting(f"{work} was given data nested too deeply ({_one_line(one)}). Flatten the data, and {AGAIN}")
    return None


def storage_refusal(error: OSError, *places: str | Path | None) -> StorageError:
    """Describe a file system's error: the file, the free space if the disk is full, and the remedy."""
    from phasewise.trainer.base.storage import as_path, file_system_of  # fsspec: a command that only refuses does not need it

    known = [as_path(place) for place in (error.filename, *places) if isinstance(place, (str, Path)) and file_system_of(place) is None]
    number = error.errno or number_in(str(error))
    place = next(iter(known), None)
    remedy, reason = REMEDIES.get(number or 0, "Correct this"), _one_line(error.strerror or error)
    if number in FULL:
        if error.filename is None:
            place = min(known, key=lambda one: _disk_at(one)[1], default=None)
            if not (place and is_full(place)):
                place = next(filter(is_full, (Path.cwd(), Path(tempfile.gettempdir()))), None)
        disk = "the error names no file: standard output may be one"
        if place:
            mount = _disk_at(place)[0]
            usage = shutil.disk_usage(mount)
            while not os.path.ismount(mount) and mount != mount.parent:
                mount = mount.parent
            disk = f"{usage.free / 2**20:,.1f} of {usage.total / 2**20:,.1f} MiB are free on the disk at {mount}"
        reason = f"{os.strerror(number)}{'' if reason == os.strerror(number) else f' ({reason})'}; {disk}"
    where = f"{place}: " if place is not None and str(place) not in reason else ""
    return StorageError(f"a file could not be written or read: {where}{reason}. {remedy}, and {AGAIN}")


def print_refusal(line: str) -> None:
    """Print a line on standard error. If standard error is a file on a full disk, only the exit code reports the refusal."""
    for name in ("stdout", "stderr"):
        try:
            if name == "stderr":
                print(line, file=sys.stderr, flush=True)
            else:
                sys.stdout.flush()
        except OSError:
            setattr(sys, name, None)  # else Python writes the rest at its end, fails again, and exits with code 120


def number_in(text: str) -> int | None:
    """Return the number of the operating system's error that a library's message states."""
    return next((number for number, pattern in SAID.items() if re.search(pattern, text)), None)


def is_full(place: Path, needed_bytes: int = 2**16) -> bool:
    """Return whether the disk of a path has less room than the work needs."""
    return _disk_at(place)[1] < needed_bytes


def _disk_at(place: Path) -> tuple[Path, int]:
    """Return the nearest existing folder, and its free bytes, which are very many if the system does not say."""
    place = place.absolute()
    with suppress(OSError):
        while not place.exists() and place != place.parent:
            place = place.parent
        return place, shutil.disk_usage(place).free
    return place, 2**62


def _one_line(said: object) -> str:
    return " ".join(str(said).split())[:500].rstrip(".")
