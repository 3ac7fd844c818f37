import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from phasewise.tasks.training.attempts import launch_trainer
from phasewise.tasks.validation.decide import decide
from phasewise.trainer import skipped_steps
from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import AsksPerson, CheckpointError, TrainingDiverged, VerdictError, WaitsForPerson
from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.trainer.base.run_folder import METRICS_NAME, PASSED_OVER_NAME, QUESTION_NAME, read_events
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.checkpoints.state import read_about
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.loop import train
from phasewise.trainer.run import main
from phasewise.trainer.skipped_steps import CONTRACT_NAME, SkippedSteps, Window, open_question, read_skipped_steps, roll_backs_in, window_of
from phasewise.trainer.step import init_state, params_digest
from phasewise.validations.verdict import read_verdict
from tests.trainer.conftest import MakeRun, RowsOf, build_train_step
from tests.trainer.poisoned import SPIKE, poison


def test_windows_hold_their_updates_merge_and_follow_from_the_settings_alone(make_run: MakeRun):
    found = SkippedSteps((Window(6, 9), Window(3, 7), Window(12, 13)))
    assert [update for update in range(15) if update in found] == [3, 4, 5, 6, 7, 8, 12]
    assert found.merged() == (Window(3, 9), Window(12, 13))
    assert [str(window) for window in found.merged()] == ["steps 4 to 9", "step 13"]
    for (step, back, more), expected in {
        (8, 1, 0): (6, 8), (8, 2, 0): (3, 8), (8, 9, 0): (0, 8), (7, 1, 3): (6, 10), (6, 1, 0): (3, 6), (2, 1, 0): (0, 2)
    }.items():  # fmt: skip
        run = make_run("windows", recovery={**RECOVERY, "checkpoints_back": back, "steps_more": more})
        assert window_of(run, step, SkippedSteps()) == expected
    run = make_run("windows", recovery=RECOVERY)
    assert window_of(run, 9, SkippedSteps((Window(6, 8),))) == (3, 9)  # at step 6 the state is that of the window's begin
    assert window_of(run, 11, SkippedSteps((Window(6, 8),))) == (9, 11)


def test_what_a_checkpoint_is_after_a_roll_back():
    before, after = SkippedSteps((Window(6, 8),)), SkippedSteps((Window(6, 8), Window(12, 15)))
    of_before, of_after = {CONTRACT_NAME: before.as_json()}, {CONTRACT_NAME: after.as_json()}
    assert [before.standing(*one) for one in ((6, {}), (7, {}), (9, of_before))] == ["valid", "given up", "valid"]
    assert [after.standing(*one) for one in ((12, of_before), (13, of_before), (18, of_after))] == ["valid", "given up", "valid"]
    assert before.standing(18, of_after) == SkippedSteps().standing(9, of_before) == "foreign"


def test_the_file_is_read_as_it_was_written_or_refused(tmp_path: Path):
    assert not read_skipped_steps(tmp_path)
    found = SkippedSteps((Window(6, 8), Window(3, 9)))
    skipped_steps.write_skipped_steps(tmp_path, found, ["why", "again"])
    assert read_skipped_steps(tmp_path) == found
    for damage in (b"", b"{}", b'{"windows": [[1]]}', b'{"windows": [["a", 2]]}', b"[]"):
        (tmp_path / PASSED_OVER_NAME).write_bytes(damage)
        with pytest.raises(CheckpointError, match="expected the list of skipped updates, found an unreadable file"):
            read_skipped_steps(tmp_path)


pytestmark = [pytest.mark.usefixtures("built_once"), pytest.mark.timeout(240)]  # a guard against hanging
RECOVERY: dict[str, Any] = {"action": "roll_back", "max_loss": None, "checkpoints_back": 1, "steps_more": 0, "max_times": 2}
POISON = 7  # the update that makes step 8: back to the checkpoint of step 6, so steps 7 and 8 are passed over


def without(run: RunConfig, passed_over: SkippedSteps) -> str:
    state, step_of, loader = init_state(run), build_train_step(run.model, run.optimizer, run.execution), Loader(run)
    for step in range(run.start_step, run.stop_step):
        if step not in passed_over:
            batch = loader.batch(step)
            state, _ = step_of(state, batch.tokens, batch.segment_ids, scheduled_at(run, step))
    return params_digest(state.params)


def poisoned(monkeypatch: pytest.MonkeyPatch, run: RunConfig, *updates: int, loss: float = np.nan) -> RunConfig:
    monkeypatch.setattr("phasewise.trainer.loop.build_train_step", poison(run, updates, loss=loss))
    return run


def test_what_is_passed_over_is_not_trained_and_everything_says_so(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, rows_of: RowsOf):
    run = poisoned(monkeypatch, make_run("rolls back", recovery=RECOVERY), POISON)
    result = train(run)
    window = SkippedSteps((Window(6, 8),))
    assert result["params_digest"] == without(run, window)
    assert result["params_digest"] != without(run, SkippedSteps())
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
    run = poisoned(monkeypatch, make_run("again", recovery={**RECOVERY, "steps_more": 1}), POISON, 13)
    assert train(run)["passed_over"] == [[6, 9], [12, 15]]
    often = poisoned(monkeypatch, make_run("too often", recovery={**RECOVERY, "max_times": 1}), POISON, 13)
    with pytest.raises(TrainingDiverged, match=r"loss is nan at step 14, and it has rolled back 1 times, as often as the recipe allows"):
        train(often)
    late = poisoned(monkeypatch, make_run("late", recovery={**RECOVERY, "steps_more": 3}), 21)
    with pytest.raises(TrainingDiverged, match="would leave nothing to train before the phase's end"):
        train(late)


