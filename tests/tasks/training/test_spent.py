"""Where the time of a training went: the parts add up, and what was done twice is called that."""

import json
from pathlib import Path

import pytest

from tasks.training.clock import Clock
from tasks.training.spent import LifeSpent, read_spent
from trainer.base.run_folder import SPENT_NAME


def life(wall: float, seconds: dict[str, float], steps: tuple[int, int], pause: float = 0.0) -> LifeSpent:
    return LifeSpent(wall_seconds=wall, pause_seconds=pause, seconds=seconds, from_step=steps[0], to_step=steps[1])


def write(folder: Path, *lives: LifeSpent) -> None:
    (folder / SPENT_NAME).write_text("".join(one.model_dump_json() + "\n" for one in lives))


def test_the_parts_are_the_wall_time_and_updates_done_again_are_replay(tmp_path: Path):
    write(
        tmp_path,
        life(20.0, {"compile": 5.0, "step": 8.0, "data": 2.0, "save": 1.0}, (0, 10)),
        life(14.0, {"compile": 1.0, "step": 10.0}, (6, 20), pause=0.5),
    )
    spent = read_spent(tmp_path)
    assert spent is not None
    assert (spent.lives, spent.wall_seconds) == (2, 34.5)
    wanted = {"compile": 6.0, "step": 14.8, "data": 1.2, "save": 1.0, "process": 7.0, "pause": 0.5, "replay": 4.0}
    assert spent.seconds == pytest.approx(wanted)
    assert sum(spent.seconds.values()) == pytest.approx(spent.wall_seconds)


def test_a_life_that_was_ended_before_its_first_heartbeat_is_all_process(tmp_path: Path):
    write(tmp_path, life(3.0, {}, (0, 0)), life(4.0, {"step": 4.0}, (0, 8)))
    spent = read_spent(tmp_path)
    assert spent is not None
    assert spent.seconds == {"process": 3.0, "step": 4.0}


def test_a_line_that_does_not_read_is_passed_over(tmp_path: Path):
    assert read_spent(tmp_path) is None
    write(tmp_path, life(4.0, {"step": 4.0}, (0, 8)))
    with open(tmp_path / SPENT_NAME, "a") as file:
        file.write('{"wall_seconds": 3')
    spent = read_spent(tmp_path)
    assert spent is not None
    assert spent.wall_seconds == 4.0


def test_the_heartbeat_of_a_life_before_is_not_this_ones(tmp_path: Path):
    (tmp_path / "heartbeat").write_text(json.dumps({"time": "then", "pid": 1, "step": 7, "spent": {"step": 99.0}}))
    clock = Clock(tmp_path)
    with clock.life(from_step=7):
        pass
    with clock.life(from_step=7):
        (tmp_path / "heartbeat").write_text(json.dumps({"time": "now", "pid": 2, "step": 9, "spent": {"step": 0.0}}))
    spent = read_spent(tmp_path)
    assert spent is not None
    assert spent.wall_seconds < 5
    assert set(spent.seconds) <= {"process", "pause"}
    first, second = (json.loads(line) for line in (tmp_path / SPENT_NAME).read_text().splitlines())
    assert (first["pause_seconds"], first["to_step"], second["to_step"]) == (0.0, 7, 9)
    assert second["pause_seconds"] > 0
