"""Watchdog and heartbeat of the trainer, for finding a stalled run.

The watchdog ends a process without progress. Its limits are fields of `execution` that don't change a run's identity.
`PHASEWISE_STALL_SECONDS` replaces some limits: `step=60,save=900`, or `off` for no limit.

The heartbeat is a small file that names the current work each second. It has its own thread, so that a hanging disk can't block the
watchdog. A reader checks by its own clock that the file changes. The time in the file is for people.

The lease of a run's folder: one trainer at a time, and a fencing token against writes of an older trainer.

The trainer holds the file `lock` (`flock`), which ends with the process. A trainer that is frozen by SIGSTOP or a dead disk still holds
the lock. If its heartbeat does not change for `SILENT_SECONDS`, the next trainer takes the folder over by a new lock file. Each trainer
takes the next number of `token`, checks the token before every row, checkpoint and result, and ends with `TakenOver` if it has changed.

Files are replaced or deleted under `lock.writing`, with the check inside (`Lease.alone`), so that no process can take the folder over in
between. A row is appended without this lock. If a trainer is frozen between check and append, the late row goes to an unlinked file, and a
late checkpoint is either equal to the other trainer's or not committed. A store that several machines share must compare the token itself
(a precondition on the object's generation).
"""

import faulthandler
import json
import math
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, get_args

from phasewise.trainer.base.errors import ConfigError, ExitCode, TakenOver, TrainingError
from phasewise.trainer.base.run_folder import LOCK_NAME, RunFolder
from phasewise.trainer.base.storage import locked, read_json, try_lock, write_atomically, write_json
from phasewise.trainer.config import Execution

HEARTBEAT_SECONDS = 1.0
STALL_VARIABLE = "PHASEWISE_STALL_SECONDS"
Work = Literal["start", "restore", "data", "compile", "first step", "step", "evaluation", "barrier", "save", "finish"]
"""Each new batch shape has a `compile`. In a `barrier` several processes wait for one another."""
FIELD_OF: Mapping[Work, str] = {
    **dict.fromkeys(("start", "compile", "first step", "evaluation", "finish"), "stall_seconds"),
    "restore": "restore_stall_seconds",
    "save": "save_stall_seconds",
    **dict.fromkeys(("step", "data", "barrier"), "step_stall_seconds"),
}
"""Work → the field of `execution` with its limit."""
NAMED: tuple[Work, ...] = ("compile", "restore", "save", "step")  # the names in the variable, one per field
CHECKS_A_LIMIT = 4
MAX_CHECK_SECONDS = 1.0
STOPPED_SECONDS = 5.0  # if a check is this late, the whole process was stopped, and the limits restart
SUSPENDED_SECONDS = 2.0  # a check that is this late, without CPU time of the process, was late because the process was suspended
SUSPENDED = "suspended"


def stall_limits(execution: Execution, environment: Mapping[str, str] = os.environ) -> dict[Work, float | None]:
    """Return the limit in seconds of every work, or None without a limit."""
    fields: dict[str, float | None] = {FIELD_OF[work]: getattr(execution, FIELD_OF[work]) for work in NAMED}
    text = environment.get(STALL_VARIABLE, "")
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = map(str.strip, part.partition("="))
        field = next((FIELD_OF[work] for work in NAMED if work == name), None)
        try:
            seconds = None if value == "off" else float(value)
        except ValueError:
            seconds = math.nan
        if field is None or (seconds is not None and not 0 < seconds < math.inf):
            raise ConfigError(
                f"{STALL_VARIABLE} must be limits such as step=60,save=900 (names: {', '.join(NAMED)}; seconds above 0, or off), "
                f"found '{text}'. Correct it, or leave it unset."
            )
        fields[field] = seconds
    return {work: fields[FIELD_OF[work]] for work in get_args(Work)}


class Doing(NamedTuple):
    """A work, its seconds without progress, and its limit, if any."""

    work: Work
    seconds: float
    limit_seconds: float | None

    @property
    def is_stalled(self) -> bool:
        """Whether the limit is exceeded."""
        return self.limit_seconds is not None and self.seconds > self.limit_seconds

    def __str__(self) -> str:
        limit = "no limit" if self.limit_seconds is None else f"limit {self.limit_seconds:g} s"
        return f"{self.work} for {self.seconds:.{0 if self.seconds >= 10 else 1}f} s, {limit}"


