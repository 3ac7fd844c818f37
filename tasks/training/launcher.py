"""Starts the trainer as a process of its own, follows its metrics, and goes on where a killed one stopped."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.data.plan import DataPlan
from tasks.progress import say
from tasks.training.same_run import CACHES_NAME, is_same, is_same_so_far, note_caches, read_run
from trainer.base.errors import PhasewiseError, TrainingDiverged, TrainingError, VerdictError
from trainer.base.exit_codes import GOES_ON, ExitCode
from trainer.base.storage import as_path, digest_of_json, read_json, write_json
from trainer.checkpoints.files import is_committed, saved_steps
from trainer.checkpoints.path import checkpoint_path
from trainer.config import RunConfig
from trainer.metrics import METRICS_NAME, Row, read_metrics
from trainer.process.stopping import stop_seconds

MAX_RESTARTS = 2
POLL_SECONDS = 0.5


def finished_result(run: RunConfig, plan: DataPlan | None = None) -> dict[str, Any] | None:
    """The result of exactly this run, if it has one; one that was trained on other data or settings doesn't count.

    A result names the digest of its run, and one of before that of its `run.json` with the places in it. Wherever the home was moved to,
    these two belong together, and `run.json` says which run it is.

    Args:
        plan: caches that it lacks for a change of their code alone do not speak against a result; None is that all caches are there.
    """
    folder = as_path(run.output)
    if not (folder / "result.json").exists():
        return None
    result = read_json(folder / "result.json")
    if result.get("run_digest") != run.digest:
        written = read_run(folder)
        if written is None or result.get("run_digest") not in (written.digest, written.digest_with_places):
            return None
        if not _is_same(written, run, plan):
            return None
    return {**result, "checkpoint": str(checkpoint_path(run.output, run.stop_step))}


def is_begun(run: RunConfig, plan: DataPlan | None = None) -> bool:
    """Whether what is in the run's folder is of exactly this run; `plan` as in `finished_result`."""
    written = read_run(as_path(run.output))
    return written is not None and _is_same(written, run, plan)


