import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasewise.trainer.base.errors import CheckpointError, TrainingDiverged
from phasewise.trainer.base.run_folder import PASSED_OVER_NAME, read_events
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.checkpoints.state import read_about
from phasewise.trainer.config import RunConfig, sequences_between
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.loop import train
from phasewise.trainer.metrics import Row
from phasewise.trainer.passed_over import CONTRACT_NAME, PassedOver, Window, read_passed_over, roll_backs_in, window_of, write_passed_over
from phasewise.trainer.state import init_state, params_digest
from tests.trainer.conftest import MakeRun, RowsOf, build_train_step
from tests.trainer.poisoned import SPIKE, poison


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


pytestmark = [pytest.mark.usefixtures("built_once"), pytest.mark.timeout(240)]  # a guard against hanging
RECOVERY: dict[str, Any] = {"action": "roll_back", "max_loss": None, "checkpoints_back": 1, "steps_more": 0, "max_times": 2}
POISON = 7
"""The update that makes step 8: back to the checkpoint of step 6, so steps 7 and 8 are passed over."""


def without(run: RunConfig, passed_over: PassedOver) -> str:
    """The weights by a plain loop over the updates that are left."""
    state, step_of, loader = init_state(run), build_train_step(run.model, run.optimizer, run.execution), Loader(run)
    for step in range(run.start_step, run.stop_step):
        if step not in passed_over:
            batch = loader.batch(step)
            state, _ = step_of(state, batch.tokens, batch.segment_ids, scheduled_at(run, step))
    return params_digest(state.params)


def poisoned(monkeypatch: pytest.MonkeyPatch, run: RunConfig, *updates: int, loss: float = np.nan) -> None:
    monkeypatch.setattr("phasewise.trainer.loop.build_train_step", poison(run, updates, loss=loss))


def test_what_is_passed_over_is_not_trained_and_everything_says_so(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, rows_of: RowsOf):
    run = make_run("rolls back", recovery=RECOVERY)
    poisoned(monkeypatch, run, POISON)
    result = train(run)
    window = PassedOver((Window(6, 8),))
    assert result["params_digest"] == without(run, window)
    assert result["params_digest"] != without(run, PassedOver())
    assert result["passed_over"] == [[6, 8]]
    assert result["tokens"] == sum(row["tokens"] for row in rows_of(run)) == ((10 - 2) * 4 + 14 * 8) * 32
    assert [row["step"] for row in rows_of(run)] == [step for step in range(1, 25) if step not in (7, 8)]
    assert read_about(Path(run.output) / "checkpoints" / "24")["contract"]["passed_over"] == [[6, 8]]
    [event] = read_events(run.output)
    assert (event["kind"], event["step"]) == ("rolled_back", 8)
    [told] = roll_backs_in(read_json(Path(run.output) / PASSED_OVER_NAME), run.batch)
    assert (told.window, told.sequences, told.why, told.decided_by) == (Window(6, 8), 8, event["text"], "the recipe")
    assert event["text"].startswith("loss is nan at step 8: back to step 6, steps 7 to 8 passed over with their data")


def test_it_rolls_back_again_further_on_and_not_too_often(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run = make_run("again", recovery={**RECOVERY, "steps_more": 1})
    poisoned(monkeypatch, run, POISON, 13)
    assert train(run)["passed_over"] == [[6, 9], [12, 15]]
    often = make_run("too often", recovery={**RECOVERY, "max_times": 1})
    poisoned(monkeypatch, often, POISON, 13)
    with pytest.raises(TrainingDiverged, match=r"loss is nan at step 14, and it has rolled back 1 times, as often as the recipe allows"):
        train(often)
    late = make_run("late", recovery={**RECOVERY, "steps_more": 3})
    poisoned(monkeypatch, late, 21)
    with pytest.raises(TrainingDiverged, match="would leave nothing to train before the phase's end"):
        train(late)


def test_a_spike_counts_where_the_recipe_has_a_limit(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    limit = {"window": 8, "min_samples": 4, "sigmas": 6.0}
    run = make_run("spikes", recovery={**RECOVERY, "max_loss": limit})
    poisoned(monkeypatch, run, POISON, loss=SPIKE)
    assert train(run)["params_digest"] == without(run, PassedOver((Window(6, 8),)))
    kinds = [(event["kind"], event["step"]) for event in read_events(run.output)]
    assert kinds == [("spike", 8), ("rolled_back", 8)]


def test_without_a_recovery_it_stops(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run = make_run("stops", recovery=None)
    poisoned(monkeypatch, run, POISON)
    with pytest.raises(TrainingDiverged, match="loss is nan at step 8"):
        train(run)
    assert not (Path(run.output) / PASSED_OVER_NAME).exists()
    assert [event["kind"] for event in read_events(run.output)][-1:] == ["diverged"]


def test_a_list_that_is_lost_is_not_guessed(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run = make_run("lost", recovery=RECOVERY)
    poisoned(monkeypatch, run, POISON)
    train(run)
    (Path(run.output) / PASSED_OVER_NAME).unlink()
    with pytest.raises(CheckpointError, match="was trained on another data order: passed_over changed since"):
        train(run)


def started(run: RunConfig) -> "subprocess.Popen[bytes]":
    write_json(Path(run.output) / "run.json", run.model_dump(mode="json"))
    command = [sys.executable, "-m", "tests.trainer.poisoned", str(POISON), f"{run.output}/run.json"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)


def is_written(run: RunConfig) -> bool:
    return (Path(run.output) / PASSED_OVER_NAME).exists()


def is_after(run: RunConfig, rows: list[Row]) -> bool:
    return is_written(run) and bool(rows) and rows[-1]["step"] > 12


@pytest.fixture(scope="module")
def undisturbed(make_run: MakeRun) -> dict[str, Any]:
    """What it ends with where nobody kills it. In a process too: programs of one process may round otherwise than those of another."""
    straight = make_run("rolled back undisturbed", recovery=RECOVERY)
    with started(straight) as process:
        assert process.wait() == 0
    return read_json(Path(straight.output) / "result.json")


@pytest.mark.parametrize("moment", ["as it is decided", "after it"])
def test_killed_while_it_rolls_back_it_ends_with_the_same_weights(
    make_run: MakeRun, rows_of: RowsOf, undisturbed: dict[str, Any], moment: str
):
    run = make_run(f"killed {moment}", recovery=RECOVERY)
    reached: Callable[[], bool] = (lambda: is_written(run)) if moment == "as it is decided" else (lambda: is_after(run, rows_of(run)))
    with started(run) as process:
        while not reached() and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.001)
        process.kill()
    with started(run) as process:
        assert process.wait() == 0
    result = read_json(Path(run.output) / "result.json")
    assert result["params_digest"] == undisturbed["params_digest"]
    assert result["passed_over"] == undisturbed["passed_over"] == [[6, 8]]
    assert [row["step"] for row in rows_of(run)] == [step for step in range(1, 25) if step not in (7, 8)]
