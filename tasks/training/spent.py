"""Where the wall time of a phase's training went: `spent.jsonl` in its folder, a line for each life of the trainer.

The trainer counts the seconds of each work (`trainer.process.watchdog`), and its last heartbeat has them. What the processes had besides –
their start, their imports, and what came after the last heartbeat of one that was killed – is `process`. Updates that a later life did
again are `replay`. So the parts are together the time between the start of each life and its end, and the pauses between lives.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainer.base.frozen import Frozen
from trainer.base.run_folder import RunFolder
from trainer.base.wording import about
from trainer.process.heartbeat import read_heartbeat

PROCESS, REPLAY, PAUSE = "process", "replay", "pause"
STEPPING = ("step", "data", "barrier")
"""What an update takes."""
LEAST_SHARE = 0.01


class LifeSpent(Frozen):
    """One life of the trainer.

    Attributes:
        wall_seconds: from the start of its processes to their end.
        pause_seconds: from the end of the life before, where the same launcher started this one; else 0.
        seconds: of each work, as the trainer counted them; nothing where it was ended before its first heartbeat.
        from_step, to_step: the updates that were applied when it began, and when it ended.
        peak_memory_bytes: the most that its process held in this machine's memory; None where nobody said.
        conditions: digest of the machine, versions and code (`tasks.prediction.conditions`); empty where it was not on this machine.
        compiled: whether it compiled a step that its recipe's folder did not have yet.
    """

    wall_seconds: float
    pause_seconds: float
    seconds: dict[str, float]
    from_step: int
    to_step: int
    peak_memory_bytes: int | None = None
    conditions: str = ""
    compiled: bool | None = None


class Spent(Frozen):
    """Where the time of a phase's training went. The seconds add up to `wall_seconds`."""

    wall_seconds: float
    lives: int
    seconds: dict[str, float]
    peak_memory_bytes: int | None = None


class Clock:
    """Writes a line for each life of a run that one launcher starts.

    Args:
        conditions: as in `LifeSpent`.
    """

    def __init__(self, folder: Path, conditions: str = "") -> None:
        self._folder, self._conditions = folder, conditions
        self._ended: float | None = None

    @contextmanager
    def life(self, from_step: int) -> Iterator[None]:
        """One life, however it ends. What cannot be written is not written: no training fails for it."""
        started = time.monotonic()
        pause = 0.0 if self._ended is None else started - self._ended
        before = read_heartbeat(self._folder).get("time"), read_heartbeat(self._folder).get("pid")
        compiled = compiled_steps(self._folder)
        try:
            yield
        finally:
            self._ended = time.monotonic()
            said = read_heartbeat(self._folder)
            is_new = (said.get("time"), said.get("pid")) != before
            life = LifeSpent(
                wall_seconds=self._ended - started,
                pause_seconds=pause,
                seconds=said.get("spent", {}) if is_new else {},
                from_step=from_step,
                to_step=said.get("step", from_step) if is_new else from_step,
                peak_memory_bytes=said.get("peak_memory_bytes") if is_new else None,
                conditions=self._conditions,
                compiled=compiled_steps(self._folder) > compiled,
            )
            with suppress(OSError), open(RunFolder(self._folder).spent, "a") as file:
                file.write(life.model_dump_json() + "\n")


def read_spent(folder: Path) -> Spent | None:
    """The account of all lives of the run in a folder; None where there is none. A line that does not read is passed over."""
    lives = read_lives(folder)
    if not lives:
        return None
    seconds: dict[str, float] = {}
    for life, after in zip(lives, [*lives[1:], None], strict=True):
        for work, spent in _parts(life, after).items():
            seconds[work] = seconds.get(work, 0.0) + spent
    wall = sum(life.wall_seconds + life.pause_seconds for life in lives)
    peak = max((life.peak_memory_bytes for life in lives if life.peak_memory_bytes), default=None)
    parts = {work: spent for work, spent in seconds.items() if spent}
    return Spent(wall_seconds=wall, lives=len(lives), seconds=parts, peak_memory_bytes=peak)


def compiled_steps(folder: Path) -> int:
    """How many compiled updates the recipe of this run has."""
    with suppress(OSError):
        return sum(path.name.startswith("jit_train_step") for path in RunFolder(folder).compilation_cache.iterdir())
    return 0


def read_lives(folder: Path) -> list[LifeSpent]:
    """The lives of the run in a folder. A line that does not read is passed over."""
    return list(_lives(folder))


def words_of(spent: Spent) -> str:
    """`about 4 min: step 71 %, compile 12 %, …`, the largest part first; what is less than one percent is left out."""
    shares = sorted(((seconds / spent.wall_seconds, work) for work, seconds in spent.seconds.items()), reverse=True)
    parts = ", ".join(f"{work} {share:.0%}".replace("%", " %") for share, work in shares if share >= LEAST_SHARE)
    return f"{about(spent.wall_seconds)}: {parts}"


def _parts(life: LifeSpent, after: LifeSpent | None) -> dict[str, float]:
    """What one life is made of. The updates that the next life does again were lost, so their time here is its replay."""
    parts = {**life.seconds, PROCESS: max(0.0, life.wall_seconds - sum(life.seconds.values())), PAUSE: life.pause_seconds}
    updates = life.to_step - life.from_step
    lost = life.to_step - after.from_step if after else 0
    if updates <= 0 or lost <= 0:
        return parts
    share = min(1.0, lost / updates)
    kept = {work: parts[work] * (1 - share) for work in STEPPING if work in parts}
    replay = sum(parts[work] * share for work in kept)
    return {**parts, **kept, REPLAY: replay}


def _lives(folder: Path) -> Iterator[LifeSpent]:
    path = RunFolder(folder).spent
    lines: Sequence[str] = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        with suppress(ValueError):
            found: Any = json.loads(line)
            yield LifeSpent.model_validate(found)
