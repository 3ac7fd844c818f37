"""The folder of a run: the names of its files, its events (`events.jsonl`) and its result (`result.json`)."""

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from phasewise.trainer.base.identity import find_sealed
from phasewise.trainer.base.storage import as_path

METRICS_NAME = "metrics.jsonl"
RESULT_NAME = "result.json"
CHECKPOINTS_NAME = "checkpoints"
RUN_NAME = "run.json"
LOG_NAME = "trainer.log"
CACHES_NAME = "caches.json"
SPENT_NAME = "spent.jsonl"
LIFE_NAME = "life.json"
HEARTBEAT_NAME = "heartbeat"
TOKEN_NAME = "token.json"
LOCK_NAME = "lock"
OWNER_NAME = "launcher.lock"
PASSED_OVER_NAME = "passed_over.json"
QUESTION_NAME = "recovery.json"
ROLL_CALL_NAME = "roll-call"
EVALUATION_NAME = "evaluation.json"
TAKE_OVER_NAME = "lock.take-over"
WRITING_NAME = "lock.writing"
COMPILED_NAME = "compilation-cache"
ORBAX_WRITES = ".orbax-checkpoint-tmp"  # in the name of a checkpoint that is still written
OF_ONE_MACHINE = frozenset({HEARTBEAT_NAME, TOKEN_NAME, LOCK_NAME, TAKE_OVER_NAME, WRITING_NAME, OWNER_NAME, ROLL_CALL_NAME, COMPILED_NAME})
SUPERSEDED = ".superseded-"  # between a phase's name and the digest of the archived run
EventKind = Literal[
    "restart", "stalled", "spike", "rolled_back", "preempted", "diverged", "resumed", "fenced", "replanned", "asked", "moved", "extended",
    "forecast",
]  # fmt: skip


class RunFolder:
    """Paths in the folder of one run, on this machine or on a store. Nothing is read or created."""

    def __init__(self, folder: str | Path) -> None:
        self.path = path = as_path(folder)
        self.run_file = path / RUN_NAME
        self.caches = path / CACHES_NAME
        self.metrics = path / METRICS_NAME
        self.row_losses = path / "row-losses"
        self.events = path / "events.jsonl"
        self.spent = path / SPENT_NAME  # a line for each attempt
        self.life = path / LIFE_NAME  # the attempt that is running
        self.conditions = path / "conditions.json"  # device, versions and variables of the newest updates
        self.result = path / RESULT_NAME
        self.evaluation = path / EVALUATION_NAME
        self.passed_over = path / PASSED_OVER_NAME  # permanently skipped updates
        self.forecast = path / "forecast.json"  # the expected loss of each update with a band
        self.question = path / QUESTION_NAME  # in the form of a verdict, if recovery is `ask`, or the loss left the forecast's band
        self.checkpoints = path / CHECKPOINTS_NAME
        self.heartbeat = path / HEARTBEAT_NAME
        self.trainer_lock = path / LOCK_NAME
        self.take_over_lock = path / TAKE_OVER_NAME  # held while a new trainer's lock replaces a silent one's
        self.writing_lock = path / WRITING_NAME  # held while files are replaced or deleted
        self.token = path / TOKEN_NAME  # the number of the last trainer
        self.launcher_lock = path / OWNER_NAME
        self.roll_calls = path / ROLL_CALL_NAME  # a folder for each attempt
        self.tensorboard = path / "tensorboard"
        self.weights_and_biases = path / "wandb"
        self.compilation_cache = path.parent / COMPILED_NAME  # compiled steps, shared by all phases of the recipe
        self.mlflow = path / "mlflow.json"  # the run in MLflow, and the last step sent

    def checkpoint(self, step: int) -> Path:
        """Return the checkpoint after `step` updates."""
        return self.checkpoints / str(step)

    def log(self, host: int = 0) -> Path:
        """Return a host's log. The first one's log repeats the last lines of all others."""
        return self.path / (LOG_NAME if host == 0 else f"trainer-{host}.log")

    def superseded(self, digest: str, number: int = 1) -> Path:
        """Return the archive of the run with this digest, and `number` from 1 among equal digests."""
        again = "" if number == 1 else f"-{number}"
        return self.path.with_name(f"{self.path.name}{SUPERSEDED}{digest[:8]}{again}")


def is_kept(name: str) -> bool:
    """Return whether a file or folder of this name is a result of the run, and not of one process, machine or moment."""
    return not (name.startswith(".") or ORBAX_WRITES in name or name in OF_ONE_MACHINE)


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return the result in a run's folder, or None if it is missing or was changed. (The trainer rewrites it from the last checkpoint.)"""
    return find_sealed(folder / RESULT_NAME)


def append_event(folder: str | Path, kind: EventKind, step: int | None, text: str) -> None:
    """Append an event for people. If it cannot be written, the run continues without it."""
    event = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "kind": kind, "step": step, "text": text}
    append_line(RunFolder(folder).events, event)


def append_line(path: Path, value: Any) -> None:
    """Append a value as a JSON line, after a line that a kill may have cut short. A failed write is ignored."""
    line = json.dumps(value, ensure_ascii=False).encode() + b"\n"
    with suppress(OSError):
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(number).st_size
            is_torn = size and os.pread(number, 1, size - 1) != b"\n"
            os.write(number, b"\n" * bool(is_torn) + line)
        finally:
            os.close(number)


def read_events(folder: str | Path) -> list[dict[str, Any]]:
    """Return all whole events (`time`, `kind`, `step`, `text`), oldest first."""
    path = RunFolder(folder).events
    events: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return events
