"""A phase that the trainer trained is taken apart, and what is put together of it again is its wall time."""

from pathlib import Path

import pytest

from tasks.home import Home
from tasks.prediction.account import read_account
from tasks.prediction.calibrate import COMPONENT, write_tokens
from tasks.prediction.costs import read_costs, step_key
from tasks.prediction.evidence import known_costs
from tasks.prediction.predict import predict, read_prediction
from tasks.training.launcher import launch_trainer
from tests.tasks.prediction.runs import tiny_run
from trainer.base.errors import VerdictError
from trainer.base.run_folder import RunFolder
from trainer.base.storage import write_json
from trainer.config import RunConfig

STEPS = 45


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.open(str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def trained(home: Home) -> RunConfig:
    """On made-up tokens, with two batch sizes, checkpoints and evaluations."""
    tokens = write_tokens(home.root / "train", "train", 420, 10_000)
    held_out = write_tokens(home.root / "held-out", "held_out", 420, 1000)
    verdict = home.root / "verdict.json"
    write_json(verdict, {"passes": True, "judged": {COMPONENT: tokens.digest}})
    run = tiny_run(
        stop_step=STEPS, batch=[[0, 2], [25, 4]], mixture=[[0, {COMPONENT: 100}]], caches={COMPONENT: str(tokens.folder)},
        cache_digests={COMPONENT: tokens.digest}, verdict=str(verdict), output=str(home.run("tiny-proxy", "warm-up")),
        evaluation={"every_steps": 20, "sequences": 2, "caches": {COMPONENT: str(held_out.folder)}},
    )  # fmt: skip
    prediction = predict(run, known_costs(home), is_from_scratch=True)
    assert prediction.seconds is None
    launch_trainer(run, lambda rows: None, prediction=prediction)
    return run


def test_its_parts_make_up_its_wall_time(home: Home, trained: RunConfig):
    account = read_account(Path(trained.output))
    assert account is not None
    assert account.took is not None
    costs = read_costs(Path(trained.output), "it")
    assert costs is not None
    assert known_costs(home) == [costs.but(source="warm-up of tiny-proxy, trained here")]
    assert set(costs.steps) == {step_key(trained, 2), step_key(trained, 4)}
    again = predict(trained, [costs.but(recipe="another")], is_from_scratch=True)
    assert again.seconds == pytest.approx(account.took.wall_seconds, rel=0.1)
    assert again.left_out == ()
    assert again.bytes_kept is not None
    rows = RunFolder.at(trained.output).metrics.stat().st_size
    kept = sum(path.stat().st_size for path in RunFolder.at(trained.output).checkpoints.rglob("*") if path.is_file())
    assert again.bytes_kept == pytest.approx(kept + rows, rel=0.2), "checkpoints are compressed"
    assert account.took.peak_memory_bytes == again.memory_bytes


def test_that_nothing_was_predicted_is_kept_too(trained: RunConfig):
    prediction = read_prediction(Path(trained.output))
    assert prediction is not None
    assert prediction.seconds is None
    assert "no update like its own" in prediction.source


def test_the_prediction_goes_aside_with_its_run(trained: RunConfig, home: Home):
    other = trained.but(seed=1, verdict=str(home.root / "nowhere.json"))
    prediction = predict(other, known_costs(home), is_from_scratch=True)
    with pytest.raises(VerdictError, match="no verdict"):
        launch_trainer(other, lambda rows: None, prediction=prediction)
    found = read_prediction(Path(trained.output))
    assert found is not None
    assert found.run_digest == other.digest
    (aside,) = (home.runs / "tiny-proxy").glob("warm-up.superseded-*")
    kept = read_prediction(aside)
    assert kept is not None
    assert kept.run_digest == trained.digest


@pytest.mark.parametrize("name", ["run_file", "spent", "metrics"])
def test_a_run_that_does_not_read_is_passed_over(home: Home, tmp_path: Path, name: str):
    place = home.run("tiny-proxy", f"damaged-{name}")
    place.mkdir()
    for file in ("run_file", "spent", "metrics"):
        getattr(RunFolder(place), file).write_text("{}")
    getattr(RunFolder(place), name).write_text("{")
    assert all(f"damaged-{name}" not in costs.source for costs in known_costs(home))