class Watchdog:
    """A thread that calls `on_stall` once if the current work of the process exceeds its limit. Use it as a context.

    It can't run during a call that holds the interpreter's lock for ever. Then the heartbeat stops, which the launcher sees.
    """

    def __init__(
        self, limits: Mapping[Work, float | None], on_stall: Callable[[Doing], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits, self._on_stall, self._clock = limits, on_stall, clock
        self.step = 0  # applied updates
        self._work: Work = "start"
        self._beat = self._looked = self._since = clock()
        self._spent: dict[Work, float] = {}
        self._suspended: dict[str, float] = {}
        self._seen: tuple[dict[Work, float], float] = {}, time.process_time()
        self._beside: dict[Work, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        shortest = min((limit for limit in limits.values() if limit is not None), default=None)
        self._every = MAX_CHECK_SECONDS if shortest is None else min(shortest / CHECKS_A_LIMIT, MAX_CHECK_SECONDS)

    def __enter__(self) -> "Watchdog":
        self._beat = self._looked = self._since = self._clock()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def begin(self, work: Work, step: int | None = None) -> None:
        """Set the current work, after `step` updates."""
        now = self._clock()
        self._spent[self._work] = self._spent.get(self._work, 0.0) + now - self._since
        self._work = work
        self.step = self.step if step is None else step
        self._beat = self._since = now

    def spent(self) -> dict[str, float]:
        """Return the seconds per work and of `SUSPENDED`, which add up to the time since the watchdog was entered."""
        suspended = self._suspended.copy()
        spent: dict[str, float] = {work: seconds - suspended.get(work, 0.0) for work, seconds in self._elapsed().items()}
        return spent | ({SUSPENDED: sum(suspended.values())} if suspended else {})

    def _elapsed(self) -> dict[Work, float]:
        elapsed = self._spent.copy()
        elapsed[self._work] = elapsed.get(self._work, 0.0) + self._clock() - self._since
        return elapsed

    @contextmanager
    def beside(self, work: Work) -> Iterator[None]:
        """Watch a work of another thread, one of a kind at a time."""
        self._beside[work] = self._clock()
        try:
            yield
        finally:
            self._beside.pop(work, None)

    def doing(self) -> Doing:
        """Return the first stalled work, or else the current work of the process."""
        now = self._clock()
        works: list[tuple[Work, float]] = [(self._work, self._beat), *self._beside.copy().items()]
        found = [Doing(work, now - since, self._limits[work]) for work, since in works]
        return next((doing for doing in found if doing.is_stalled), found[0])

    def look(self) -> Doing | None:
        """Return the stalled work, if any. A late check restarts all limits (`STOPPED_SECONDS`).

        The time of a suspended process (SIGSTOP) is moved to `SUSPENDED` from the work that had most of the time since the last check.
        """
        now, before, self._looked = self._clock(), self._looked, self._clock()
        late, (seen, used), self._seen = now - before - self._every, self._seen, (self._elapsed(), time.process_time())
        if late > SUSPENDED_SECONDS and self._seen[1] - used < late / 2:
            grown = {work: seconds - seen.get(work, 0.0) for work, seconds in self._seen[0].items()}
            work = max(grown, key=lambda one: grown[one])
            self._suspended[work] = self._suspended.get(work, 0.0) + late
        if late > STOPPED_SECONDS:
            self._beat = now
            self._beside = dict.fromkeys(self._beside.copy(), now)
        doing = self.doing()
        return doing if doing.is_stalled else None

    def _watch(self) -> None:
        while not self._ended.wait(self._every):
            if doing := self.look():
                self._on_stall(doing)
                return


def end_stalled(phase: str, doing: Doing) -> None:
    """Print the stacks of all threads on standard error and end the process, without saving."""
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    print(
        f"trainer: phase {phase} stalled in {doing} (execution.{FIELD_OF[doing.work]}). "
        "The stacks above say where. Start it again to go on from its last checkpoint.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(ExitCode.STALLED)


@contextmanager
def heartbeat(
    folder: Path,
    doing: Callable[[], tuple[Doing, int]],
    *,
    token: int = 0,
    check: Callable[[], None] = lambda: None,
    spent: Callable[[], Mapping[str, float]] = dict,
) -> Iterator[None]:
    """Write the heartbeat each second and at the end, after `check`. `doing`: work and applied updates. `spent`: seconds per work."""
    path, ended = RunFolder(folder).heartbeat, threading.Event()

    def run() -> None:
        is_over, beats = False, 0
        while True:
            if not is_over:
                check()
            (current, step), beats = doing(), beats + 1
            fields = {
                "beat": beats,
                "pid": os.getpid(),
                "token": token,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "step": step,
                "work": current.work,
                "seconds": round(current.seconds, 1),
                "limit_seconds": current.limit_seconds,
                "peak_memory_bytes": peak_memory_bytes(),
                "spent": {work: round(seconds, 3) for work, seconds in spent().items()},
            }
            try:
                write_atomically(path, json.dumps(fields).encode())
            except OSError:  # for example a full disk: at least the file's time changes
                with suppress(OSError):
                    os.utime(path)
            if is_over:
                return
            is_over = ended.wait(HEARTBEAT_SECONDS)

    thread = threading.Thread(target=run, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(HEARTBEAT_SECONDS)


def peak_memory_bytes() -> int | None:
    """Return the peak memory of this process, if known. `ru_maxrss` would include its parent's memory."""
    with suppress(OSError, IndexError, ValueError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return None


def signature(folder: Path) -> tuple[int, int] | None:
    """Return a value that changes with every heartbeat, or None without a heartbeat."""
    with suppress(OSError):
        found = RunFolder(folder).heartbeat.stat()
        return found.st_mtime_ns, found.st_ino
    return None


def read_heartbeat(folder: Path) -> dict[str, Any]:
    """Return the last heartbeat, or an empty dictionary if it is missing or damaged."""
    with suppress(OSError, ValueError):
        said = read_json(RunFolder(folder).heartbeat)
        if isinstance(said, dict):
            return said
    return {}


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