def test_a_spike_counts_where_the_recipe_has_a_limit(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    recovery = {**RECOVERY, "max_loss": {"window": 8, "min_samples": 4, "sigmas": 6.0}}
    run = poisoned(monkeypatch, make_run("spikes", recovery=recovery), POISON, loss=SPIKE)
    assert train(run)["params_digest"] == without(run, SkippedSteps((Window(6, 8),)))
    assert [(event["kind"], event["step"]) for event in read_events(run.output)] == [("spike", 8), ("rolled_back", 8)]


def test_without_a_recovery_it_stops(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run = poisoned(monkeypatch, make_run("stops", recovery=None), POISON)
    with pytest.raises(TrainingDiverged, match="loss is nan at step 8"):
        train(run)
    assert not is_written(run)
    assert [event["kind"] for event in read_events(run.output)][-1:] == ["diverged"]


def test_a_list_that_is_lost_is_not_guessed(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run = poisoned(monkeypatch, make_run("lost", recovery=RECOVERY), POISON)
    train(run)
    (Path(run.output) / PASSED_OVER_NAME).unlink()
    with pytest.raises(CheckpointError, match="was trained on another data order: passed_over changed since"):
        train(run)


def started(run: RunConfig) -> "subprocess.Popen[bytes]":
    write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
    command = [sys.executable, "-m", "tests.trainer.poisoned", str(POISON), f"{run.output}/run.json"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)


def is_written(run: RunConfig) -> bool:
    return (Path(run.output) / PASSED_OVER_NAME).exists()


@pytest.fixture(scope="module")
def undisturbed(make_run: MakeRun) -> dict[str, Any]:
    """What it ends with where nobody kills it. In a process too: programs of one process may round otherwise than those of another."""
    straight = make_run("rolled back undisturbed", recovery=RECOVERY)
    with started(straight) as process:
        assert process.wait() == 0
    return read_json(Path(straight.output) / "result.json")


@pytest.mark.long
@pytest.mark.parametrize("moment", ["as it is decided", "after it"])
def test_killed_while_it_rolls_back_it_ends_with_the_same_weights(
    make_run: MakeRun, rows_of: RowsOf, undisturbed: dict[str, Any], moment: str
):
    run = make_run(f"killed {moment}", recovery=RECOVERY)
    last = 0 if moment == "as it is decided" else 13
    with started(run) as process:
        while not (is_written(run) and (not last or [row for row in rows_of(run)[-1:] if row["step"] >= last])) and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.001)
        process.kill()
    with started(run) as process:
        assert process.wait() == 0
    result = read_json(Path(run.output) / "result.json")
    assert result["params_digest"] == undisturbed["params_digest"]
    assert result["passed_over"] == undisturbed["passed_over"] == [[6, 8]]
    assert [row["step"] for row in rows_of(run)] == [step for step in range(1, 25) if step not in (7, 8)]


def test_ended_as_it_is_decided_it_goes_on_as_it_was_decided(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, rows_of: RowsOf):
    run = poisoned(monkeypatch, make_run("ended as it rolls back", recovery=RECOVERY), POISON)
    with monkeypatch.context() as patch:
        patch.setattr("phasewise.trainer.skipped_steps.append_event", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(run)
    assert is_written(run)
    assert train(run)["params_digest"] == without(run, SkippedSteps((Window(6, 8),)))
    assert [row["step"] for row in rows_of(run)] == [step for step in range(1, 25) if step not in (7, 8)]


ASK: dict[str, Any] = {**RECOVERY, "action": "ask"}


@pytest.fixture(scope="module")
def asked(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path]:
    """A run that has met the update that must not be kept, and asked, and a copy of its folder."""
    run = make_run("asks", recovery=ASK)
    with pytest.MonkeyPatch.context() as patch:
        poisoned(patch, run, POISON)
        with pytest.raises(AsksPerson, match=r"loss is nan at step 8, and its recovery is `ask`: a person decides by `phasewise approve`"):
            train(run)
    return run, shutil.copytree(run.output, tmp_path_factory.mktemp("asked") / "copy")


@pytest.fixture
def run(asked: tuple[RunConfig, Path], monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    run, copy = asked
    shutil.rmtree(run.output)
    shutil.copytree(copy, run.output)
    return poisoned(monkeypatch, run, POISON)


def question(run: RunConfig) -> Path:
    return Path(run.output) / QUESTION_NAME


def answer(run: RunConfig, *, approves: bool, who: str = "Ada") -> None:
    decide(question(run), approves=approves, reason="a bad batch", who=who)


def test_what_is_asked_has_the_numbers_and_nothing_goes_on_before_it_is_decided(run: RunConfig, rows_of: RowsOf):
    verdict = read_verdict(question(run))
    assert verdict.model_dump(mode="json") == read_sealed(question(run))  # who shows it and who trains see the same
    assert (verdict.subject, verdict.passes) == (f"{run.recipe}/{run.scale}/{run.phase} training", False)
    [reason] = verdict.reasons
    assert (reason.what, reason.found, reason.limit) == ("loss is nan at step 8", "loss is nan", "a finite number")
    assert reason.what_to_do.startswith("Approve to go back to step 6 and to pass over steps 7 to 8 for good, with 8 sequences.")
    assert list(verdict.judged) == ["checkpoint of step 6"]
    before = (rows_of(run), question(run).read_bytes())
    with pytest.raises(AsksPerson):
        train(run)
    assert (rows_of(run), question(run).read_bytes()) == before
    assert [event["kind"] for event in read_events(run.output)] == ["asked"]
    assert not is_written(run)


def test_approved_it_ends_with_the_weights_of_a_run_without_those_updates(run: RunConfig):
    answer(run, approves=True)
    assert train(run)["params_digest"] == without(run, SkippedSteps((Window(6, 8),)))
    [told] = roll_backs_in(read_json(Path(run.output) / PASSED_OVER_NAME), run.batch)
    assert told.decided_by.startswith("approved by Ada on ")
    assert told.decided_by.endswith(": a bad batch")
    assert [event["kind"] for event in read_events(run.output)] == ["asked", "rolled_back"]
    assert open_question(run, read_skipped_steps(Path(run.output))) is None


def test_rejected_it_stops_with_the_reason_until_somebody_decides_otherwise(run: RunConfig, rows_of: RowsOf):
    answer(run, approves=False, who="Grace")
    rows = rows_of(run)
    for _ in range(2):
        with pytest.raises(TrainingDiverged, match=r"to roll back was rejected by Grace on .*: a bad batch") as refused:
            train(run)
        assert not isinstance(refused.value, AsksPerson)
    assert rows_of(run) == rows
    answer(run, approves=True)
    assert train(run)["passed_over"] == [[6, 8]]


def test_each_roll_back_is_asked_for_itself(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run = poisoned(monkeypatch, make_run("asks again", recovery=ASK), POISON, 13)
    with pytest.raises(AsksPerson, match="at step 8"):
        train(run)
    answer(run, approves=True)
    with pytest.raises(AsksPerson, match="at step 14"):
        train(run)
    ruling = ruling_at(question(run))
    assert ruling.state == "waits"
    assert "That was decided of another verdict: " in ruling.void
    answer(run, approves=True, who="Grace")
    assert train(run)["passed_over"] == [[6, 8], [12, 14]]
    told = roll_backs_in(read_json(Path(run.output) / PASSED_OVER_NAME), None)
    assert [one.decided_by.split(" on ")[0] for one in told] == ["approved by Ada", "approved by Grace"]


def other_checkpoint(run: RunConfig) -> None:
    digests = Path(run.output) / "checkpoints" / "6" / "digests.json"
    digests.write_text(digests.read_text() + " ")


def other_step(run: RunConfig) -> None:
    content = read_json(question(run))
    content["thresholds"]["step"] = 9
    write_sealed(question(run), content)


VOIDS: dict[str, Callable[[RunConfig], object]] = {
    "other checkpoint": other_checkpoint,
    "no checkpoint": lambda run: shutil.rmtree(Path(run.output) / "checkpoints" / "6"),
    "other windows": lambda run: write_sealed(Path(run.output) / PASSED_OVER_NAME, {"windows": [[3, 4]], "reasons": []}),
    "other step": other_step,
}


@pytest.mark.parametrize("change", VOIDS.values(), ids=VOIDS)
def test_a_decision_is_void_where_what_was_seen_has_changed(run: RunConfig, change: Any):
    answer(run, approves=True)
    assert open_question(run, SkippedSteps()) is not None
    change(run)
    assert open_question(run, read_skipped_steps(Path(run.output))) is None


def test_what_does_not_read_is_named(run: RunConfig):
    question(run).with_suffix(".decision.json").write_text("{")
    with pytest.raises(VerdictError, match="does not read as a decision"):
        train(run)
    question(run).write_text("{")
    with pytest.raises(CheckpointError, match="expected a question to a person, found an unreadable file"):
        train(run)


def test_while_a_person_is_asked_the_launcher_starts_nothing_and_the_program_says_so_by_its_exit_code(run: RunConfig, capsys: Any):
    write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
    assert main([f"{run.output}/run.json"]) == 8
    assert "a person decides by `phasewise approve`" in capsys.readouterr().err
    assert (Path(run.output) / METRICS_NAME).exists()
    with pytest.raises(WaitsForPerson) as waits:
        launch_trainer(run, lambda rows: None)
    assert Path(waits.value.verdict) == question(run)
    answer(run, approves=False, who="Grace")
    with pytest.raises(TrainingDiverged, match="rejected by Grace"):
        launch_trainer(run, lambda rows: None)
    assert not (Path(run.output) / "trainer.log").exists()
