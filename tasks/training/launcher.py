"""Trains a phase by a launcher, follows its metrics, and goes on where a killed one stopped. What is here is the same for all launchers."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.progress import say
from phasewise.tasks.training.aside import set_aside_another_run
from phasewise.tasks.training.clock import Clock
from phasewise.tasks.training.follow import check_unowned, owned, start_and_follow
from phasewise.tasks.training.hosts.left import take_in_what_was_sent
from phasewise.tasks.training.legs import Leg, leg_at
from phasewise.tasks.training.other_conditions import OtherConditions
from phasewise.tasks.training.protocol import Launcher, Life, ending
from phasewise.tasks.training.protocol import last_words as _last_words
from phasewise.tasks.training.restarts import Restarts
from phasewise.tasks.training.same_run import has_result_of, is_same, is_same_so_far, note_caches, read_run
from phasewise.trainer.base.errors import (
    AsksPerson,
    PhasewiseError,
    StorageError,
    TrainingDiverged,
    TrainingError,
    VerdictError,
    WaitsForPerson,
)
from phasewise.trainer.base.exit_codes import GOES_ON, ExitCode
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.base.system_errors import is_full, refused_by_system, storage_refusal
from phasewise.trainer.checkpoints.files import find_damage_since, find_other_rows, is_committed, saved_steps
from phasewise.trainer.checkpoints.path import checkpoint_path
from phasewise.trainer.config import RunConfig
from phasewise.trainer.events import EventKind, append_event
from phasewise.trainer.instability import check_answered
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.passed_over import read_passed_over
from phasewise.trainer.process.child_process import ending_with_reason
from phasewise.trainer.result import read_result


def finished_result(run: RunConfig, plan: DataPlan | None = None, digests: KnownDigests | None = None) -> dict[str, Any] | None:
    """The result of exactly this run, if it has one; one that was trained on other data or settings doesn't count.

    A result names the digest of its run, and one of before that of its `run.json` with the places in it. Wherever the home was moved to,
    these two belong together, and `run.json` says which run it is.

    Nor does one count whose last checkpoint is damaged: the launcher goes on from the one before. A folder that somebody deleted to make
    room is no damage; who needs its weights misses it.

    Args:
        plan: caches that it lacks for a change of their code alone do not speak against a result; None is that all caches are there.
        digests: what is known of the content of files; None reads what looks changed.
    """
    folder = as_path(run.output)
    result = read_result(folder)
    if result is None:
        return None
    written = read_run(folder)
    if written is not None and result.get("run_digest") not in (written.digest, written.digest_with_places):
        return None
    if result.get("run_digest") != run.digest and (written is None or not _is_same(written, run, plan)):
        return None
    if damage_of_finished(run, digests):
        return None
    return {**result, "checkpoint": str(checkpoint_path(run.output, run.stop_step))}


def damage_of_finished(run: RunConfig, digests: KnownDigests | None = None) -> str | None:
    """What is wrong with the last checkpoint of a run that has a result, with its metrics or its `run.json`; a removed file is found, too.

    Where the checkpoint was deleted, none of these can be made again, and nothing is compared.
    """
    checkpoint, folder = checkpoint_path(run.output, run.stop_step), RunFolder.at(run.output)
    if not checkpoint.exists():
        return None
    written = read_run(folder.path)
    if written is None or (has_result_of(folder.path, run) and not _is_same(written, run, None)):
        return f"is whole, and {folder.run_file} is missing or was changed after the run ended"
    known = digests or KnownDigests()
    if damage := find_damage_since(checkpoint, lambda files: known.changed(checkpoint, files, folder.result)):
        return damage
    if not known.has_changed(folder.metrics, folder.result):
        return None
    return find_other_rows(checkpoint, folder.metrics)


def is_begun(run: RunConfig, plan: DataPlan | None = None) -> bool:
    """Whether what is in the run's folder is of exactly this run; `plan` as in `finished_result`."""
    folder = as_path(run.output)
    written = read_run(folder)
    return has_result_of(folder, run) or (written is not None and _is_same(written, run, plan))


