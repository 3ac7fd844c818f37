"""How good predictions are: `python -m tests.pulse.predicted FOLDER [--phases 60]` trains so many small phases, predicted first.

The phases are those of the recipes at proxy scale, with other batches and lengths, on made-up tokens. Each shape is calibrated once. Two
predictions are made of each phase: by its calibration alone, and as `phasewise run` does, by all that was measured. FOLDER is
the home of all this; what is done in it already is not done again. The machine should have nothing else to do.
"""

import argparse
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from flows.predicted import run_without_data
from flows.recipes import load_recipe
from tasks.home import Home
from tasks.prediction.account import read_account
from tasks.prediction.calibrate import COMPONENT, calibrate, write_tokens
from tasks.prediction.costs import Costs, step_keys
from tasks.prediction.evidence import keep_calibration, known_costs
from tasks.prediction.predict import predict
from tasks.training.launcher import launch_trainer
from trainer.base.run_folder import RunFolder
from trainer.base.storage import write_json
from trainer.config import LearningRateSegment, LossEvaluation, RunConfig, always
from trainer.data.manifest import SPLITS

RECIPES = "marin-8b,marin-32b"
BATCHES, STEPS = (2, 4, 8), (80, 120, 200, 300)
ROWS, MAX_ERROR, WANTED_SHARE = 2048, 0.15, 0.8
RATE = 1e-4
CALIBRATION = "a calibration"


class Outcome(NamedTuple):
    """Seconds of one phase."""

    run: RunConfig
    by_calibration: float | None
    predicted: float
    took: float


def phases(home: Home, count: int, recipes: str = RECIPES) -> Iterator[RunConfig]:
    """Runs of several models, batches and lengths, the same for the same folder."""
    rng = random.Random(20)
    every = [(recipe, phase) for name in recipes.split(",") for recipe in [load_recipe(name, "proxy")] for phase in recipe.main_line]
    for number in range(count):
        recipe, phase = rng.choice(every)
        run = run_without_data(recipe, phase, home)
        yield on_made_up_tokens(run, home, f"phase-{number}", batch=rng.choice(BATCHES), steps=rng.choice(STEPS))


def on_made_up_tokens(run: RunConfig, home: Home, name: str, *, batch: int, steps: int) -> RunConfig:
    """The run with another batch and length, from new weights."""
    place = home.root / "made-up"
    shutil.rmtree(place / name, ignore_errors=True)
    sizes = run.model.vocab_size, ROWS * run.model.seq_len
    tokens = {split: write_tokens(place / name / split, split, *sizes) for split in SPLITS}
    verdict = place / name / "verdict.json"
    write_json(verdict, {"passes": True, "judged": {COMPONENT: tokens["train"].digest}})
    held_out = {f"component {number}": str(tokens["held_out"].folder) for number in range(3)}
    return run.but(
        recipe="predicted",
        phase=name,
        start_step=0,
        stop_step=steps,
        batch=always(batch),
        mixture=always({COMPONENT: 100.0}),
        order=run.order.but(first_step=0),
        learning_rate=(LearningRateSegment(kind="constant", start_step=0, end_step=steps, start=RATE, end=RATE),),
        caches={COMPONENT: str(tokens["train"].folder)},
        cache_digests={COMPONENT: tokens["train"].digest},
        verdict=str(verdict),
        output=str(home.run("predicted-proxy", name)),
        evaluation=LossEvaluation(every_steps=20, sequences=2, caches=held_out),
        recovery=None,
    )


def measure(run: RunConfig, home: Home) -> Outcome:
    """Calibrate where nothing is known of its shape, predict, train."""
    (size, key) = next(iter(step_keys(run).items()))
    if not any(key in costs.steps for costs in calibrations(home)):
        keep_calibration(home, calibrate(run, size, home))
    alone = predict(run, calibrations(home), is_from_scratch=True)
    prediction = predict(run, known_costs(home), is_from_scratch=True)
    launch_trainer(run, lambda rows: None, prediction=prediction)
    account = read_account(Path(run.output))
    assert account is not None
    assert account.took is not None
    assert account.prediction.seconds is not None
    return Outcome(run, alone.seconds, account.prediction.seconds, account.took.wall_seconds)


def calibrations(home: Home) -> list[Costs]:
    """Without phases that were trained."""
    return [costs for costs in known_costs(home) if costs.source.startswith(CALIBRATION)]


def error(predicted: float, took: float) -> float:
    """As a share of what it took."""
    return predicted / took - 1


def said(name: str, errors: list[float]) -> str:
    """The share within the limit, and the median error."""
    within = sum(abs(one) <= MAX_ERROR for one in errors)
    share, middle = within / len(errors), median(map(abs, errors))
    shares = f"{share:.0%}, wanted {WANTED_SHARE:.0%}"
    return f"{name}: {within} of {len(errors)} within {MAX_ERROR:.0%} of measured ({shares}); median {middle:.1%}"


def main() -> None:
    """Train, print a row for each phase as it ends, and the shares at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--phases", type=int, default=60)
    parser.add_argument("--recipes", default=RECIPES, help="between commas; those with experts, such as trinity-nano, take minutes a phase")
    given = parser.parse_args()
    home = Home.open(given.folder)
    print(f"{'phase':10} {'parameters as':28} {'steps':>5} {'took':>7} {'calibrated':>11} {'as a run':>8} {'error':>7} {'error':>7}")
    alone: list[float] = []
    as_run: list[float] = []
    for run in phases(home, given.phases, given.recipes):
        is_done = RunFolder.at(run.output).result.exists()
        found = measure(run, home)
        shape = f"{run.model.num_layers} × {run.model.d_model}, batch {run.batch.at(0)}, {run.optimizer.kind}"
        calibrated = error(found.by_calibration or 0.0, found.took)
        predicted = error(found.predicted, found.took)
        print(
            f"{run.phase:10} {shape:28} {run.stop_step:5} {found.took:6.1f}s {found.by_calibration or 0:10.1f}s {found.predicted:7.1f}s "
            f"{calibrated:+7.0%} {predicted:+7.0%}{' (done before)' if is_done else ''}",
            flush=True,
        )
        alone.append(calibrated)
        as_run.append(predicted)
    print(said("by the calibration alone", alone))
    print(said("as a run is predicted", as_run))


if __name__ == "__main__":
    main()
