"""The state of a phase in one word: the stage that its live process wrote, or the results.

The process that works on a phase holds the phase's lock, and writes each stage when it enters the stage. Readers probe the lock. They never
compare the times of files. A home on a store has one lease with a heartbeat for all phases. The log of stages has the time of each stage.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pydantic import ValidationError

from phasewise.tasks.home import Home
from phasewise.tasks.locks import PROCESS, Holder, holder_of, holding, lease_holder
from phasewise.trainer.base.errors import PhasewiseError, TrainingDiverged, VerdictError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.run_folder import RunFolder, append_line
from phasewise.trainer.base.storage import is_locked, parse_json, read_json, write_json
from phasewise.trainer.base.wording import about

LOCK_SUFFIX = ".lock"
RECENT_BYTES = 2**16  # end of the metrics that gives step and speed
SIGN_SECONDS = 1.0
"""A process at work touches its stage this often. The last time ends the stage of a killed process in the log."""
CUT_SHORT = "interrupted"  # reason of a line in the log that ends a stage without the end of its work


class State(StrEnum):
    """The states of a phase, in the order of a run."""

    NOT_STARTED = "not started"
    QUEUED = "queued"
    WAITS_FOR_PARENT = "waiting for a parent"
    PREPARING = "preparing"
    CHECKING_DATA = "checking data"
    TRAINING = "training"
    CHECKING_TRAINING = "checking training"
    EVALUATING = "evaluating"
    GATING = "gating"
    WAITS_FOR_PERSON = "waiting for a person"
    DONE = "done"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    OUTDATED = "outdated"


AT_WORK = tuple(State)[3:9]  # states of a phase with a live process
PENDING = (*AT_WORK, State.QUEUED, State.WAITS_FOR_PARENT)
JUDGED = (State.DONE, State.REFUSED, State.WAITS_FOR_PERSON)  # states that the results decide, also if a parent is trained again


class Stage(Frozen):
    """The stage of a phase's process. After the work `state` is None, and the results decide.

    `why`: the error that ended the stage, or the reason to wait. `process`: as `tasks.locks.PROCESS`.
    """

    state: State | None
    since: str
    why: str = ""
    flow_run: str = ""
    host: str
    pid: int
    process: str


class PhaseState(Frozen):
    """The state of a phase.

    `since`: start of the current stage, or end of the last work. `step`, `stop_step`, `seconds_left`: only of a training or an interrupted
    one. They are None if unknown.
    """

    state: State
    why: str = ""
    since: str = ""
    step: int | None = None
    stop_step: int | None = None
    seconds_left: float | None = None

    @property
    def words(self) -> str:
        """The state in a line: `training: step 12 of 40, about 3 s left`."""
        step = "" if self.step is None else f"step {self.step:,}" if self.stop_step is None else f"step {self.step:,} of {self.stop_step:,}"
        left = "" if self.seconds_left is None else f"{about(self.seconds_left)} left"
        details = ", ".join(filter(None, (step if self.state == State.TRAINING else "", left, self.why)))
        return f"{self.state}: {details}" if details else str(self.state)


_signed: set[Path] = set()


def _sign() -> None:
    pause = threading.Event()
    while not pause.wait(SIGN_SECONDS):
        for path in tuple(_signed):
            with suppress(OSError):
                os.utime(path)


_signing = threading.Thread(target=_sign, name="signs of stages", daemon=True)


def enter_stage(
    home: Home, run_name: str, phase: str, state: State | None, *, why: str = "", flow_run: str = "", submitted: datetime | None = None
) -> None:
    """Write the stage of a phase, before its work, and append it to the log of stages.

    `submitted`: the time of submission of this process's run, which the log has as `QUEUED`. A wait for an ancestor is not in the log.
    """
    path, log, now = home.stage(run_name, phase), home.stage_log(run_name, phase), datetime.now(UTC)
    stage = Stage(
        state=state,
        since=now.isoformat(timespec="milliseconds"),
        why=why,
        flow_run=flow_run,
        host=socket.gethostname(),
        pid=os.getpid(),
        process=PROCESS,
    )
    before = next(iter(read_stages(log)[-1:]), None)
    lines = [] if state in (State.QUEUED, State.WAITS_FOR_PARENT) else [stage]
    if before is None or before.process != PROCESS:
        end = before.since if before else ""
        if before and before.state is not None:
            end = last_sign(home, run_name, phase, before)
            lines.insert(0, before.but(state=None, why=CUT_SHORT, since=end))
        if submitted and lines and (queued := submitted.astimezone(UTC).isoformat(timespec="milliseconds")) > end:
            lines.insert(-1, stage.but(state=State.QUEUED, since=min(queued, stage.since)))
    write_json(path, stage.model_dump(mode="json"))
    with suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
    for line in lines:
        append_line(log, line.model_dump(mode="json"))
    (_signed.add if state in AT_WORK and home.is_local else _signed.discard)(path)
    if _signed and not _signing.is_alive():
        _signing.start()


def read_stages(log: Path) -> list[Stage]:
    """Return the stages in the log of a phase, without damaged lines."""
    found: list[Stage] = []
    for line in log.read_bytes().splitlines() if log.exists() else ():
        with suppress(ValueError):
            found.append(Stage.model_validate(parse_json(line)))
    return found


def last_sign(home: Home, run_name: str, phase: str, stage: Stage) -> str:
    """Return the time at which the process of a stage was last seen at work, at least the start of the stage."""
    with suppress(OSError):
        if home.is_local:
            touched = datetime.fromtimestamp(home.stage(run_name, phase).stat().st_mtime, UTC)
            return max(stage.since, touched.isoformat(timespec="milliseconds"))
    return stage.since


def read_stage(home: Home, run_name: str, phase: str) -> Stage | None:
    """Return the last written stage, or None if it is missing or damaged."""
    with suppress(OSError, ValueError, ValidationError):
        return Stage.model_validate(read_json(home.stage(run_name, phase)))
    return None


_at_work: set[Path] = set()  # a flow of a phase opens other flows of the phase in its own process


@contextmanager
def working(home: Home, run_name: str, phase: str, what: str, *, on_wait: Callable[[Holder], None] | None = None) -> Iterator[None]:
    """Hold the lock of a phase, and end its stage after the work. `what`, `on_wait`: as in `tasks.locks.holding`.

    An error other than a refusal leaves the last stage with the error: the phase is interrupted.
    """
    path = home.stage(run_name, phase)
    if path in _at_work:
        yield
        return
    with holding(path.with_suffix(LOCK_SUFFIX), what, on_wait=on_wait) if home.is_local else nullcontext():
        _at_work.add(path)
        ends = True
        try:
            yield
        except BaseException as error:
            ends = isinstance(error, (VerdictError, TrainingDiverged))  # the verdict has the reason
            if isinstance(error, PhasewiseError) and not ends and (stage := read_stage(home, run_name, phase)):
                enter_stage(home, run_name, phase, stage.state, why=str(error).partition("\n")[0], flow_run=stage.flow_run)
            raise
        finally:
            if ends and (stage := read_stage(home, run_name, phase)) and stage.state in AT_WORK:
                enter_stage(home, run_name, phase, None, flow_run=stage.flow_run)
            elif not ends and (stages := read_stages(log := home.stage_log(run_name, phase))) and stages[-1].state is not None:
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                append_line(log, stages[-1].but(state=None, why=CUT_SHORT, since=now).model_dump(mode="json"))
            _signed.discard(path)
            _at_work.discard(path)


class Work(NamedTuple):
    """The last stage of a phase, and whether the process that wrote it still works. `is_held`: any process holds the phase."""

    stage: Stage | None
    is_live: bool
    is_held: bool


def read_work(home: Home, run_name: str, phase: str) -> Work:
    """Return the stage of a phase with its holder. A stage that changes meanwhile is read again."""
    stage = read_stage(home, run_name, phase)
    while True:
        holder = holder_of(home.stage(run_name, phase).with_suffix(LOCK_SUFFIX)) if home.is_local else None
        process = (holder.process if holder else None) if home.is_local else lease_holder(home.run_lock)
        is_held = process is not None
        if process is None and home.is_local and (holder := holder_of(home.run_lock)):  # it may not have reached the phase
            if stage is not None and stage.state is not None:
                process = holder.process
            name = home.stage(run_name, phase).relative_to(home.root).as_posix()
            if name in holder.queues and (stage is None or stage.process != holder.process):
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                queued = Stage(state=State.QUEUED, since=now, host=socket.gethostname(), pid=holder.pid, process=holder.process)
                return Work(queued, True, is_held)
        again = read_stage(home, run_name, phase)
        if again == stage:
            return Work(stage, stage is not None and process == stage.process, is_held)
        stage = again


def settle(stopped: State | None, *, is_complete: bool, is_outdated: bool, is_begun: bool) -> State:
    """Return the state by the results alone.

    `stopped`: the state by a verdict that stops the phase. `is_outdated`: a result exists and is not current.
    """
    if stopped or is_complete:
        return stopped or State.DONE
    if is_outdated:
        return State.OUTDATED
    return State.INTERRUPTED if is_begun else State.NOT_STARTED


def state_now(
    home: Home, run_name: str, phase: str, settled: PhaseState, *, work: Work, parent: tuple[str, State] | None = None
) -> PhaseState:
    """Return the state of a phase: the stage of a live process, else `settled`, which is the state by the results.

    `work`: read before the results. `parent`: the parent's name and state, if the phase has a parent.
    """
    folder, stage, lives = RunFolder(home.run(run_name, phase)), work.stage, work.is_live
    state = stage.state if stage else None
    since = stage.since if stage else ""
    if work.is_held and not lives and home.is_local:  # its process did not write the first stage yet
        state, since, lives = State.PREPARING, "", True
    if not lives and state == State.TRAINING and home.is_local and is_locked(folder.trainer_lock):
        return _with_progress(PhaseState(state=State.TRAINING, since=since, why="its flow ended, and the trainer stops"), folder, settled)
    if lives and state is not None and state in AT_WORK and not (state == State.PREPARING and settled.state in JUDGED):
        found = PhaseState(state=state, since=since)
        return _with_progress(found, folder, settled) if state == State.TRAINING else found
    if settled.state in JUDGED:
        return settled.but(since=since)
    if parent and parent[1] != State.DONE and (state == State.WAITS_FOR_PARENT or parent[1] in PENDING):
        return PhaseState(state=State.WAITS_FOR_PARENT, why=f"{parent[0]} is {parent[1]}", since=since)
    if lives and state == State.QUEUED:
        return PhaseState(state=State.QUEUED, since=since)
    if settled.state == State.INTERRUPTED or (state in AT_WORK and (state, settled.state) != (State.PREPARING, State.OUTDATED)):
        from phasewise.tasks.training.run_identity import last_saved_step  # PyArrow, for the check of caches

        saved = last_saved_step(folder.path)
        resumes = f"it resumes from step {saved:,}" if saved is not None else "it starts again"
        reasons = (f"while {state}" if state in AT_WORK else settled.why, stage.why if stage else "", resumes)
        why = "; ".join(filter(None, reasons))
        return PhaseState(state=State.INTERRUPTED, why=why, since=since, step=saved, stop_step=settled.stop_step)
    return settled.but(since=since)


def _with_progress(found: PhaseState, folder: RunFolder, settled: PhaseState) -> PhaseState:
    rows: list[dict[str, Any]] = []
    with suppress(OSError), open(folder.metrics, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - RECENT_BYTES))
        for line in file.read().splitlines():
            with suppress(ValueError):
                if isinstance(row := parse_json(line, allows_nan=True), dict) and isinstance(row.get("step"), int):
                    rows.append(row)
    step = rows[-1]["step"] if rows else None
    seconds = [row["step_seconds"] for row in rows if isinstance(row.get("step_seconds"), float)]
    left = None
    if isinstance(step, int) and settled.stop_step is not None and seconds:
        left = round((settled.stop_step - step) * median(seconds), 1)
    return found.but(step=step, stop_step=settled.stop_step, seconds_left=left)