def launch_trainer(
    run: RunConfig,
    on_rows: Callable[[list[Row]], None],
    check: Callable[[], None] = lambda: None,
    launcher: Launcher | None = None,
    legs: Sequence[Leg] = (),
) -> dict[str, Any]:
    """Train the phase to its end, from its last checkpoint if it has one, and return its result.

    A trainer that was killed or preempted, or that stalled, is started again, as often as `tasks.training.restarts` allows. One that was
    refused or diverged would do so again. What happens is in `events.jsonl` of the run's folder. Whatever is raised here while it trains,
    by a signal or by `check`, stops it first: it saves the state after its last update, for which it has
    `trainer.process.stopping.stop_seconds`.

    Args:
        on_rows: called with the rows of `metrics.jsonl` that came since the last call.
        check: called about twice a second.
        launcher: where the processes are started; None is one process of this machine, or one for each GPU that the mesh needs.
        legs: of a phase whose slice changes on the way, in order; none is that all of `run` is trained by `launcher`.

    Raises:
        VerdictError: the trainer found no verdict for these bytes.
        TrainingDiverged: the loss is not finite any more, or jumped, and the phase does not roll back.
        WaitsForPerson: the same, and a person is asked whether it does.
        StorageError: a file could not be written or read.
        TrainingError: the process ended otherwise, more often than that; or another launcher is at work on this run.
    """
    with refused_by_system(run.output):
        return _launch(run, on_rows, check, legs or [Leg(run, launcher) if launcher else Leg(run)])


def _launch(run: RunConfig, on_rows: Callable[[list[Row]], None], check: Callable[[], None], legs: Sequence[Leg]) -> dict[str, Any]:
    take_in_what_was_sent(Path(run.output), leg_at(legs, run.start_step).launcher.clear)
    if result := finished_result(run):
        if not RunFolder.at(run.output).caches.exists():  # a run of before
            note_caches(run, read_run(Path(run.output)))
        return result
    folder = Path(run.output)
    launcher = leg_at(legs, run.start_step).launcher
    check_unowned(folder, launcher)
    set_aside_another_run(run)
    with owned(folder, launcher):
        _check_answered(run)
        _forget_result(run)
        note_caches(run)
        _lives(run, on_rows, check, legs)
    result = read_result(folder)
    if result is None:
        raise TrainingError(
            f"{run.phase} was trained, and {RunFolder(folder).result} does not read: start it again, which writes it again."
        )
    here = {"checkpoint": str(checkpoint_path(run.output, run.stop_step))}  # a host has its own place for it
    return {name: here.get(name, said) for name, said in result.items()}


def _check_answered(run: RunConfig) -> None:
    """Start nothing, and take no slice, where a person is asked and has not decided, or rejected it."""
    try:
        check_answered(run, read_passed_over(Path(run.output)))
    except AsksPerson as waits:
        raise WaitsForPerson(str(waits), str(RunFolder.at(run.output).question)) from None


def _lives(run: RunConfig, on_rows: Callable[[list[Row]], None], check: Callable[[], None], legs: Sequence[Leg]) -> None:
    """As many as it needs."""
    log = RunFolder.at(run.output).log()
    saved = last_saved_step(run)
    if saved is not None:
        say(f"{run.phase}: going on from step {saved:,} of {run.stop_step:,}")
        append_event(run.output, "resumed", saved, f"going on from step {saved:,} of {run.stop_step:,}")
    restarts = Restarts(saved)
    clock = Clock(Path(run.output))
    while True:
        log_before = log.stat().st_size if log.exists() else 0
        saved = last_saved_step(run)
        leg = leg_at(legs, run.start_step if saved is None else saved)
        code = _run_or_stop(leg, on_rows, check, clock)
        if code == ExitCode.MOVES and last_saved_step(run) == leg.run.until_step:
            _note_move(leg, leg_at(legs, leg.run.last_step))
            continue
        if code >= 0 and code not in GOES_ON and code != ExitCode.MOVES:
            break
        _note_ending(run, code, _last_words(log, log_before))
        if not restarts.allow(last_saved_step(run)):
            break
        restarts.wait(check)
    if code:
        raise _failure(run, code, log, log_before)


def _note_move(before: Leg, after: Leg) -> None:
    """Say, and write among the events, that the phase goes on on another slice."""
    step = before.run.last_step
    text = f"trained to step {step:,} on {before.words}, and saved; going on on {after.words}, on the same batches"
    say(f"{before.run.phase}: {text}")
    append_event(before.run.output, "moved", step, text)