def launch_trainer(run: RunConfig, on_rows: Callable[[list[Row]], None], check: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Train the phase to its end, from its last checkpoint if it has one, and return its result.

    A trainer that was killed or preempted, or that stalled, is started again, `MAX_RESTARTS` times at most. One that was refused or
    diverged would do so again. Whatever is raised here while it trains, by a signal or by `check`, stops it first: it saves the state after
    its last update, for which it has `trainer.process.stopping.stop_seconds`.

    Args:
        on_rows: called with the rows of `metrics.jsonl` that came since the last call.
        check: called about twice a second.

    Raises:
        VerdictError: the trainer found no verdict for these bytes.
        TrainingDiverged: the loss is not finite any more.
        TrainingError: the process ended otherwise, more often than `MAX_RESTARTS` allows.
    """
    if result := finished_result(run):
        if not (Path(run.output) / CACHES_NAME).exists():  # a run of before
            note_caches(run, read_run(Path(run.output)))
        return result
    _set_aside_another_run(run)
    note_caches(run)
    run_file = Path(run.output) / "run.json"
    write_json(run_file, run.model_dump(mode="json"))
    log = Path(run.output) / "trainer.log"
    log_before = log.stat().st_size if log.exists() else 0
    if (saved := last_saved_step(run)) is not None:
        say(f"{run.phase}: going on from step {saved:,} of {run.stop_step:,}")
    code = _run_or_stop(run, run_file, on_rows, check)
    restarts = 0
    while (code < 0 or code in GOES_ON) and restarts < MAX_RESTARTS:
        say(f"{run.phase}: the trainer {_ending(code)}; going on from its last checkpoint")
        code = _run_or_stop(run, run_file, on_rows, check)
        restarts += 1
    if code:
        raise _failure(run, code, log, log_before)
    return read_json(Path(run.output) / "result.json")


def last_saved_step(run: RunConfig) -> int | None:
    """The newest committed checkpoint of the run; None where there is none."""
    folder = Path(run.output) / "checkpoints"
    return next((step for step in reversed(saved_steps(folder)) if is_committed(folder / str(step))), None)


def _run_or_stop(run: RunConfig, run_file: Path, on_rows: Callable[[list[Row]], None], check: Callable[[], None]) -> int:
    """One life of the trainer; where it is stopped from here, what of it is saved is said."""
    try:
        return _run_process(run_file, on_rows, check)
    except BaseException:
        say(f"{run.phase}: {_what_is_saved(run)}")
        raise


def _run_process(run_file: Path, on_rows: Callable[[list[Row]], None], check: Callable[[], None]) -> int:
    """One life of the trainer; it dies with this process, because it holds the other end of its standard input."""
    folder = run_file.parent
    environment = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    command = [sys.executable, "-m", "trainer", str(run_file), "--with-parent"]
    seen = len(read_metrics(folder / METRICS_NAME))
    with (
        open(folder / "trainer.log", "ab") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            while process.poll() is None:
                seen = _report_new(folder, seen, on_rows)
                check()
                try:
                    process.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            _stop(process)
            raise
    _report_new(folder, seen, on_rows)
    return process.returncode


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Have the trainer save and end. It is cut off when its time is over, or where a second interruption asks for that.

    Its standard input stays open so long: the end of that would end it at once.
    """
    process.terminate()
    try:
        process.wait(stop_seconds())
    except BaseException as error:
        process.kill()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


def _what_is_saved(run: RunConfig) -> str:
    """How far a stopped run is saved: its last update, or how many updates are lost."""
    saved = last_saved_step(run)
    rows = read_metrics(Path(run.output) / METRICS_NAME)
    trained = rows[-1]["step"] if rows else run.start_step
    if trained == run.start_step:
        return "stopped before its first update"
    if saved == trained:
        return f"stopped after step {trained:,} of {run.stop_step:,}, which is saved; started again, it goes on from there"
    kept = "nothing of it is saved" if saved is None else f"the checkpoint of step {saved:,} is kept"
    lost = trained - (run.start_step if saved is None else saved)
    return f"stopped after step {trained:,} of {run.stop_step:,}; {kept}, and {_updates(lost)} done again"


def _updates(count: int) -> str:
    return f"{count:,} {'update is' if count == 1 else 'updates are'}"


def _report_new(folder: Path, seen: int, on_rows: Callable[[list[Row]], None]) -> int:
    rows = read_metrics(folder / METRICS_NAME)
    if len(rows) > seen:
        on_rows(rows[seen:])
    return len(rows)


def _ending(code: int) -> str:
    """How a process ended that may be started again."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended {ExitCode(code).name.lower()}"


def _failure(run: RunConfig, code: int, log: Path, log_before: int) -> Exception:
    """What this attempt said last; the log holds the earlier ones too, up to `log_before` bytes."""
    said = log.read_bytes()[log_before:].decode(errors="replace")
    lines = [line for line in said.splitlines() if line.startswith("trainer: ")]
    reason = lines[-1].removeprefix("trainer: ") if lines else f"it ended with code {code}; see {log}"
    kinds: dict[int, type[PhasewiseError]] = {ExitCode.REFUSED: VerdictError, ExitCode.DIVERGED: TrainingDiverged} if lines else {}
    return kinds.get(code, TrainingError)(f"{run.phase} was not trained: {reason}")


def _is_same(written: RunConfig, run: RunConfig, plan: DataPlan | None) -> bool:
    return is_same(written, run) if plan is None else is_same_so_far(written, run, plan)


def _set_aside_another_run(run: RunConfig) -> None:
    """A folder that holds another run (other data, other settings) is renamed, never mixed with this one and never deleted."""
    folder = Path(run.output)
    if not (folder / "run.json").exists():
        return
    written = read_run(folder)
    if written and is_same(written, run):
        return
    found = written.digest if written else digest_of_json(read_json(folder / "run.json"))
    aside = folder.with_name(f"{folder.name}.superseded-{found[:8]}")
    number = 1
    while aside.exists():
        number += 1
        aside = folder.with_name(f"{folder.name}.superseded-{found[:8]}-{number}")
    folder.rename(aside)
    say(f"{run.phase}: what was trained before had other data or settings; it is kept in {aside.name}")
