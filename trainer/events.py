"""`events.jsonl` of a run: what happened to it, one JSON object a line, with `time` (UTC), `kind`, `step` and `text`.

The launcher and the trainer both append. Nothing is decided by it: it is what people are shown.
"""

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from phasewise.trainer.base.run_folder import RunFolder

EventKind = Literal[
    "restart", "stalled", "spike", "rolled_back", "preempted", "diverged", "resumed", "fenced", "replanned", "asked", "moved"
]


def append_event(folder: str | Path, kind: EventKind, step: int | None, text: str) -> None:
    """Add a line, after a line that a kill may have cut short. Where it cannot be written, the run goes on without it."""
    event = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "kind": kind, "step": step, "text": text}
    line = json.dumps(event, ensure_ascii=False).encode() + b"\n"
    with suppress(OSError):
        number = os.open(RunFolder.at(folder).events, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(number).st_size
            is_torn = size and os.pread(number, 1, size - 1) != b"\n"
            os.write(number, b"\n" * bool(is_torn) + line)
        finally:
            os.close(number)


def read_events(folder: str | Path) -> list[dict[str, Any]]:
    """All whole lines, oldest first."""
    path = RunFolder.at(folder).events
    events: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return events
