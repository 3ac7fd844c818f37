"""The trainer itself is measured for some seconds, on a run whose data are nowhere; nothing of it stays but what it cost."""

from pathlib import Path

import pytest

from tasks.home import Home
from tasks.prediction import calibrate as module
from tasks.prediction.calibrate import calibrate
from tasks.prediction.conditions import conditions_here
from tasks.prediction.costs import step_key
from tasks.prediction.evidence import keep_calibration, known_costs
from tasks.prediction.predict import predict
from tasks.training.spent import compiled_steps
from tests.tasks.prediction.runs import tiny_run
from trainer.base.errors import TrainingError
from trainer.config import RunConfig


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(str(tmp_path / "home"))


def run_in(home: Home, **changes: object) -> RunConfig:
    """Its caches are not there, and it has a batch, an average and limits that change."""
    return tiny_run(
        stop_step=100,
        output=str(home.run("tiny-proxy", "warm-up")),
        batch=[[0, 2], [50, 4]],
        stability={"ema_decay": [[60, 0.9]]},
        **changes,
    )


def test_a_run_without_data_is_measured_and_leaves_its_compiled_step(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SECONDS", 0.0)
    run = run_in(home)
    costs = calibrate(run, 4, home)
    assert set(costs.steps) == {step_key(run, 4)}
    step = costs.steps[step_key(run, 4)]
    assert step.updates >= module.WANTED_UPDATES
    assert step.compiled
    assert 0 < step.low_seconds <= step.seconds <= step.high_seconds < step.first_seconds
    assert min(costs.process_seconds, costs.start_seconds, costs.last_save_seconds) > 0
    assert costs.evaluation_seconds is not None
    assert costs.save_seconds is not None
    assert costs.checkpoint_bytes is not None
    assert costs.checkpoint_bytes > 10_000
    assert costs.peak_memory_bytes is not None
    assert costs.peak_memory_bytes > 100_000_000
    assert [path.name for path in (home.runs / "tiny-proxy").iterdir()] == ["compilation-cache"]
    assert compiled_steps(Path(run.output)) == 1

    assert known_costs(home) == []
    keep_calibration(home, costs)
    assert known_costs(home) == [costs]
    assert predict(run, [costs], is_from_scratch=True).seconds is None, "its other batch was not measured"
    prediction = predict(run.but(batch=4), known_costs(home), is_from_scratch=True)
    assert prediction.seconds is not None
    assert "a calibration of" in prediction.source


def test_a_step_that_is_compiled_is_read(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SECONDS", 0.0)
    run = run_in(home)
    costs = calibrate(run, 4, home)
    keep_calibration(home, costs)
    again = calibrate(run, 4, home)
    assert costs.steps[step_key(run, 4)].compiled
    assert not again.steps[step_key(run, 4)].compiled, "the compiled step is there"
    keep_calibration(home, again)
    assert known_costs(home) == [again]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_thunk_runtime=true")
    assert known_costs(home) == [], "measured under other conditions"


def test_a_trainer_that_fails_says_why_and_leaves_nothing(home: Home):
    run = run_in(home, execution={"mesh": {"tensor": 3}})
    with pytest.raises(TrainingError, match="calibrating warm-up failed: .+"):
        calibrate(run, 4, home)
    assert list((home.runs / "tiny-proxy").glob(f"{module.SCRATCH}*")) == []


def test_conditions_are_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    before = conditions_here()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert conditions_here() == before
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    assert conditions_here() != before
