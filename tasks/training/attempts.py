"""Trains a phase by a launcher, attempt by attempt: each resumes where the one before stopped. The same for all launchers.

A phase whose slice changes on the way is trained in segments, each on its slice by its own plan, all on the same batches.
"""

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phasewise.tasks.progress import say
from phasewise.tasks.training.execution import mesh_words
from phasewise.tasks.training.launchers import Attempt, Launcher, ending, last_words, size_of
from phasewise.tasks.training.local import LocalLauncher
from phasewise.tasks.training.monitor import ReplannedEvents, check_unowned, owned, start_and_monitor
from phasewise.tasks.training.run_identity import (
    archive_another_run,
    damage_of_finished,
    finished_result,
    last_saved_step,
    note_caches,
    read_run,
)
from phasewise.tasks.training.time_breakdown import Clock
from phasewise.trainer.base.errors import (
    GOES_ON,
    AsksPerson,
    ExitCode,
    PhasewiseError,
    StorageError,
    TrainingDiverged,
    TrainingError,
    VerdictError,
    WaitsForPerson,
    is_full,
    refused_by_system,
    storage_refusal,
)
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import EventKind, RunFolder, append_event, read_result
from phasewise.trainer.config import RunConfig
from phasewise.trainer.instability import check_answered
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.passed_over import read_passed_over
from phasewise.trainer.process.child_process import ending_with_reason

MAX_RESTARTS = 3
BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 2.0, 60.0
LOOK_SECONDS = 0.5


class PlannedSegment(Frozen):
    """The run of a phase on one slice.

    Attributes:
        run: with the execution that was planned for the slice. All segments but the last have an `until_step`.
    """

    run: RunConfig
    slice_name: str


@dataclass(frozen=True)
class SliceSegment:
    """The updates of a phase that are made on one slice.

    Attributes:
        run: as in `PlannedSegment`.
        slice_name: empty if it is not known.
    """

    run: RunConfig
    launcher: Launcher = field(default_factory=LocalLauncher)
    slice_name: str = ""

    @property
    def words(self) -> str:
        """For people: `cpu-2: 2 devices (fsdp 2)`."""
        return f"{self.slice_name or self.launcher.kind}: {mesh_words(self.run.execution)}"


def segment_at(segments: Sequence[SliceSegment], step: int) -> SliceSegment:
    """Return the segment that makes the update after `step` of them."""
    return next((segment for segment in segments if step < segment.run.last_step), segments[-1])


@dataclass
class Restarts:
    """Counts attempts that saved nothing new: `MAX_RESTARTS` such in a row are the last. A newer checkpoint resets the count.

    The first attempt after progress follows at once. Then each wait is twice the one before.

    Attributes:
        saved_step: the newest checkpoint when the first attempt began.
    """

    saved_step: int | None
    without_progress: int = 0

    def allow(self, saved_step: int | None) -> bool:
        """Return whether there is another attempt after one that ended with this checkpoint."""
        if saved_step is not None and (self.saved_step is None or saved_step > self.saved_step):
            self.saved_step = saved_step
            self.without_progress = 0
        self.without_progress += 1
        return self.without_progress <= MAX_RESTARTS

    @property
    def wait_seconds(self) -> float:
        """How long to wait before the attempt that was allowed."""
        number = self.without_progress - 1
        return 0.0 if number <= 0 else min(BACKOFF_SECONDS * 2.0 ** (number - 1), MAX_BACKOFF_SECONDS)

    def wait(self, check: Callable[[], None]) -> None:
        """Wait so long. An exception of `check` ends it."""
        until = time.monotonic() + self.wait_seconds
        while (left := until - time.monotonic()) > 0:
            check()
            time.sleep(min(left, LOOK_SECONDS))


def launch_trainer(
    run: RunConfig,
    on_rows: Callable[[list[Row]], None],
    check: Callable[[], None] = lambda: None,
    launcher: Launcher | None = None,
    segments: Sequence[SliceSegment] = (),
) -> dict[str, Any]:
    """Train the phase to its end, from its last checkpoint if it has one, and return its result.

    A trainer that was killed or preempted, or that stalled, is started again, as often as `Restarts` allows. One that was refused or
    diverged would do so again. `events.jsonl` of the run's folder says what happened. An exception while it trains, by a signal or by
    `check`, stops it first: it saves the state after its last update, for which it has `trainer.process.signals.stop_seconds`.

    Args:
        on_rows: called with the rows of `metrics.jsonl` that came since the last call.
        check: called about twice a second.
        launcher: starts the processes; None is one process of this machine, or one for each GPU that the mesh needs.
        segments: of a phase whose slice changes on the way, in order; none is that `launcher` trains all of `run`.

    Raises:
        VerdictError: the trainer found no verdict for these bytes.
        TrainingDiverged: the loss is not finite any more, or jumped, and the phase does not roll back.
        WaitsForPerson: the same, and a person must decide whether it does.
        StorageError: a file could not be written or read.
        TrainingError: the process ended otherwise, more often than that; or another launcher is at work on this run.
    """
    segments = segments or [SliceSegment(run, launcher) if launcher else SliceSegment(run)]
    folder, launcher = Path(run.output), segment_at(segments, run.start_step).launcher
    with refused_by_system(run.output):
        check_unowned(folder)
        launcher.clear(folder)
        if result := finished_result(run):
            if not RunFolder(folder).caches.exists():  # an older run
                note_caches(run, read_run(folder))
            return result
        archive_another_run(run)
        with owned(folder, launcher):
            try:  # start nothing, and take no slice, if a person must decide, or has rejected it
                check_answered(run, read_passed_over(folder))
            except AsksPerson as waits:
                raise WaitsForPerson(str(waits), str(RunFolder(folder).question)) from None
            if RunFolder(folder).result.exists():  # it does not count any more: killed before the next one, the run must not look finished
                if damage := damage_of_finished(run):
                    say(f"{run.phase}: its last checkpoint {damage}")
                RunFolder(folder).result.unlink()
            note_caches(run)
            _train(run, on_rows, check, segments)
        result = read_result(folder)
        if result is None:
            raise TrainingError(
                f"{run.phase} was trained, and {RunFolder(folder).result} does not read: start it again, which writes it again."
            )
        here = {"checkpoint": str(RunFolder(folder).checkpoint(run.stop_step))}  # a host has another path for it
        return {name: here.get(name, said) for name, said in result.items()}


