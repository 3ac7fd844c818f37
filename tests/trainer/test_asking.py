import shutil
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.training.attempts import launch_trainer
from phasewise.tasks.validation.decide import decide
from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import AsksPerson, CheckpointError, TrainingDiverged, VerdictError, WaitsForPerson
from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.trainer.base.run_folder import METRICS_NAME, PASSED_OVER_NAME, QUESTION_NAME, read_events
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.instability import asked
from phasewise.trainer.loop import train
from phasewise.trainer.passed_over import NOTHING, PassedOver, Window, read_passed_over, roll_backs_in
from phasewise.trainer.run import main
from phasewise.validations.verdict import read_verdict
from tests.trainer.conftest import MakeRun, RowsOf
from tests.trainer.test_roll_back import POISON, RECOVERY, poisoned, without

pytestmark = [pytest.mark.usefixtures("built_once"), pytest.mark.timeout(240)]  # a guard against hanging
ASK: dict[str, Any] = {**RECOVERY, "action": "ask"}


@pytest.fixture
def run(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> RunConfig:
    """It has met the update that must not be kept, and asked."""
    run = make_run(request.node.name, recovery=ASK)
    poisoned(monkeypatch, run, POISON)
    with pytest.raises(AsksPerson, match=r"loss is nan at step 8, and its recovery is `ask`: a person decides by `phasewise approve`"):
        train(run)
    return run


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
    assert not (Path(run.output) / PASSED_OVER_NAME).exists()


def test_approved_it_ends_with_the_weights_of_a_run_without_those_updates(run: RunConfig):
    answer(run, approves=True)
    assert train(run)["params_digest"] == without(run, PassedOver((Window(6, 8),)))
    [told] = roll_backs_in(read_json(Path(run.output) / PASSED_OVER_NAME), run.batch)
    assert told.decided_by.startswith("approved by Ada on ")
    assert told.decided_by.endswith(": a bad batch")
    assert [event["kind"] for event in read_events(run.output)] == ["asked", "rolled_back"]
    assert asked(run, read_passed_over(Path(run.output))) is None


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
    run = make_run("asks again", recovery=ASK)
    poisoned(monkeypatch, run, POISON, 13)
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


def no_checkpoint(run: RunConfig) -> None:
    shutil.rmtree(Path(run.output) / "checkpoints" / "6")


def other_windows(run: RunConfig) -> None:
    write_json(Path(run.output) / PASSED_OVER_NAME, {"windows": [[3, 4]], "reasons": []})


def other_step(run: RunConfig) -> None:
    content = read_json(question(run))
    content["thresholds"]["step"] = 9
    write_sealed(question(run), content)


@pytest.mark.parametrize("change", [other_checkpoint, no_checkpoint, other_windows, other_step])
def test_a_decision_is_void_where_what_was_seen_has_changed(run: RunConfig, change: Any):
    answer(run, approves=True)
    assert asked(run, NOTHING) is not None
    change(run)
    assert asked(run, read_passed_over(Path(run.output))) is None


def test_what_does_not_read_is_named(run: RunConfig):
    question(run).with_suffix(".decision.json").write_text("{")
    with pytest.raises(VerdictError, match="does not read as a decision"):
        train(run)
    question(run).write_text("{")
    with pytest.raises(CheckpointError, match="must say what a person is asked, and does not read"):
        train(run)


def test_the_launcher_starts_nothing_while_a_person_is_asked(run: RunConfig):
    write_json(Path(run.output) / "run.json", run.model_dump(mode="json"))
    with pytest.raises(WaitsForPerson) as waits:
        launch_trainer(run, lambda rows: None)
    assert Path(waits.value.verdict) == question(run)
    assert not (Path(run.output) / "trainer.log").exists()
    answer(run, approves=False, who="Grace")
    with pytest.raises(TrainingDiverged, match="rejected by Grace"):
        launch_trainer(run, lambda rows: None)
    assert not (Path(run.output) / "trainer.log").exists()


def test_the_program_says_by_its_exit_code_that_a_person_is_asked(run: RunConfig, capsys: pytest.CaptureFixture[str]):
    write_json(Path(run.output) / "run.json", run.model_dump(mode="json"))
    assert main([f"{run.output}/run.json"]) == 8
    assert "a person decides by `phasewise approve`" in capsys.readouterr().err
    assert (Path(run.output) / METRICS_NAME).exists()
