"""Where the wall time of a phase's training went: `spent.jsonl` in its folder has a line for each life of the trainer.

The trainer counts the seconds of each work (`trainer.process.watchdog`), and its last heartbeat has them. What the processes had besides –
their start, their imports, and what came after the last heartbeat of one that was killed – is `process`. Updates that a later life did
again are `replay`. So the parts are together the time between the start of each life and its end, and the pauses between lives. Where a
machine was lost with its launcher, what came after its last sign is not known: until somebody goes on it is `away`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.base.wording import about

PROCESS, REPLAY, PAUSE, AWAY = "process", "replay", "pause", "away"
STEPPING = ("step", "data", "barrier")
"""What an update takes."""
LEAST_SHARE = 0.01
UNCOUNTED_SECONDS = 60.0
"""A trainer starts to count after its imports. What the clock says beyond that is a clock that was set."""


class LifeSpent(Frozen, extra="ignore"):
    """One life of the trainer.

    Attributes:
        wall_seconds: from the start of its processes to their end.
        pause_seconds: from the end of the life before, where the same launcher started this one; else 0.
        seconds: of each work, as the trainer counted them; nothing where it was ended before its first heartbeat.
        from_step, to_step: the updates that were applied when it began, and when it ended.
        peak_memory_bytes: the most that its process held in this machine's memory; None where nobody said.
        slice_name: where it trained; empty where nobody said.
        started_at: seconds since 1970; 0 in lines of before.
        is_whole: whether its end was seen; else its launcher was gone before, and `wall_seconds` is up to its last sign.
        away_seconds: from that sign to the start of the next life.
    """

    wall_seconds: float
    pause_seconds: float
    seconds: dict[str, float]
    from_step: int
    to_step: int
    peak_memory_bytes: int | None = None
    slice_name: str = ""
    started_at: float = 0.0
    is_whole: bool = True
    away_seconds: float = 0.0


class Spent(Frozen):
    """Where the time of a phase's training went. The seconds add up to `wall_seconds`.

    Attributes:
        slices: slice → seconds of the lives there; empty where nobody said.
    """

    wall_seconds: float
    lives: int
    seconds: dict[str, float]
    peak_memory_bytes: int | None = None
    slices: dict[str, float] = Field(default={})


class OpenLife(Frozen):
    """A life that goes on, as `life.json` says it.

    Attributes:
        life: what was known of it when this was written.
        before: time and process of the heartbeat that was there when it began, of an earlier one.
    """

    life: LifeSpent
    before: list[str | int | None]

    def with_its_heartbeat(self, said: Mapping[str, Any]) -> tuple[LifeSpent, Mapping[str, Any]]:
        """What its trainer said after this was written, where that is on this machine, and the heartbeat; nothing where it is another's."""
        if not said or [said.get("time"), said.get("pid")] == self.before:
            return self.life, {}
        with suppress(KeyError, TypeError, ValueError):
            on_the_clock = datetime.fromisoformat(said["time"]).timestamp() - self.life.started_at
            counted = self.life.wall_seconds + sum(said["spent"].values()) - sum(self.life.seconds.values())
            until = min(on_the_clock, counted + UNCOUNTED_SECONDS)
            if until >= self.life.wall_seconds:
                said_then = {"seconds": dict(said["spent"]), "to_step": said["step"], "peak_memory_bytes": said["peak_memory_bytes"]}
                return self.life.but(wall_seconds=until, **said_then), said
        return self.life, said


def read_spent(folder: Path) -> Spent | None:
    """The account of all lives of the run in a folder, also of one that goes on; None where there is none. A line that does not read is
    passed over.
    """
    lives = read_lives(folder)
    if (now := read_open_life(folder)) and now.life.started_at not in [life.started_at for life in lives]:
        lives.append(now.life)
    if not lives:
        return None
    seconds: dict[str, float] = {}
    for life, after in zip(lives, [*lives[1:], None], strict=True):
        for work, spent in _parts(life, after).items():
            seconds[work] = seconds.get(work, 0.0) + spent
    wall = sum(life.wall_seconds + life.pause_seconds + life.away_seconds for life in lives)
    slices: dict[str, float] = {}
    for life in lives:
        if life.slice_name:
            slices[life.slice_name] = slices.get(life.slice_name, 0.0) + life.wall_seconds
    peak = max((life.peak_memory_bytes for life in lives if life.peak_memory_bytes), default=None)
    parts = {work: spent for work, spent in seconds.items() if spent}
    return Spent(wall_seconds=wall, lives=len(lives), seconds=parts, peak_memory_bytes=peak, slices=slices)


def read_lives(folder: Path) -> list[LifeSpent]:
    """The lives of the run in a folder that have ended. A line that does not read is passed over."""
    return list(_lives(folder))


def read_open_life(folder: Path) -> OpenLife | None:
    """The life that goes on, or that nobody saw end; None where there is none."""
    with suppress(OSError, ValueError):
        return OpenLife.model_validate(read_json(RunFolder(folder).life))
    return None


def words_of(spent: Spent) -> str:
    """`about 4 min: step 71 %, compile 12 %, …`, the largest part first; what is less than one percent is left out."""
    shares = sorted(((seconds / spent.wall_seconds, work) for work, seconds in spent.seconds.items()), reverse=True)
    parts = ", ".join(f"{work} {share:.0%}".replace("%", " %") for share, work in shares if share >= LEAST_SHARE)
    where = ", ".join(f"{name} {about(seconds)}" for name, seconds in spent.slices.items()) if len(spent.slices) > 1 else ""
    return f"{about(spent.wall_seconds)}: {parts}{f'; on {where}' if where else ''}"


def _parts(life: LifeSpent, after: LifeSpent | None) -> dict[str, float]:
    """What one life is made of. The updates that the next life does again were lost, so their time here is its replay."""
    parts = {
        **life.seconds,
        PROCESS: max(0.0, life.wall_seconds - sum(life.seconds.values())),
        PAUSE: life.pause_seconds,
        AWAY: life.away_seconds,
    }
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
