"""Where the time of a training went: the parts add up, and what was done twice is called that."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from phasewise.tasks.training import time_breakdown as module
from phasewise.tasks.training.time_breakdown import AttemptTime, Clock, read_attempts, read_time_breakdown
from phasewise.trainer.base.run_folder import LIFE_NAME, SPENT_NAME

pytestmark = pytest.mark.timeout(600)  # a guard against hanging

STEPS, SAVED_EVERY, HANGS_AFTER = 16, 5, 8
MACHINE = """
import os, signal, sys, time
from pathlib import Path
from phasewise.tasks.training import time_breakdown
from phasewise.tasks.training.attempts import launch_trainer
from phasewise.tasks.training.local import LocalLauncher
from phasewise.trainer.process.watchdog import read_heartbeat
from phasewise.trainer.run import read_run

run = read_run(Path(sys.argv[1]))
time_breakdown.NOTE_SECONDS = 0.1

def lose() -> None:
    "When what it is at was noted."
    life = time_breakdown.read_open_attempt(Path(run.output))
    if life and life.life.to_step >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

print(time.time(), flush=True)
launch_trainer(run, lambda rows: None, lose, LocalLauncher(python=sys.argv[2]))
"""


def life(wall: float, seconds: dict[str, float], steps: tuple[int, int], pause: float = 0.0) -> AttemptTime:
    return AttemptTime(wall_seconds=wall, pause_seconds=pause, seconds=seconds, from_step=steps[0], to_step=steps[1])


def write(folder: Path, *lives: AttemptTime) -> None:
    (folder / SPENT_NAME).write_text("".join(one.model_dump_json() + "\n" for one in lives))


def test_the_parts_are_the_wall_time_and_updates_done_again_are_replay(tmp_path: Path):
    write(
        tmp_path,
        life(20.0, {"compile": 5.0, "step": 8.0, "data": 2.0, "save": 1.0}, (0, 10)),
        life(14.0, {"compile": 1.0, "step": 10.0}, (6, 20), pause=0.5),
    )
    spent = read_time_breakdown(tmp_path)
    assert spent is not None
    assert (spent.lives, spent.wall_seconds) == (2, 34.5)
    wanted = {"compile": 6.0, "step": 14.8, "data": 1.2, "save": 1.0, "process": 7.0, "pause": 0.5, "replay": 4.0}
    assert spent.seconds == pytest.approx(wanted)
    assert sum(spent.seconds.values()) == pytest.approx(spent.wall_seconds)


class Machine:
    """A run's folder, and clocks that a test moves."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.token = folder, 1_700_000_000.0, 0
        folder.mkdir(exist_ok=True)
        patch.setattr(module.time, "time", lambda: self.now)
        patch.setattr(module.time, "monotonic", lambda: self.now)

    def beat(self, step: int, spent: dict[str, float]) -> None:
        """The trainer's last sign."""
        beat = {"time": datetime.fromtimestamp(self.now, UTC).isoformat(), "pid": 7, "token": self.token, "step": step, "spent": spent}
        (self.folder / "heartbeat").write_text(json.dumps({**beat, "peak_memory_bytes": 5}))

    def lose(self, *, at_step: int, seconds: float, noted: bool = True) -> None:
        """A life that ends with its launcher: nothing of it is written any more."""
        self.token += 1
        spent, life = self.folder / SPENT_NAME, self.folder / LIFE_NAME
        before = spent.read_bytes() if spent.exists() else b""
        with Clock(self.folder).attempt(0, slice_name="cpu-2") as note:
            self.now += seconds
            self.beat(at_step, {"step": seconds - 3.0, "compile": 2.0})
            if noted:
                note()
            kept = life.read_bytes()
        spent.write_bytes(before)  # the launcher was killed before it came to that
        life.write_bytes(kept)

    def end(self, from_step: int, to_step: int, seconds: float) -> None:
        self.token += 1
        with Clock(self.folder).attempt(from_step, slice_name="cpu-1"):
            self.now += seconds
            self.beat(to_step, {"step": seconds - 1.0})


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "run", monkeypatch)


def test_a_life_that_nobody_saw_end_is_in_the_account(machine: Machine):
    """With what was lost of it named: updates 6 to 10 are done again."""
    began = machine.now
    machine.lose(at_step=10, seconds=20.0)
    so_far = read_time_breakdown(machine.folder)
    assert so_far is not None
    assert (so_far.lives, so_far.wall_seconds) == (1, 20.0)
    machine.now += 40.0
    machine.end(from_step=6, to_step=20, seconds=14.0)
    spent = read_time_breakdown(machine.folder)
    assert spent is not None
    assert spent.wall_seconds == pytest.approx(machine.now - began)
    assert sum(spent.seconds.values()) == pytest.approx(spent.wall_seconds)
    wanted = {"step": 17.0 * 0.6 + 13.0, "compile": 2.0, "process": 2.0, "replay": 17.0 * 0.4, "away": 40.0}
    assert spent.seconds == pytest.approx(wanted)
    assert spent.slices == pytest.approx({"cpu-2": 20.0, "cpu-1": 14.0})
    assert [life.is_whole for life in read_attempts(machine.folder)] == [False, True]
    assert not (machine.folder / LIFE_NAME).exists()


def test_on_another_machine_what_was_kept_of_it_counts(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The heartbeat is of one machine, and is not kept on a store."""
    machine.lose(at_step=10, seconds=20.0)
    (machine.folder / "heartbeat").unlink()
    machine.folder = machine.folder.rename(tmp_path / "elsewhere")
    machine.now += 5.0
    machine.end(from_step=10, to_step=20, seconds=14.0)
    spent = read_time_breakdown(machine.folder)
    assert spent is not None
    assert spent.seconds == pytest.approx({"step": 30.0, "compile": 2.0, "process": 2.0, "away": 5.0})


def test_the_heartbeat_of_a_life_before_is_not_this_ones(tmp_path: Path):
    (tmp_path / "heartbeat").write_text(json.dumps({"time": "then", "pid": 1, "step": 7, "spent": {"step": 99.0}}))
    clock = Clock(tmp_path)
    with clock.attempt(from_step=7):
        pass
    with clock.attempt(from_step=7):
        (tmp_path / "heartbeat").write_text(json.dumps({"time": "now", "pid": 2, "step": 9, "spent": {"step": 0.0}}))
    spent = read_time_breakdown(tmp_path)
    assert spent is not None
    assert spent.wall_seconds < 5
    assert set(spent.seconds) <= {"process", "pause"}
    first, second = (json.loads(line) for line in (tmp_path / SPENT_NAME).read_text().splitlines())
    assert (first["pause_seconds"], first["to_step"], second["to_step"]) == (0.0, 7, 9)
    assert second["pause_seconds"] > 0
