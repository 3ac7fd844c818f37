"""Forecasts of a loss: the law on made curves, and trainings inside and outside their band."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasewise.flows.forecast import forecast_of
from phasewise.flows.recipes.words import constant, linear
from phasewise.tasks.home import Home
from phasewise.tasks.validation.decide import decide
from phasewise.trainer.base.errors import AsksPerson, CheckpointError, DataError, TrainingDiverged
from phasewise.trainer.base.identity import digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, append_event
from phasewise.trainer.config import RunConfig
from phasewise.trainer.forecast import band_of
from phasewise.trainer.loop import train
from phasewise.trainer.metrics import MetricsFile
from phasewise.validations.evidence.loss_forecast import Curve, forecast_losses
from tests.trainer.conftest import MakeRun

BEFORE, LENGTH, NOISE = 300, 200, 0.04


def made(rng: np.random.Generator, lineage: int, ends: float) -> Curve:
    """A lineage that ends at a share of its peak rate. The loss falls with the sum of the rates, and follows the rate after 30 updates."""
    rates = np.r_[np.linspace(0, 1, 20), np.ones(BEFORE - 20), np.linspace(1, ends, LENGTH)] * 1e-3 * (1 + lineage)
    keep, relaxed, value = np.exp(-1 / 30), np.empty(len(rates)), 0.0
    for update, rate in enumerate(rates / rates.max()):
        relaxed[update] = value = keep * value + (1 - keep) * (1 - rate)
    log = 1.2 - (0.12 + 0.02 * lineage) * np.log(np.cumsum(rates) / rates.max() + 1) - 0.08 * relaxed
    return Curve(str(lineage), BEFORE, rates, np.exp(log + NOISE * rng.standard_normal(len(rates))))


def test_a_forecast_has_the_end_and_its_band_covers_four_fifths_of_the_updates():
    rng = np.random.default_rng(0)
    earlier = [made(rng, lineage, ends) for lineage in range(4) for ends in (1.0, 0.5, 0.1, 0.01)]
    errors, covered = list[float](), list[float]()
    for lineage, ends in ((0, 0.3), (1, 0.05), (2, 0.7), (3, 0.2)):
        whole = made(rng, lineage, ends)
        blind = whole._replace(losses=np.r_[whole.losses[:BEFORE], np.full(LENGTH, np.nan)])
        found, losses = forecast_losses(blind, earlier), whole.losses[BEFORE:]
        errors.append(abs(found.mean[-40:].mean() / losses[-40:].mean() - 1))
        covered.append(float(((losses > found.low) & (losses < found.high)).mean()))
    assert np.median(errors) < 0.015
    assert 0.7 < np.mean(covered) < 0.9
    with pytest.raises(DataError, match="expected 8 earlier phases of the same kind in the home, found 7"):
        forecast_losses(earlier[0], earlier[1:8])
    short = Curve("short", 20, *(one[BEFORE - 20 :] for one in earlier[0][2:]))
    with pytest.raises(DataError, match="expected 30 comparable losses"):
        forecast_losses(short, earlier)


def with_forecast(run: RunConfig, low: float, high: float) -> dict[str, object]:
    length = run.stop_step - run.start_step
    curves = {name: [value] * length for name, value in (("low", low), ("mean", low), ("high", high))}
    return {"run_digest": run.digest, "patience_updates": 5, "earlier_phases": 8, **curves}


def write_forecast(run: RunConfig, low: float, high: float) -> None:
    content = with_forecast(run, low, high)
    write_sealed(RunFolder(run.output).forecast, content)
    append_event(run.output, "forecast", run.start_step, f"sha256 {digest_of_json(content)}")


@pytest.mark.usefixtures("built_once")
def test_a_loss_outside_the_band_waits_for_a_person_who_decides(make_run: MakeRun):
    def trained(run: RunConfig, low: float, high: float) -> str:
        write_forecast(run, low, high)
        return train(run)["params_digest"]

    sound, left, stopped = (make_run(name) for name in ("sound", "left", "stopped"))
    expected = trained(sound, 0.1, 100.0)
    question = RunFolder(left.output).question
    for _ in range(2):
        with pytest.raises(
            AsksPerson, match=r"mean loss of 5 updates is .* forecast is 0\.1 to 0\.2 at step 5, and it left its forecast: a person"
        ):
            trained(left, 0.1, 0.2)
    assert read_sealed(question)["judged"].keys() == {"the forecast"}
    decide(question, approves=True, reason="the data are harder", who="ada")
    assert trained(left, 0.1, 0.2) == expected

    with pytest.raises(AsksPerson):
        trained(stopped, 0.1, 0.2)
    decide(RunFolder(stopped.output).question, approves=False, reason="a wrong rate", who="ada")
    with pytest.raises(TrainingDiverged, match="to go on was rejected by ada"):
        trained(stopped, 0.1, 0.2)


@pytest.mark.usefixtures("built_once")
def test_a_forecast_of_another_run_or_a_changed_one_is_refused(make_run: MakeRun, tmp_path: Path):
    run = make_run("other")
    assert band_of(run) is None
    write_forecast(run, 0.1, 0.2)
    assert band_of(run) is not None
    assert band_of(run.but(cache_digests=dict.fromkeys(run.caches, "1" * 64))) is not None, "the same bytes under another name"
    write_sealed(RunFolder(run.output).forecast, {**with_forecast(run, 0.1, 0.2), "run_digest": "another"})
    with pytest.raises(CheckpointError, match="expected the forecast that the run's events name, found another one"):
        band_of(run)
    RunFolder(run.output).forecast.write_text("{}")
    with pytest.raises(CheckpointError, match="expected a forecast, found a changed file"):
        band_of(run)


def write_curve(run: RunConfig, curve: Curve) -> None:
    folder = RunFolder(run.output)
    write_sealed(folder.run_file, run.model_dump(mode="json"))
    metrics = MetricsFile(folder.metrics, restored_step=run.start_step)
    for step in range(run.start_step + 1, run.stop_step + 1):
        metrics.append({"step": step, "loss": float(curve.losses[step - 1])})
    metrics.close()
    write_sealed(folder.result, {"run_digest": run.digest})


def test_the_lineage_and_the_phases_of_the_home_give_a_forecast_unless_the_data_change(
    make_run: MakeRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    home, rng = Home.open(str(tmp_path / "home")), np.random.default_rng(0)

    def run_of(phase: str, start: int, stop: int, ends: float, **more: Any) -> RunConfig:
        rates = (linear(start, stop, 1e-3, ends * 1e-3),) if start else (constant(0, stop, 1e-3),)
        place = {"recipe": "own", "phase": phase, "output": str(home.run("own", phase)), "start_step": start, "stop_step": stop}
        checkpoint = {"checkpoint": str(home.run("own", "parent") / "checkpoints" / str(BEFORE)), "params_digest": "0" * 64, "fresh": ()}
        same = {"learning_rate": rates, "batch": [[0, 4]], "mixture": [[0, {"books": 60, "code": 40}]], "recovery": None}
        return make_run("any", **{**same, **place, "start": checkpoint if start else None, **more})

    write_curve(run_of("parent", 0, BEFORE, 1.0), made(np.random.default_rng(0), 0, 1.0))
    for number, ends in enumerate((1.0, 0.5, 0.1, 0.01) * 2):
        assert forecast_of(run_of("next", BEFORE, BEFORE + LENGTH, 0.3), home) is None, "fewer than eight phases"
        write_curve(run_of(f"child-{number}", BEFORE, BEFORE + LENGTH, ends), made(rng, 0, ends))
    found = forecast_of(run_of("next", BEFORE, BEFORE + LENGTH, 0.3), home)
    assert found is not None
    assert (found["earlier_phases"], found["patience_updates"], len(found["mean"]), len(found["metrics"])) == (8, 15, LENGTH, 9)
    truth = made(np.random.default_rng(9), 0, 0.3).losses[BEFORE:]
    assert np.mean(found["mean"][-40:]) == pytest.approx(truth[-40:].mean(), rel=0.03)
    other = run_of("next", BEFORE, BEFORE + LENGTH, 0.3, mixture=[[0, {"books": 60, "code": 40}], [BEFORE, {"books": 50, "code": 50}]])
    assert forecast_of(other, home) is None
    assert "no forecast of its loss: expected a parent with the same model, rows, batch and mixture" in caplog.text
