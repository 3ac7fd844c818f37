"""Refusals by the operating system as one line each: a full disk, a missing permission, too little memory, data nested without end."""

import errno
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phasewise.trainer.base.errors import PhasewiseError, StorageError
from phasewise.trainer.base.storage import as_path, file_system_of

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
"""What a user can do about an error; about others: correct it."""
HARD = FULL | {errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE}
"""Errors of the machine, never an answer that code asks for: they count wherever they are in a chain of exceptions."""
SAID = {
    errno.ENOSPC: "No space left on device|database or disk is full|ENOSPC",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EROFS: "Read-only file system|attempt to write a readonly database",
    errno.EIO: "disk I/O error|Input/output error",
}
"""The words of libraries that raise errors of their own: SQLite, Arrow, TensorStore."""
OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|[Oo]ut of memory|malloc of size .* failed|std::bad_alloc")
AGAIN = "run the same command again: what is finished is kept."


class MemoryShortage(PhasewiseError):
    """The process has less memory than the work takes."""


class DeepNesting(PhasewiseError):
    """Data is nested deeper than Python can follow."""


@contextmanager
def refused_by_system(*places: str | Path | None) -> Iterator[None]:
    """Raise what the operating system refuses as a `PhasewiseError` of one line. The command line, every child and every flow use it.

    Args:
        places: where files are written, for errors that name no file.

    Raises:
        PhasewiseError: in place of an OSError, MemoryError or RecursionError, also one that a library has wrapped.
    """
    try:
        yield
    except PhasewiseError:
        raise
    except Exception as error:
        if refusal := refusal_of(error, *places):
            raise refusal from error
        raise


def refusal_of(error: BaseException, *places: str | Path | None) -> PhasewiseError | None:
    """The refusal that an exception is, or was raised for; None for any other: that is a fault of the code."""
    if isinstance(error, PhasewiseError):
        return error
    for depth, one in enumerate(_chain(error)):
        if isinstance(one, (StorageError, MemoryShortage, DeepNesting)):
            return one
        if isinstance(one, BrokenPipeError):
            return None  # the reader of standard output has left: click ends the command
        if isinstance(one, OSError) and (depth == 0 or one.errno in HARD):
            return storage_refusal(one, *places)
        if number := number_in(str(one)):
            return storage_refusal(OSError(number, _one_line(one)), *places)
        if isinstance(one, MemoryError) or (not isinstance(one, OSError) and OUT_OF_MEMORY.search(str(one))):
            said = f": {_one_line(one)}" if str(one) else ""
            return MemoryShortage(f"the memory does not suffice for {_at_work(one)}{said}. Make room, or take smaller pieces, and {AGAIN}")
        if isinstance(one, RecursionError):
            return DeepNesting(f"{_at_work(one)} was given data nested too deeply ({_one_line(one)}). Flatten the data, and {AGAIN}")
    return None


def storage_refusal(error: OSError, *places: str | Path | None) -> StorageError:
    """What a file system said: the file, its disk and the free space where the disk is full, and what to do."""
    known = [as_path(place) for place in (error.filename, *places) if isinstance(place, (str, Path)) and file_system_of(place) is None]
    number = error.errno or number_in(str(error))
    place = min(known, key=_free_bytes) if error.filename is None and known and number in FULL else next(iter(known), None)
    if number in FULL:
        remedy, said = REMEDIES[number], _one_line(error.strerror or error)
        if error.filename is None and not (place and is_full(place)):
            place = next(filter(is_full, (Path.cwd(), Path(tempfile.gettempdir()))), None)
        disk = disk_in_words(place) if place else "the error names no file: standard output may be one"
        reason = f"{os.strerror(number)}{'' if said == os.strerror(number) else f' ({said})'}; {disk}"
    else:
        remedy = REMEDIES.get(number or 0, "Correct this")
        reason = _one_line(error.strerror or error)
    where = f"{place}: " if place is not None and str(place) not in reason else ""
    return StorageError(f"a file could not be written or read: {where}{reason}. {remedy}, and {AGAIN}")


def print_refusal(line: str) -> None:
    """Print a line on standard error. If that is a file on a full disk, the exit code alone says it."""
    for name in ("stdout", "stderr"):
        try:
            if name == "stderr":
                print(line, file=sys.stderr, flush=True)
            else:
                sys.stdout.flush()
        except OSError:
            setattr(sys, name, None)  # else Python writes what is left at its end, fails again, and ends with code 120


def number_in(text: str) -> int | None:
    """The number of the operating system's error that a library's message speaks of."""
    return next((number for number, pattern in SAID.items() if re.search(pattern, text)), None)


def disk_in_words(place: Path) -> str:
    """`0.0 of 400.0 MiB are free on the disk at /data`."""
    there = _existing(place)
    usage = shutil.disk_usage(there)
    while not os.path.ismount(there) and there != there.parent:
        there = there.parent
    return f"{usage.free / 2**20:,.1f} of {usage.total / 2**20:,.1f} MiB are free on the disk at {there}"


def is_full(place: Path, needed_bytes: int = 2**16) -> bool:
    """Whether the disk of a place takes nothing more, or less than the work needs."""
    return _free_bytes(place) < needed_bytes


def _free_bytes(place: Path) -> int:
    with suppress(OSError):
        return shutil.disk_usage(_existing(place)).free
    return 2**62


def _existing(place: Path) -> Path:
    place = place.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, those in its group, and those that it was raised for; each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        before = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        waiting += [*members, *([before] if before else [])]


def _one_line(said: object) -> str:
    return " ".join(str(said).split())[:500].rstrip(".")


def _at_work(error: BaseException) -> str:
    """The function that raised, without the calls that repeat."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).stem}.{frames[-1].name}" if frames else "the work"
