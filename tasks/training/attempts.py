"""Training of a phase in attempts, each of which resumes from the last checkpoint, by any launcher.

The files of the run's folder show an attempt's progress. A phase that changes its slice is trained in segments, all on the same batches.
"""

import errno
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phasewise.tasks.locks import AlreadyHeld, holder_of, holding
from phasewise.tasks.progress import say
from phasewise.tasks.training import run_identity
from phasewise.tasks.training.execution import mesh_words
from phasewise.tasks.training.launchers import Attempt, Launcher, LocalLauncher, ending, last_words, size_of, write_reason
from phasewise.tasks.training.time_breakdown import Clock
from phasewise.trainer.base import errors
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_json, write_sealed
from phasewise.trainer.base.run_folder import EventKind, RunFolder, append_event, read_events, read_result
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.process.child_process import ending_with_reason, stop_seconds
from phasewise.trainer.process.watchdog import read_heartbeat, signature
from phasewise.trainer.skipped_steps import after_answer, read_skipped_steps

MAX_RESTARTS = 3  # consecutive attempts without a newer checkpoint
BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 2.0, 60.0  # the first restart after progress is immediate. Then each pause is twice the pause before
LOOK_SECONDS, POLL_SECONDS = 0.5, 0.5
SILENT_SECONDS = 60.0
"""A trainer without heartbeat for this time is killed, because its watchdog may hang too. Before the first heartbeat there is no limit."""


class PlannedSegment(Frozen):
    """The run of a phase on one slice with its planned execution. All segments but the last have an `until_step`."""

    run: RunConfig
    slice_name: str


@dataclass(frozen=True)
class SliceSegment:
    """The updates of a phase on one slice, with the launcher. The slice name may be unknown, which is an empty text."""

    run: RunConfig
    launcher: Launcher = field(default_factory=LocalLauncher)
    slice_name: str = ""


def segment_at(segments: Sequence[SliceSegment], step: int) -> SliceSegment:
    """Return the segment of the update after `step`."""
    return next((segment for segment in segments if step < segment.run.last_step), segments[-1])