def _train(run: RunConfig, on_rows: Callable[[list[Row]], None], check: Callable[[], None], segments: Sequence[SliceSegment]) -> None:
    """Make attempts until one is done.

    Raises:
        PhasewiseError: the last one failed.
    """
    log = RunFolder.at(run.output).log()
    saved = last_saved_step(run)
    if saved is not None:
        text = f"going on from step {saved:,} of {run.stop_step:,}"
        say(f"{run.phase}: {text}")
        append_event(run.output, "resumed", saved, text)
    restarts = Restarts(saved)
    clock = Clock(Path(run.output))
    while True:
        log_before = size_of(log)
        saved = last_saved_step(run)
        segment = segment_at(segments, run.start_step if saved is None else saved)
        code = _attempt(segment, on_rows, check, clock)
        if code == ExitCode.MOVES and last_saved_step(run) == segment.run.until_step:
            step, after = segment.run.last_step, segment_at(segments, segment.run.last_step)
            text = f"trained to step {step:,} on {segment.words}, and saved; going on on {after.words}, on the same batches"
            say(f"{run.phase}: {text}")
            append_event(run.output, "moved", step, text)
            continue
        if code >= 0 and code not in GOES_ON and code != ExitCode.MOVES:
            break
        _note_ending(run, code, last_words(log, log_before))
        if not restarts.allow(last_saved_step(run)):
            break
        restarts.wait(check)
    if code:
        raise _failure(run, code, log, log_before)


def _attempt(segment: SliceSegment, on_rows: Callable[[list[Row]], None], check: Callable[[], None], clock: Clock) -> int:
    run, launcher = segment.run, segment.launcher
    saved = last_saved_step(run)
    run_file = RunFolder.at(run.output).run_file
    write_sealed(run_file, run.model_dump(mode="json"))
    replanned = ReplannedEvents(run)
    try:
        with clock.attempt(run.start_step if saved is None else saved, slice_name=segment.slice_name) as note:

            def look() -> None:
                note()
                replanned.look()
                check()

            return start_and_monitor(launcher, Attempt(run, run_file), on_rows, look)
    except BaseException:
        trained, saved = trained_step(run), last_saved_step(run)
        append_event(run.output, "preempted", trained, "stopped from where it was started")
        if trained == run.start_step:
            report = "stopped before its first update"
        elif saved == trained:
            report = f"stopped after step {trained:,} of {run.stop_step:,}, which is saved; started again, it goes on from there"
        else:
            kept = "nothing of it is saved" if saved is None else f"the checkpoint of step {saved:,} is kept"
            lost = trained - (run.start_step if saved is None else saved)
            updates = f"{lost:,} {'update is' if lost == 1 else 'updates are'}"
            report = f"stopped after step {trained:,} of {run.stop_step:,}; {kept}, and {updates} done again"
        say(f"{run.phase}: {report}")
        raise
    finally:
        replanned.look()


def trained_step(run: RunConfig) -> int:
    """Return the last update that has a row."""
    rows = read_metrics(RunFolder.at(run.output).metrics)
    return rows[-1]["step"] if rows else run.start_step


def _note_ending(run: RunConfig, code: int, words: str | None) -> None:
    saved = last_saved_step(run)
    kinds: dict[int, EventKind] = {ExitCode.STALLED: "stalled", ExitCode.PREEMPTED: "preempted"}
    if kind := kinds.get(code):
        append_event(run.output, kind, trained_step(run), words or f"the trainer {ending(code)}")
    start = "its beginning" if saved is None else f"its last checkpoint, step {saved:,}"
    is_why = words is not None and (code in (ExitCode.STALLED, ExitCode.LOST) or words.startswith("host "))
    why = f" ({words})" if is_why else ""
    text = f"the trainer {ending(code)}{why}; going on from {start}"
    say(f"{run.phase}: {text}")
    append_event(run.output, "restart", saved, text)


def _failure(run: RunConfig, code: int, log: Path, log_before: int) -> Exception:
    words = last_words(log, log_before)
    if code == ExitCode.ASKS:
        return WaitsForPerson(f"{run.phase} waits for a person: {words}", str(RunFolder.at(run.output).question))
    reason = f"the trainer {ending_with_reason(code, log, log_before)}"
    if not words and (code == ExitCode.NO_STORAGE or is_full(log.parent)):  # not even its log could be written
        return storage_refusal(OSError(errno.ENOSPC, reason, str(log.parent)))
    kinds: dict[int, type[PhasewiseError]] = {
        ExitCode.REFUSED: VerdictError, ExitCode.DIVERGED: TrainingDiverged, ExitCode.NO_STORAGE: StorageError,
    }  # fmt: skip
    kind = kinds.get(code, TrainingError) if words else TrainingError
    return kind(f"{run.phase} was not trained: {words or reason}")
