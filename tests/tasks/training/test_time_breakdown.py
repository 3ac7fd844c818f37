import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from phasewise.tasks.home import Home
from phasewise.tasks.phase_state import AT_WORK, CUT_SHORT, State
from phasewise.tasks.training import task, time_breakdown
from phasewise.tasks.training import time_breakdown as module
from phasewise.tasks.training.task import training_markdown
from phasewise.trainer.base.run_folder import LIFE_NAME, SPENT_NAME
from phasewise.trainer.process.watchdog import SUSPENDED, Work
from tests.tasks.training.conftest import STEPS, BuildRun


def breakdown_of(folder: Path) -> time_breakdown.TimeBreakdown:
    found: Any = time_breakdown.read_time_breakdown(folder)
    assert sum(found.seconds.values()) == pytest.approx(found.wall_seconds)
    return found


def test_the_parts_are_the_wall_time_and_updates_done_again_are_replay(tmp_path: Path):
    first = {"wall_seconds": 20.0, "seconds": {"compile": 5.0, "step": 8.0, "data": 2.0, "save": 1.0}, "from_step": 0, "to_step": 10}
    second = {"wall_seconds": 14.0, "seconds": {"compile": 1.0, "step": 10.0}, "from_step": 6, "to_step": 20, "pause_seconds": 0.5}
    lives = [time_breakdown.AttemptTime.model_validate({"pause_seconds": 0.0, **one}) for one in (first, second)]
    (tmp_path / SPENT_NAME).write_text("".join(one.model_dump_json() + "\n" for one in lives))
    spent = breakdown_of(tmp_path)
    assert (spent.lives, spent.wall_seconds) == (2, 34.5)
    wanted = {"compile": 6.0, "step": 14.8, "data": 1.2, "save": 1.0, "process": 7.0, "pause": 0.5, "replay": 4.0}
    assert spent.seconds == pytest.approx(wanted)


class Machine:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.token = folder, 1_700_000_000.0, 0
        folder.mkdir(exist_ok=True)
        patch.setattr(module.time, "time", lambda: self.now)
        patch.setattr(module.time, "monotonic", lambda: self.now)

    def beat(self, step: int, spent: dict[str, float]) -> None:
        beat = {"time": datetime.fromtimestamp(self.now, UTC).isoformat(), "pid": 7, "token": self.token, "step": step, "spent": spent}
        (self.folder / "heartbeat").write_text(json.dumps({**beat, "peak_memory_bytes": 5}))

    def lose(self, *, at_step: int, seconds: float) -> None:
        self.token += 1
        spent, life = self.folder / SPENT_NAME, self.folder / LIFE_NAME
        before = spent.read_bytes() if spent.exists() else b""
        with time_breakdown.Clock(self.folder).attempt(0, slice_name="cpu-2") as note:
            self.now += seconds
            self.beat(at_step, {"step": seconds - 3.0, "compile": 2.0})
            note()
            kept = life.read_bytes()
        spent.write_bytes(before)  # the launcher was killed before it came to that
        life.write_bytes(kept)

    def end(self, from_step: int, to_step: int, seconds: float) -> None:
        self.token += 1
        with time_breakdown.Clock(self.folder).attempt(from_step, slice_name="cpu-1"):
            self.now += seconds
            self.beat(to_step, {"step": seconds - 1.0})


def test_an_attempt_that_nobody_saw_end_counts_with_its_losses_here_and_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    machine = Machine(tmp_path / "run", monkeypatch)
    began = machine.now
    machine.lose(at_step=10, seconds=20.0)
    so_far = breakdown_of(machine.folder)
    assert (so_far.lives, so_far.wall_seconds) == (1, 20.0)
    machine.now += 40.0
    machine.end(from_step=6, to_step=20, seconds=14.0)
    spent = breakdown_of(machine.folder)
    assert spent.wall_seconds == pytest.approx(machine.now - began)
    replayed = {"step": 17.0 * 0.6 + 13.0, "replay": 17.0 * 0.4}
    assert spent.seconds == pytest.approx({**replayed, "compile": 2.0, "process": 2.0, "away": 40.0})
    assert spent.slices == pytest.approx({"cpu-2": 20.0, "cpu-1": 14.0})
    assert [life.is_whole for life in time_breakdown.read_attempts(machine.folder)] == [False, True]
    assert not (machine.folder / LIFE_NAME).exists()


