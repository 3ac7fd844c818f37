"""The breakdown of a training's wall time: `spent.jsonl` in the run's folder has a line per attempt.

The trainer's last heartbeat has the seconds of each work. The other time of the processes is `process`, updates that a later attempt
repeats are `replay`. `life.json` has the time of a running attempt: if its launcher is lost, the next launcher turns it into a line.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.base.wording import about
from phasewise.trainer.process.watchdog import read_heartbeat

STEPPING = ("step", "data", "barrier")
"""The works of an update."""
LEAST_SHARE = 0.01
NOTE_SECONDS = 10.0


class AttemptTime(Frozen, extra="ignore"):
    """The time of one attempt."""

    wall_seconds: float  # from the start of the processes to their end
    pause_seconds: float  # from the end of the previous attempt of the same launcher
    seconds: dict[str, float]  # by work, empty without a heartbeat
    from_step: int
    to_step: int  # applied updates at the start and at the end
    peak_memory_bytes: int | None = None  # on the host
    slice_name: str = ""  # empty if it is unknown
    started_at: float = 0.0  # seconds since 1970, 0 in older lines
    is_whole: bool = True  # the end is known. Else the launcher was lost, and `wall_seconds` ends at the last entry
    away_seconds: float = 0.0  # from the last entry of a lost launcher to the next attempt


class TimeBreakdown(Frozen):
    """The time of all attempts of a phase. The seconds add up to `wall_seconds`, and `lives` is the number of attempts."""

    wall_seconds: float
    lives: int
    seconds: dict[str, float]
    peak_memory_bytes: int | None = None
    slices: dict[str, float] = Field(default={})


@dataclass
class Clock:
    """Measures the attempts of one launcher. A failed write does not stop the training."""

    folder: Path
    _ended: float | None = None

    @contextmanager
    def attempt(self, from_step: int, *, slice_name: str = "") -> Iterator[Callable[[], None]]:
        """Measure one attempt. Yield a function that writes the time so far, to be called often."""
        run = RunFolder(self.folder)
        if lost := read_open_attempt(self.folder):
            lost = lost.but(away_seconds=max(0.0, time.time() - lost.started_at - lost.wall_seconds))
            with suppress(OSError), open(run.spent, "a", encoding="utf-8") as file:
                file.write(lost.model_dump_json() + "\n")
        began, started_at, noted = time.monotonic(), time.time(), -NOTE_SECONDS
        pause = 0.0 if self._ended is None else max(0.0, began - self._ended)
        before = read_heartbeat(self.folder)

        def so_far() -> AttemptTime:
            said = read_heartbeat(self.folder)
            if all(said.get(name) == before.get(name) for name in ("time", "pid")):  # of the previous attempt
                said = {}
            return AttemptTime(
                wall_seconds=time.monotonic() - began, pause_seconds=pause, seconds=dict(said.get("spent", {})), from_step=from_step,
                to_step=said.get("step", from_step), peak_memory_bytes=said.get("peak_memory_bytes"), slice_name=slice_name,
                started_at=started_at, is_whole=False,
            )  # fmt: skip

        def note() -> None:
            nonlocal noted
            if (now := time.monotonic() - began) - noted >= NOTE_SECONDS:
                noted = now
                with suppress(OSError):
                    write_json(run.life, {"life": so_far().model_dump(mode="json")})

        note()
        try:
            yield note
        finally:
            self._ended = time.monotonic()
            with suppress(OSError), open(run.spent, "a", encoding="utf-8") as file:
                file.write(so_far().but(is_whole=True).model_dump_json() + "\n")
            with suppress(OSError):
                run.life.unlink(missing_ok=True)


def read_time_breakdown(folder: Path) -> TimeBreakdown | None:
    """Return the breakdown of all attempts in a run's folder, including the running attempt, or None without attempts."""
    attempts = read_attempts(folder)
    if now := read_open_attempt(folder):
        attempts.append(now)
    if not attempts:
        return None
    seconds, slices = Counter[str](), Counter[str]()
    for attempt, after in zip_longest(attempts, attempts[1:]):
        parts = {
            **attempt.seconds,
            "process": max(0.0, attempt.wall_seconds - sum(attempt.seconds.values())),
            "pause": attempt.pause_seconds,
            "away": attempt.away_seconds,
        }
        updates, lost = attempt.to_step - attempt.from_step, attempt.to_step - after.from_step if after else 0
        if updates > 0 and lost > 0:
            share = min(1.0, lost / updates)
            replayed = {work: parts[work] * share for work in STEPPING if work in parts}
            parts |= {work: parts[work] - spent for work, spent in replayed.items()}
            parts["replay"] = sum(replayed.values())
        seconds.update(parts)
        slices.update({attempt.slice_name: attempt.wall_seconds} if attempt.slice_name else {})
    return TimeBreakdown(
        wall_seconds=sum(one.wall_seconds + one.pause_seconds + one.away_seconds for one in attempts),
        lives=len(attempts),
        seconds={work: spent for work, spent in seconds.items() if spent},
        peak_memory_bytes=max((one.peak_memory_bytes for one in attempts if one.peak_memory_bytes), default=None),
        slices=dict(slices),
    )


def read_attempts(folder: Path) -> list[AttemptTime]:
    """Return the ended attempts in a run's folder, without damaged lines."""
    path, found = RunFolder(folder).spent, list[AttemptTime]()
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(AttemptTime.model_validate_json(line))
    return found


def read_open_attempt(folder: Path) -> AttemptTime | None:
    """Return the attempt of `life.json`, which is running or lost."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = AttemptTime.model_validate(read_json(RunFolder(folder).life)["life"])
        if found.started_at not in [one.started_at for one in read_attempts(folder)]:
            return found
    return None


def words_of(spent: TimeBreakdown) -> str:
    """Return `about 4 min: step 71 %, compile 12 %, …`, the largest part first, without parts below one percent."""
    shares = sorted(((seconds / spent.wall_seconds, work) for work, seconds in spent.seconds.items()), reverse=True)
    parts = ", ".join(f"{work} {share:.0%}".replace("%", " %") for share, work in shares if share >= LEAST_SHARE)
    where = ", ".join(f"{name} {about(seconds)}" for name, seconds in spent.slices.items()) if len(spent.slices) > 1 else ""
    return f"{about(spent.wall_seconds)}: {parts}{f'; on {where}' if where else ''}"
