"""Which updates a run passes over, and which of its checkpoints know of it."""

from pathlib import Path
from typing import Any

import pytest

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.run_folder import PASSED_OVER_NAME
from phasewise.trainer.config import sequences_between
from phasewise.trainer.passed_over import CONTRACT_NAME, PassedOver, Window, read_passed_over, window_of, write_passed_over
from tests.trainer.conftest import MakeRun

RECOVERY: dict[str, Any] = {"action": "roll_back", "max_loss": None, "checkpoints_back": 1, "steps_more": 0, "max_times": 2}


def test_windows_hold_their_updates_and_merge():
    found = PassedOver((Window(6, 9), Window(3, 7), Window(12, 13)))
    assert [update for update in range(15) if update in found] == [3, 4, 5, 6, 7, 8, 12]
    assert found.merged() == (Window(3, 9), Window(12, 13))
    assert [str(window) for window in found.merged()] == ["steps 4 to 9", "step 13"]


@pytest.mark.parametrize(
    ("step", "back", "more", "expected"),
    [(8, 1, 0, (6, 8)), (8, 2, 0, (3, 8)), (8, 9, 0, (0, 8)), (7, 1, 3, (6, 10)), (6, 1, 0, (3, 6)), (2, 1, 0, (0, 2))],
)
def test_the_window_follows_from_the_settings_alone(make_run: MakeRun, step: int, back: int, more: int, expected: tuple[int, int]):
    run = make_run("windows", recovery={**RECOVERY, "checkpoints_back": back, "steps_more": more})
    assert window_of(run, step, PassedOver()) == expected


def test_a_second_window_does_not_begin_within_the_first(make_run: MakeRun):
    run = make_run("windows", recovery=RECOVERY)
    first = window_of(run, 8, PassedOver())
    assert first == (6, 8)
    assert window_of(run, 9, PassedOver((first,))) == (3, 9)  # at step 6 the state is that of the window's begin
    assert window_of(run, 11, PassedOver((first,))) == (9, 11)


def test_what_a_checkpoint_is_after_a_roll_back():
    before, after = PassedOver((Window(6, 8),)), PassedOver((Window(6, 8), Window(12, 15)))
    of_before, of_after = {CONTRACT_NAME: before.as_json()}, {CONTRACT_NAME: after.as_json()}
    assert before.standing(6, {}) == "valid"
    assert before.standing(7, {}) == "given up"
    assert before.standing(9, of_before) == "valid"
    assert after.standing(12, of_before) == "valid"
    assert after.standing(13, of_before) == "given up"
    assert after.standing(18, of_after) == "valid"
    assert before.standing(18, of_after) == "foreign"
    assert PassedOver().standing(9, of_before) == "foreign"


def test_the_file_is_read_as_it_was_written_or_refused(tmp_path: Path):
    assert not read_passed_over(tmp_path)
    found = PassedOver((Window(6, 8), Window(3, 9)))
    write_passed_over(tmp_path, found, ["why", "again"])
    assert read_passed_over(tmp_path) == found
    for damage in (b"", b"{}", b'{"windows": [[1]]}', b'{"windows": [["a", 2]]}', b"[]"):
        (tmp_path / PASSED_OVER_NAME).write_bytes(damage)
        with pytest.raises(CheckpointError, match="must say which updates are passed over, and does not read"):
            read_passed_over(tmp_path)


def test_sequences_count_once(make_run: MakeRun):
    run = make_run("windows")
    found = PassedOver((Window(6, 12), Window(8, 11)))
    assert found.sequences(run) == sequences_between(run.batch, 6, 12) == 4 * 4 + 2 * 8