def launch_trainer(
    run: RunConfig, on_rows: Callable[[list[Row]], None], check: Callable[[], None] = lambda: None, segments: Sequence[SliceSegment] = (),
    forecast: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train the phase to its end, from its last checkpoint if it has one, and return its result.

    A trainer that was killed or preempted, or that stalled, is restarted. A refusal or a divergence would repeat, so it is final: its
    exit code decides the error. An exception by a signal or by `check`, which is called about twice a second, first stops the trainer,
    which saves its state within `trainer.process.signals.stop_seconds`. Without `segments`, the local launcher trains `run`. A `forecast`
    is written before the first update.
    """
    segments = segments or [SliceSegment(run)]
    folder, launcher = RunFolder(run.output), segment_at(segments, run.start_step).launcher
    another = f"a run has one launcher at a time, found {{}} at work on {run.output}: wait for it, or stop it."
    with errors.refused_by_system(run.output):
        if holder := holder_of(folder.launcher_lock):
            raise errors.TrainingError(another.format(holder))
        launcher.clear(folder.path)
        if result := run_identity.finished_result(run):
            if not folder.caches.exists():  # an older run
                run_identity.note_caches(run, run_identity.read_run(folder.path))
            return result
        run_identity.archive_another_run(run)
        try:
            with holding(folder.launcher_lock, f"the {launcher.kind} launcher"):
                try:  # before a slice is taken: a person may have to decide, or has rejected the training
                    after_answer(run, read_skipped_steps(folder.path), write=False)
                except errors.AsksPerson as waits:
                    raise errors.WaitsForPerson(str(waits), str(folder.question)) from None
                if folder.result.exists():  # an invalid result: a killed run must not look finished
                    if damage := run_identity.damage_of_finished(run):
                        say(f"{run.phase}: its last checkpoint {damage}")
                    folder.result.unlink()
                run_identity.note_caches(run)
                if forecast and not folder.metrics.exists():
                    write_sealed(folder.forecast, forecast)
                    text = f"loss of {forecast['mean'][-1]:.4g} forecast for the end, sha256 {digest_of_json(forecast)}"
                    append_event(run.output, "forecast", run.start_step, text)
                _train(run, on_rows, check, segments)
        except AlreadyHeld as held:
            raise errors.TrainingError(another.format(held.holder)) from None
        result = read_result(folder.path)
        if result is None:
            raise errors.TrainingError(
                f"{run.phase} was trained, and {folder.result} does not read: start it again, which writes it again."
            )
        here = {"checkpoint": str(folder.checkpoint(run.stop_step))}  # a host has its own path
        return {name: here.get(name, said) for name, said in result.items()}


def _train(run: RunConfig, on_rows: Callable[[list[Row]], None], check: Callable[[], None], segments: Sequence[SliceSegment]) -> None:
    log, clock, without_progress = RunFolder(run.output).log(), Clock(Path(run.output)), 0
    saved = newest = run_identity.last_saved_step(run)
    if saved is not None:
        text = f"resuming from step {saved:,} of {run.stop_step:,}"
        say(f"{run.phase}: {text}")
        append_event(run.output, "resumed", saved, text)
    while True:
        log_before, saved = size_of(log), run_identity.last_saved_step(run)
        segment = segment_at(segments, run.start_step if saved is None else saved)
        code = _attempt(segment, on_rows, check, clock)
        words, saved = last_words(log, log_before), run_identity.last_saved_step(run)
        if code == errors.ExitCode.MOVES and saved == segment.run.until_step:
            step = segment.run.last_step
            before, after = (
                f"{one.slice_name or one.launcher.kind}: {mesh_words(one.run.execution)}" for one in (segment, segment_at(segments, step))
            )
            text = f"trained to step {step:,} on {before}, and saved; resuming on {after}, on the same batches"
            say(f"{run.phase}: {text}")
            append_event(run.output, "moved", step, text)
            continue
        if code >= 0 and code not in errors.GOES_ON and code != errors.ExitCode.MOVES:
            break
        kinds: dict[int, EventKind] = {errors.ExitCode.STALLED: "stalled", errors.ExitCode.PREEMPTED: "preempted"}
        if kind := kinds.get(code):
            rows = read_metrics(RunFolder(run.output).metrics)
            append_event(run.output, kind, rows[-1]["step"] if rows else run.start_step, words or f"the trainer {ending(code)}")
        start = "its beginning" if saved is None else f"its last checkpoint, step {saved:,}"
        is_why = words is not None and (code in (errors.ExitCode.STALLED, errors.ExitCode.LOST) or words.startswith("host "))
        text = f"the trainer {ending(code)}{f' ({words})' if is_why else ''}; resuming from {start}"
        say(f"{run.phase}: {text}")
        append_event(run.output, "restart", saved, text)
        if saved is not None and (newest is None or saved > newest):
            newest, without_progress = saved, 0
        without_progress += 1
        if without_progress > MAX_RESTARTS:
            break
        pause = 0.0 if without_progress == 1 else min(BACKOFF_SECONDS * 2.0 ** (without_progress - 2), MAX_BACKOFF_SECONDS)
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            check()
            time.sleep(min(left, LOOK_SECONDS))
    if not code:
        return
    if code == errors.ExitCode.ASKS:
        raise errors.WaitsForPerson(f"{run.phase} waits for a person: {words}", str(RunFolder(run.output).question))
    reason = f"the trainer {ending_with_reason(code, log, log_before)}"
    if not words and (code == errors.ExitCode.NO_STORAGE or errors.is_full(log.parent)):  # not even the log could be written
        raise errors.storage_refusal(OSError(errno.ENOSPC, reason, str(log.parent)))
    failures: dict[int, type[errors.PhasewiseError]] = {
        errors.ExitCode.REFUSED: errors.VerdictError,
        errors.ExitCode.DIVERGED: errors.TrainingDiverged,
        errors.ExitCode.NO_STORAGE: errors.StorageError,
    }
    failure = failures.get(code, errors.TrainingError) if words else errors.TrainingError
    raise failure(f"{run.phase} was not trained: {words or reason}")


def _attempt(segment: SliceSegment, on_rows: Callable[[list[Row]], None], check: Callable[[], None], clock: Clock) -> int:
    """Make one attempt and return its exit code. The trainer may log that it resumes in another environment, which is printed."""
    run, saved = segment.run, run_identity.last_saved_step(segment.run)
    run_file = RunFolder(run.output).run_file
    reported = sum(event.get("kind") == "replanned" for event in read_events(run.output))
    write_sealed(run_file, run.model_dump(mode="json"))

    def report_replanned() -> None:
        nonlocal reported
        texts = [event.get("text") for event in read_events(run.output) if event.get("kind") == "replanned"]
        for text in texts[reported:]:
            say(f"{run.phase}: {text}")
        reported = len(texts)

    try:
        with clock.attempt(run.start_step if saved is None else saved, slice_name=segment.slice_name) as note:

            def look() -> None:
                note()
                report_replanned()
                check()

            return start_and_monitor(segment.launcher, Attempt(run, run_file), on_rows, look)
    except BaseException:
        rows, saved = read_metrics(RunFolder(run.output).metrics), run_identity.last_saved_step(run)
        trained = rows[-1]["step"] if rows else run.start_step
        append_event(run.output, "preempted", trained, "stopped from where it was started")
        if trained == run.start_step:
            report = "stopped before its first update"
        elif saved == trained:
            report = f"stopped after step {trained:,} of {run.stop_step:,}, which is saved; a restart resumes there"
        else:
            kept = "nothing of it is saved" if saved is None else f"the checkpoint of step {saved:,} is kept"
            lost = trained - (run.start_step if saved is None else saved)
            updates = f"{lost:,} {'update is' if lost == 1 else 'updates are'}"
            report = f"stopped after step {trained:,} of {run.stop_step:,}; {kept}, and {updates} done again"
        say(f"{run.phase}: {report}")
        raise
    finally:
        report_replanned()


def start_and_monitor(launcher: Launcher, attempt: Attempt, on_rows: Callable[[list[Row]], None], check: Callable[[], None]) -> int:
    """Start one attempt of a run and return its exit code. After an exception of `check` or a signal, the hosts save and end first."""
    folder, metrics = attempt.folder, RunFolder(attempt.folder).metrics
    hosts, code, is_back = launcher.start(attempt), None, False
    try:
        seen = len(read_metrics(metrics))
        beat = first_beat = signature(folder)
        beat_at = time.monotonic()
        try:
            while True:
                code = hosts.look()
                if code is not None and hosts.remote:
                    hosts.remote.take_back(needs_weights=code in (errors.ExitCode.DONE, errors.ExitCode.MOVES))
                    is_back = True
                rows = read_metrics(metrics)
                if len(rows) > seen:
                    on_rows(rows[seen:])
                seen = len(rows)
                if code is not None:
                    return code
                check()
                now, found = time.monotonic(), signature(folder)
                if found != beat:
                    beat, beat_at = found, now
                if beat != first_beat and now - beat_at > SILENT_SECONDS:
                    hosts.kill()
                    work = read_heartbeat(folder).get("work", "nothing")
                    silent = f"gave no sign of life for {now - beat_at:.0f} s (limit {SILENT_SECONDS:g} s); it was last seen at: {work}"
                    write_reason(folder, [f"the trainer {silent}. It was ended."])
                    return errors.ExitCode.STALLED
                hosts.wait(POLL_SECONDS)
        except BaseException:
            try:
                hosts.stop()
                until = time.monotonic() + stop_seconds() + (hosts.remote.send_seconds if hosts.remote else 0.0)
                while hosts.look() is None and (left := until - time.monotonic()) > 0:
                    hosts.wait(min(left, POLL_SECONDS))
            finally:  # also after a second interruption
                if (code := hosts.look()) is None:
                    hosts.kill()
            raise
    finally:
        hosts.close()
        if hosts.remote and not is_back:
            with suppress(errors.TakenOver, errors.StorageError):  # the first error is raised
                hosts.remote.take_back(needs_weights=code in (errors.ExitCode.DONE, errors.ExitCode.MOVES))