def _forget_result(run: RunConfig) -> None:
    """A result that does not count any more: killed on the way to another one, the run must not look finished."""
    path = RunFolder.at(run.output).result
    if not path.exists():
        return
    if damage := damage_of_finished(run):
        say(f"{run.phase}: its last checkpoint {damage}")
    path.unlink()


def _note_ending(run: RunConfig, code: int, words: str | None) -> None:
    """Say, and write among the events, how a life ended that another one follows."""
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


def trained_step(run: RunConfig) -> int:
    """The last update that has a row."""
    rows = read_metrics(RunFolder.at(run.output).metrics)
    return rows[-1]["step"] if rows else run.start_step


def last_saved_step(run: RunConfig) -> int | None:
    """The newest committed checkpoint of the run; None where there is none."""
    folder = RunFolder.at(run.output).checkpoints
    return next((step for step in reversed(saved_steps(folder)) if is_committed(folder / str(step))), None)


def _run_or_stop(leg: Leg, on_rows: Callable[[list[Row]], None], check: Callable[[], None], clock: Clock) -> int:
    """One life of the trainer; where it is stopped from here, what of it is saved is said."""
    run, launcher = leg.run, leg.launcher
    saved = last_saved_step(run)
    write_sealed(RunFolder.at(run.output).run_file, run.model_dump(mode="json"))
    others = OtherConditions(run)
    try:
        with clock.life(run.start_step if saved is None else saved, slice_name=leg.slice_name) as note:

            def look() -> None:
                note()
                others.look()
                check()

            return _run_process(RunFolder.at(run.output).run_file, on_rows, look, run, launcher)
    except BaseException:
        append_event(run.output, "preempted", trained_step(run), "stopped from where it was started")
        say(f"{run.phase}: {_what_is_saved(run)}")
        raise
    finally:
        others.look()


def _run_process(
    run_file: Path, on_rows: Callable[[list[Row]], None], check: Callable[[], None], run: RunConfig, launcher: Launcher
) -> int:
    """One life of the trainer, on all its hosts."""
    return start_and_follow(launcher, Life(run, run_file), on_rows, check)


def _what_is_saved(run: RunConfig) -> str:
    """How far a stopped run is saved: its last update, or how many updates are lost."""
    saved = last_saved_step(run)
    trained = trained_step(run)
    if trained == run.start_step:
        return "stopped before its first update"
    if saved == trained:
        return f"stopped after step {trained:,} of {run.stop_step:,}, which is saved; started again, it goes on from there"
    kept = "nothing of it is saved" if saved is None else f"the checkpoint of step {saved:,} is kept"
    lost = trained - (run.start_step if saved is None else saved)
    return f"stopped after step {trained:,} of {run.stop_step:,}; {kept}, and {_updates(lost)} done again"


def _updates(count: int) -> str:
    return f"{count:,} {'update is' if count == 1 else 'updates are'}"


def _failure(run: RunConfig, code: int, log: Path, log_before: int) -> Exception:
    """What this attempt said last; the log holds the earlier ones too, up to `log_before` bytes."""
    words = _last_words(log, log_before)
    if code == ExitCode.ASKS:
        return WaitsForPerson(f"{run.phase} waits for a person: {words}", str(RunFolder.at(run.output).question))
    if not words and (code == ExitCode.NO_STORAGE or is_full(log.parent)):  # not even its log could be written
        return storage_refusal(OSError(errno.ENOSPC, f"the trainer {ending_with_reason(code, log, log_before)}", str(log.parent)))
    kinds: dict[int, type[PhasewiseError]] = (
        {
            ExitCode.REFUSED: VerdictError,
            ExitCode.DIVERGED: TrainingDiverged,
            ExitCode.NO_STORAGE: StorageError,
        }
        if words
        else {}
    )
    return kinds.get(code, TrainingError)(
        f"{run.phase} was not trained: {words or f'the trainer {ending_with_reason(code, log, log_before)}'}"
    )


def _is_same(written: RunConfig, run: RunConfig, plan: DataPlan | None) -> bool:
    return is_same(written, run) if plan is None else is_same_so_far(written, run, plan)
