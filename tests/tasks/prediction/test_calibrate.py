"""The trainer itself is measured for some seconds, on a run whose data are nowhere; nothing of it stays but what it cost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tasks.home import Home
from tasks.prediction import calibrate as module
from tasks.prediction.calibrate import calibrate, scratch_run
from tasks.prediction.conditions import conditions_here
from tasks.prediction.costs import Costs, step_key
from tasks.prediction.evidence import keep_calibration, known_costs
from tasks.prediction.predict import predict
from tasks.training.spent import compiled_steps
from tests.tasks.prediction.runs import tiny_run
from trainer.base.errors import TrainingError
from trainer.config import RunConfig


class Calibrated(NamedTuple):
    home: Home
    run: RunConfig
    costs: Costs


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calibrated]:
    """After a few updates, however few seconds they took."""
    home = Home.open(str(tmp_path_factory.mktemp("home")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SECONDS", 0.0)
        run = run_in(home)
        yield Calibrated(home, run, calibrate(run, 4, home))


def run_in(home: Home, **changes: Any) -> RunConfig:
    """Its caches are not there, and it has a batch and an average that change."""
    output = str(home.run("tiny-proxy", "warm-up"))
    return tiny_run(stop_step=100, output=output, batch=[[0, 2], [50, 4]], stability={"ema_decay": [[60, 0.9]]}, **changes)


def test_a_run_without_data_is_measured_and_leaves_its_compiled_step(calibrated: Calibrated):
    home, run, costs = calibrated
    assert set(costs.steps) == {step_key(run, 4)}
    step = costs.steps[step_key(run, 4)]
    assert step.updates >= module.WANTED_UPDATES
    assert step.compiled
    assert 0 < step.low_seconds <= step.high_seconds
    assert step.first_seconds > 0
    assert min(costs.process_seconds, costs.start_seconds, costs.last_save_seconds) > 0
    assert costs.evaluation_seconds is not None
    assert costs.save_seconds is not None
    assert costs.checkpoint_bytes is not None
    assert costs.checkpoint_bytes > 10_000
    assert costs.peak_memory_bytes is not None
    assert costs.peak_memory_bytes > 100_000_000
    assert [path.name for path in (home.runs / "tiny-proxy").iterdir()] == ["compilation-cache"]
    assert compiled_steps(Path(run.output)) == 1


def test_the_compiled_step_is_read_by_what_comes_after(calibrated: Calibrated):
    home, run, _ = calibrated
    again = calibrate(run, 4, home)
    assert not again.steps[step_key(run, 4)].compiled


def test_a_calibration_is_known_under_its_conditions_alone(calibrated: Calibrated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, run, costs = calibrated
    home = Home.open(str(tmp_path / "home"))
    assert known_costs(home) == []
    keep_calibration(home, costs)
    later = costs.but(measured_at=costs.measured_at + 1)
    keep_calibration(home, later)
    assert known_costs(home) == [later]
    assert predict(run, [later], is_from_scratch=True).seconds is None, "its other batch was not measured"
    prediction = predict(run.but(batch=4), known_costs(home), is_from_scratch=True)
    assert prediction.seconds is not None
    assert "a calibration of" in prediction.source
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=")
    assert known_costs(home) == []


def test_a_trainer_that_fails_says_why_and_leaves_nothing(tmp_path: Path):
    home = Home.open(str(tmp_path / "home"))
    run = run_in(home, execution={"mesh": {"tensor": 3}})
    with pytest.raises(TrainingError, match=r"calibrating warm-up failed: .+"):
        calibrate(run, 4, home)
    assert list((home.runs / "tiny-proxy").glob(f"{module.SCRATCH}*")) == []


def test_conditions_are_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    before = conditions_here()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert conditions_here() == before
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    assert conditions_here() != before


def test_a_run_on_answers_is_measured_on_full_rows_and_known_by_them(tmp_path: Path):
    """What is padding or not predicted costs what a token does: the measurement of one is that of the other."""
    run = run_in(Home.open(str(tmp_path / "home")), packing="greedy", loss_on="answers")
    made = scratch_run(run, 2, tmp_path)
    assert (made.packing, made.loss_on) == ("chunk", "all")
    assert step_key(made, 2) == step_key(run, 2)
