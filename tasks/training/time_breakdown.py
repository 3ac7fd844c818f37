"""The breakdown of a training's wall time: `spent.jsonl` in the run's folder has a line per attempt.

The trainer's last heartbeat has the seconds of each work. The other time of the processes is `process`, updates that a later attempt
repeats are `replay`. `life.json` has the time of a running attempt: if its launcher is lost, the next launcher turns it into a line.

The goodput of a phase divides its whole wall time: the log of stages has the time around the training.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from pathlib import Path

from pydantic import Field

from phasewise.tasks.home import Home
from phasewise.tasks.locks import PROCESS
from phasewise.tasks.phase_state import CUT_SHORT, Stage, State, last_sign, read_stages, read_work
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.base.wording import about
from phasewise.trainer.process.watchdog import STOPPED_SECONDS, SUSPENDED, read_heartbeat, signature

STEPPING = ("step", "data", "barrier")  # the works of an update
STALLED = "stalled"  # time of an update that a process did not finish, and of a process without heartbeat
LEAST_SHARE = 0.01
NOTE_SECONDS = 2.0
BUCKETS: Mapping[str, tuple[str, ...]] = {
    "productive": ("step", "first step", "barrier"),
    "compilation": ("compile",),
    "data loading": ("data",),
    "checkpoint save": ("save", "finish"),
    "checkpoint restore": ("restore",),
    "evaluation": ("evaluation", State.EVALUATING),
    "recomputation": ("replay",),
    "startup": ("start", "process"),
    "preparation": (State.PREPARING,),
    "checks": (State.CHECKING_DATA, State.CHECKING_TRAINING, State.GATING),
    "idle": ("pause", "away", STALLED, SUSPENDED),
    "queue": (State.QUEUED,),
}
"""Part of a phase's wall time → works of the trainer, parts of `TimeBreakdown` and stages."""


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


class Goodput(Frozen):
    """The wall time of a phase up to its end. The clock stops with the work, also for a refusal, and runs on after an interruption."""

    wall_seconds: float
    seconds: dict[str, float]  # all of `BUCKETS`

    @property
    def goodput(self) -> float:
        """The productive share of the wall time."""
        return self.seconds["productive"] / self.wall_seconds if self.wall_seconds else 0.0


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
        before, beat, beat_at = read_heartbeat(self.folder), signature(self.folder), began

        def so_far(*, is_over: bool = False) -> AttemptTime:
            said = read_heartbeat(self.folder)
            if all(said.get(name) == before.get(name) for name in ("time", "pid")):  # of the previous attempt
                said = {}
            seconds: dict[str, float] = dict(said.get("spent", {}))
            silent = time.monotonic() - beat_at
            if is_over and (work := said.get("work")) in ("step", "barrier"):
                seconds[STALLED] = min(said["seconds"], seconds[work])
                seconds[work] -= seconds[STALLED]
            if is_over and said and silent > STOPPED_SECONDS:
                seconds[STALLED] = seconds.get(STALLED, 0.0) + silent
            return AttemptTime(
                wall_seconds=time.monotonic() - began, pause_seconds=pause, seconds=seconds, from_step=from_step,
                to_step=said.get("step", from_step), peak_memory_bytes=said.get("peak_memory_bytes"), slice_name=slice_name,
                started_at=started_at, is_whole=False,
            )  # fmt: skip

        def note() -> None:
            nonlocal noted, beat, beat_at
            if (found := signature(self.folder)) != beat:
                beat, beat_at = found, time.monotonic()
            if (now := time.monotonic() - began) - noted >= NOTE_SECONDS:
                noted = now
                with suppress(OSError):
                    write_json(run.life, {"life": so_far().model_dump(mode="json")})

        note()
        try:
            yield note
        finally:
            note()
            self._ended = time.monotonic()
            with suppress(OSError), open(run.spent, "a", encoding="utf-8") as file:
                file.write(so_far(is_over=True).but(is_whole=True).model_dump_json() + "\n")
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


def read_goodput(home: Home, run_name: str, phase: str) -> Goodput | None:
    """Return the goodput of a phase up to now, or None before its first start. An older home has only the time of the training."""
    folder = home.run(run_name, phase)
    spent, stages = read_time_breakdown(folder), read_stages(home.stage_log(run_name, phase))
    parts = defaultdict[str, float](float, spent.seconds if spent else {})
    wall_seconds = spent.wall_seconds if spent else 0.0
    if stages:
        if (last := stages[-1]).state is not None:
            is_live = last.process == PROCESS or read_work(home, run_name, phase).is_live
            end = datetime.now(UTC).isoformat() if is_live else last_sign(home, run_name, phase, last)
            stages.append(last.but(state=None, why=CUT_SHORT, since=end))
        parts.pop("away", None)  # the log has this time
        attempts = filter(None, (*read_attempts(folder), read_open_attempt(folder)))
        staged = _staged_seconds(stages, next((one.started_at for one in attempts), 0.0))
        rest = staged.get(State.TRAINING, 0.0) - sum(parts.values())  # negative if the training is older than the log
        wall_seconds = sum(staged.values()) + max(0.0, -rest)
        staged.pop(State.TRAINING, None)
        parts["process"] += max(0.0, rest)
        for state, seconds in staged.items():
            parts[state] += seconds
    elif not spent:
        return None
    by_bucket = {bucket: round(sum(parts[part] for part in of_bucket), 3) for bucket, of_bucket in BUCKETS.items()}
    return Goodput(wall_seconds=round(wall_seconds, 3), seconds=by_bucket)


def _staged_seconds(stages: Iterable[Stage], first_attempt: float) -> dict[str, float]:
    """Return the seconds of each stage, and of `away` between an interruption and the next session.

    A session is the stages of a process up to the end of its work. Sessions of an archived training end before the first attempt, and do
    not count. A later session with only preparation does not count: it found a finished phase.
    """
    sessions: list[list[tuple[Stage, float]]] = [[]]
    for stage in stages:
        sessions[-1].append((stage, datetime.fromisoformat(stage.since).timestamp()))
        if stage.state is None:
            session = sessions[-1]
            trained = [end for (one, _), (_, end) in pairwise(session) if one.state == State.TRAINING]
            if trained and trained[-1] < first_attempt:
                sessions.clear()
            elif len(sessions) > 1 and not stage.why and {one.state for one, _ in session} <= {State.QUEUED, State.PREPARING, None}:
                sessions.pop()
            sessions.append([])
    seconds, interrupted_at = defaultdict[str, float](float), None
    for session in filter(None, sessions):
        if interrupted_at is not None:
            seconds["away"] += session[0][1] - interrupted_at
        for (one, start), (_, end) in pairwise(session):
            seconds[str(one.state)] += end - start
        last, end = session[-1]
        interrupted_at = end if last.why == CUT_SHORT else None
    return seconds


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