def test_the_end_of_an_attempt_without_heartbeat_or_progress_is_stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    machine = Machine(tmp_path / "run", monkeypatch)
    with time_breakdown.Clock(machine.folder).attempt(0) as note:
        machine.now += 10.0
        beat = {"time": "then", "pid": 7, "step": 5, "spent": {"step": 9.0}, "work": "step", "seconds": 4.0}
        (machine.folder / "heartbeat").write_text(json.dumps(beat))
        note()
        machine.now += 60.0
    assert breakdown_of(machine.folder).seconds == pytest.approx({"step": 5.0, module.STALLED: 64.0, "process": 1.0})


def test_on_another_machine_which_has_no_heartbeat_of_it_what_was_kept_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    machine = Machine(tmp_path / "run", monkeypatch)
    machine.lose(at_step=10, seconds=20.0)
    (machine.folder / "heartbeat").unlink()
    machine.folder = machine.folder.rename(tmp_path / "elsewhere")
    machine.now += 5.0
    machine.end(from_step=10, to_step=20, seconds=14.0)
    assert breakdown_of(machine.folder).seconds == pytest.approx({"step": 30.0, "compile": 2.0, "process": 2.0, "away": 5.0})


def test_the_heartbeat_of_an_attempt_before_is_not_this_ones(tmp_path: Path):
    (tmp_path / "heartbeat").write_text(json.dumps({"time": "then", "pid": 1, "step": 7, "spent": {"step": 99.0}}))
    clock = time_breakdown.Clock(tmp_path)
    with clock.attempt(from_step=7):
        pass
    with clock.attempt(from_step=7):
        (tmp_path / "heartbeat").write_text(json.dumps({"time": "now", "pid": 2, "step": 9, "spent": {"step": 0.0}}))
    spent = breakdown_of(tmp_path)
    assert spent.wall_seconds < 5
    assert set(spent.seconds) <= {"process", "pause"}
    first, second = time_breakdown.read_attempts(tmp_path)
    assert (first.pause_seconds, first.to_step, second.to_step) == (0.0, 7, 9)
    assert second.pause_seconds > 0


def goodput_of(folder: Path, sessions: list[list[tuple[int, Any]]], attempts: list[dict[str, Any]]) -> dict[str, float]:
    """Of sessions, each a process with (second, stage) pairs. The end of a session is None or `CUT_SHORT`."""
    home = Home(folder)
    for path in (home.run("r", "p"), home.stage_log("r", "p").parent):
        path.mkdir(parents=True, exist_ok=True)
    fields = {"flow_run": "", "host": "h", "pid": 1}
    lines: list[str] = []
    for number, session in enumerate(sessions):
        for second, state in session:
            end = {"state": None, "why": CUT_SHORT} if state == CUT_SHORT else {"state": state}
            lines.append(json.dumps({**fields, **end, "since": datetime.fromtimestamp(second, UTC).isoformat(), "process": str(number)}))
    home.stage_log("r", "p").write_text("\n".join([*lines, '{"state": "cut off']))
    ended = [time_breakdown.AttemptTime.model_validate({"pause_seconds": 0.0, "from_step": 0, "to_step": 10, **one}) for one in attempts]
    (home.run("r", "p") / SPENT_NAME).write_text("".join(one.model_dump_json() + "\n" for one in ended))
    found: Any = time_breakdown.read_goodput(home, "r", "p")
    assert list(found.seconds) == list(time_breakdown.BUCKETS)
    assert sum(found.seconds.values()) == pytest.approx(found.wall_seconds, rel=1e-6)
    return {bucket: seconds for bucket, seconds in found.seconds.items() if seconds}


