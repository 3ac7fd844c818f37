"""Follows a run that is at work, wherever it is: by the files of its folder alone. The launcher only says when its processes have ended."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from phasewise.tasks.holder import AlreadyHeld, holder_of, holding
from phasewise.tasks.training.protocol import Attempt, Launcher, Life, log_of
from phasewise.tasks.training.silence import Silence
from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.exit_codes import ExitCode
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.process.stopping import stop_seconds

POLL_SECONDS = 0.5


def follow(attempt: Attempt, folder: Path, on_rows: Callable[[list[Row]], None], check: Callable[[], None]) -> int:
    """Until all hosts have ended, and how they did. Whatever `check` or a signal raises stops them first: they save and end.

    Args:
        on_rows: called with the rows of `metrics.jsonl` that came since the last call.
        check: called about twice a second.
    """
    seen = len(read_metrics(RunFolder(folder).metrics))
    silence = Silence(folder)
    try:
        while (code := attempt.look()) is None:
            seen = _report_new(folder, seen, on_rows)
            check()
            if words := silence.look():
                attempt.kill()
                with open(log_of(folder, 0), "ab") as log:
                    log.write(f"trainer: the trainer {words}. It was ended.\n".encode())
                return ExitCode.STALLED
            attempt.wait(POLL_SECONDS)
    except BaseException:
        stop(attempt)
        raise
    _report_new(folder, seen, on_rows)
    return code


def stop(attempt: Attempt) -> None:
    """Have all hosts save and end. They are cut off when their time is over, or where a second interruption asks for that."""
    try:
        attempt.stop()
        until = time.monotonic() + stop_seconds() + attempt.send_seconds
        while attempt.look() is None and (left := until - time.monotonic()) > 0:
            attempt.wait(min(left, POLL_SECONDS))
    finally:
        if attempt.look() is None:
            attempt.kill()


@contextmanager
def owned(folder: Path, launcher: Launcher) -> Iterator[None]:
    """Be the one launcher of the run in this folder. The lock goes with this process, however it ends.

    Raises:
        TrainingError: another one is at work.
    """
    try:
        with holding(RunFolder(folder).launcher_lock, f"the {launcher.kind} launcher"):
            yield
    except AlreadyHeld as held:
        raise TrainingError(_refusal(folder, str(held.holder))) from None


def check_unowned(folder: Path, launcher: Launcher) -> None:
    """Refuse before anything in the folder is touched.

    Raises:
        TrainingError: another launcher is at work on the run of this folder.
    """
    holder = holder_of(RunFolder(folder).launcher_lock)
    other = str(holder) if holder else launcher.owner(folder)
    if other:
        raise TrainingError(_refusal(folder, other))


def start_and_follow(launcher: Launcher, life: Life, on_rows: Callable[[list[Row]], None], check: Callable[[], None]) -> int:
    """One life of a run."""
    attempt = launcher.start(life)
    try:
        return follow(attempt, life.folder, on_rows, check)
    finally:
        attempt.close()


def _refusal(folder: Path, other: str) -> str:
    return f"a run has one launcher at a time, found {other} at work on {folder}: wait for it, or stop it."


def _report_new(folder: Path, seen: int, on_rows: Callable[[list[Row]], None]) -> int:
    rows = read_metrics(RunFolder(folder).metrics)
    if len(rows) > seen:
        on_rows(rows[seen:])
    return len(rows)
