"""Monitors a run that is at work, wherever it is, by the files of its folder. The launcher only says when its processes have ended."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from phasewise.tasks.holder import AlreadyHeld, holder_of, holding
from phasewise.tasks.progress import say
from phasewise.tasks.training.launchers import Attempt, Hosts, Launcher, write_reason
from phasewise.trainer.base.errors import ExitCode, TrainingError
from phasewise.trainer.base.run_folder import RunFolder, read_events
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.process.signals import stop_seconds
from phasewise.trainer.process.watchdog import read_heartbeat, signature

POLL_SECONDS = 0.5
SILENT_SECONDS = 60.0


class HangDetection:
    """Detects that the heartbeat of a trainer ended, by this process's clock: its own watchdog cannot, if it stands still as a whole.

    Before its first beat the trainer imports and opens its data; there is no limit for that here. It dies with its launcher, and people see
    that it says nothing.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._seen = self._first = signature(folder)
        self._since = clock()

    def look(self) -> str | None:
        """Return the report on a trainer that is silent for too long; None if it is not."""
        now, seen = self._clock(), signature(self._folder)
        if seen != self._seen:
            self._seen, self._since = seen, now
        if self._seen == self._first or now - self._since <= SILENT_SECONDS:
            return None
        work = read_heartbeat(self._folder).get("work", "nothing")
        return f"gave no sign of life for {now - self._since:.0f} s (limit {SILENT_SECONDS:g} s); it was last seen at: {work}"


class ReplannedEvents:
    """Reports that a run resumes under other conditions than before (versions, variables, processor), which the trainer finds out."""

    def __init__(self, run: RunConfig) -> None:
        self._run = run
        self._seen = len(self._texts())

    def look(self) -> None:
        """Report new events."""
        texts = self._texts()
        for text in texts[self._seen :]:
            say(f"{self._run.phase}: {text}")
        self._seen = len(texts)

    def _texts(self) -> list[str]:
        return [str(event.get("text")) for event in read_events(self._run.output) if event.get("kind") == "replanned"]


def start_and_monitor(launcher: Launcher, attempt: Attempt, on_rows: Callable[[list[Row]], None], check: Callable[[], None]) -> int:
    """Start one attempt of a run and return its exit code. An exception of `check` or a signal stops the hosts first: they save and end.

    Args:
        on_rows: called with the rows of `metrics.jsonl` that came since the last call.
        check: called about twice a second.
    """
    folder = attempt.folder
    hosts = launcher.start(attempt)
    try:
        seen = len(read_metrics(RunFolder(folder).metrics))
        hangs = HangDetection(folder)

        def report_new() -> None:
            nonlocal seen
            rows = read_metrics(RunFolder(folder).metrics)
            if len(rows) > seen:
                on_rows(rows[seen:])
            seen = len(rows)

        try:
            while (code := hosts.look()) is None:
                report_new()
                check()
                if report := hangs.look():
                    hosts.kill()
                    write_reason(folder, [f"the trainer {report}. It was ended."])
                    return ExitCode.STALLED
                hosts.wait(POLL_SECONDS)
        except BaseException:
            stop(hosts)
            raise
        report_new()
        return code
    finally:
        hosts.close()


def stop(hosts: Hosts) -> None:
    """Have all hosts save and end. They are killed when their time is over, or if a second interruption asks for that."""
    try:
        hosts.stop()
        until = time.monotonic() + stop_seconds() + hosts.send_seconds
        while hosts.look() is None and (left := until - time.monotonic()) > 0:
            hosts.wait(min(left, POLL_SECONDS))
    finally:
        if hosts.look() is None:
            hosts.kill()


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


def check_unowned(folder: Path) -> None:
    """Refuse before anything in the folder is touched.

    Raises:
        TrainingError: another launcher is at work on the run of this folder.
    """
    if holder := holder_of(RunFolder(folder).launcher_lock):
        raise TrainingError(_refusal(folder, str(holder)))


def _refusal(folder: Path, other: str) -> str:
    return f"a run has one launcher at a time, found {other} at work on {folder}: wait for it, or stop it."