FIRST = [(1000, State.QUEUED), (1003, State.PREPARING), (1010, State.CHECKING_DATA), (1012, State.TRAINING), (1042, CUT_SHORT)]
RESUMED = [(1100, State.PREPARING), (1101, State.TRAINING), (1121, State.CHECKING_TRAINING), (1122, State.EVALUATING), (1130, State.GATING)]
ATTEMPTS = [
    {"wall_seconds": 29.0, "seconds": {"compile": 5.0, "step": 20.0, "data": 2.0}, "to_step": 10, "started_at": 1012.5},
    {"wall_seconds": 19.0, "seconds": {"restore": 1.0, "step": 15.0, SUSPENDED: 2.0}, "from_step": 5, "to_step": 20, "started_at": 1101.5},
]


def test_goodput_divides_the_whole_wall_time_of_a_phase(tmp_path: Path):
    """With a kill, a resume, a later run of the finished phase, and a second evaluation."""
    later = [[(2000, State.PREPARING), (2001, None)], [(3000, State.EVALUATING), (3004, None)]]
    found = goodput_of(tmp_path, [FIRST, [*RESUMED, (1133, None)], *later], ATTEMPTS)
    assert found == pytest.approx(
        {
            "queue": 3.0, "preparation": 8.0, "checks": 2.0 + 1.0 + 3.0, "compilation": 5.0, "productive": 10.0 + 15.0,
            "data loading": 1.0, "recomputation": 11.0, "checkpoint restore": 1.0, "evaluation": 8.0 + 4.0,
            "idle": 1100.0 - 1042.0 + 2.0, "startup": 2.0 + 1.0 + 1.0 + 1.0,
        }
    )  # fmt: skip


def test_an_archived_training_is_not_in_the_goodput_of_the_next(tmp_path: Path):
    again = [(5000 + at - 1100, state) for at, state in RESUMED]
    one = {"wall_seconds": 20.0, "seconds": {"step": 18.0}, "started_at": 5001.2}
    found = goodput_of(tmp_path, [FIRST, [*RESUMED, (1133, None)], [*again, (5033, None)]], [one])
    assert found == {"preparation": 1.0, "productive": 18.0, "startup": 2.0, "checks": 4.0, "evaluation": 8.0}


def test_a_training_that_is_older_than_the_log_is_part_of_the_wall_time(tmp_path: Path):
    judged = [(9000, State.CHECKING_DATA), (9001, State.TRAINING), (9002, State.EVALUATING), (9012, None)]
    found = goodput_of(tmp_path, [judged], [ATTEMPTS[0]])
    assert found == {"compilation": 5.0, "productive": 20.0, "data loading": 2.0, "startup": 2.0, "checks": 1.0, "evaluation": 10.0}


def test_a_home_without_a_log_has_the_goodput_of_its_training(tmp_path: Path):
    assert time_breakdown.read_goodput(Home(tmp_path), "r", "p") is None
    found = goodput_of(tmp_path, [], [ATTEMPTS[0]])
    assert found == {"productive": 20.0, "compilation": 5.0, "data loading": 2.0, "startup": 2.0}


def test_every_work_and_stage_has_one_bucket():
    parts = [part for parts in time_breakdown.BUCKETS.values() for part in parts]
    assert len(parts) == len(set(parts))
    assert {*get_args(Work), *AT_WORK} - {State.TRAINING} <= set(parts)


def test_the_page_of_a_training_has_table_and_link(build_run: BuildRun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task, "site_address", lambda *_: "http://here/phase")
    run = build_run("paged")
    page = training_markdown(run, {"step": 45, "loss": 2.5, "learning_rate": 0.01}, 1234.0)
    assert "[Live, with every measure](http://here/phase)" in page
    for line in (f"step | 45 of {STEPS}", "done | 50 %", "loss | 2.500", "learning rate | 0.01", "tokens a second | 1,234"):
        assert f"| {line} |" in page
    assert "| loss | – |" in training_markdown(run, {}, 0.0)
    assert "| loss | NaN |" in training_markdown(run, {"step": 3, "loss": None}, 0.0)
