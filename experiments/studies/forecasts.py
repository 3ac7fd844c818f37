"""Forecasts of 60 proxy phases: `python -m experiments.studies.forecasts [--lineages N]`.

A lineage is a training at a constant learning rate, and each of its twelve phases continues it with another schedule and data order. Depth
and peak rate differ between lineages. The phases of the first lineage only give a history, and every later phase is forecast from all
earlier phases. Each later phase is trained again with ten times its learning rate for a fifth of its updates. The text is the standard
library of Python, as bytes. All trainings run in this process through the trainer's own step and loader. `docs/how-to/forecast.md` has
the figures.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

import argparse
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from phasewise.flows.recipes.words import adamw, always, checkpoints, constant, linear, llama, order, stability
from phasewise.trainer.config import LearningRateSegment, ModelConfig, RunConfig, learning_rate_at
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.forecast import LossBand
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.model.params import init_params
from phasewise.trainer.optimizer import build_optimizer
from phasewise.trainer.step import TrainState, build_train_step
from phasewise.validations.evidence.loss_forecast import Curve, forecast_losses
from tests.trainer.token_caches import BEGIN, END, write_token_cache

PARENT, BATCH, SEQ_LEN, WIDTH, PATIENCE, TOO_HIGH, END_SHARE = 300, 16, 128, 32, 15, 10.0, 5
LINEAGES = ((2, 1.5e-3), (1, 3e-3), (3, 3e-3), (2, 6e-3), (1, 1.5e-3), (2, 3e-3))
"""Layers and peak learning rate."""
SCHEDULES = ("constant", "linear 0.5", "linear 0.1", "linear 0.01", "late decay", "early decay")
LENGTHS = (150, 250)
Segments = tuple[LearningRateSegment, ...]


def write_text(folder: Path) -> None:
    paths = [path for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")) if not {"site-packages", "test"} & {*path.parts}]
    documents = [
        np.array([BEGIN, *(np.frombuffer(one.read_bytes()[:20000], np.uint8).astype(np.uint16) + 2), END], np.uint16) for one in paths
    ]
    np.random.default_rng(0).shuffle(documents)  # pyright: ignore[reportArgumentType]
    write_token_cache(folder / "text", [documents])


def schedule(kind: str, rate: float, first: int, last: int) -> Segments:
    if kind == "constant":
        return (constant(first, last, rate),)
    if kind == "late decay":
        middle = first + (last - first) * 2 // 3
        return constant(first, middle, rate), linear(middle, last, rate, 0.05 * rate)
    if kind == "early decay":
        middle = first + (last - first) // 3
        return linear(first, middle, rate, 0.1 * rate), constant(middle, last, 0.1 * rate)
    return (linear(first, last, rate, float(kind.split()[1]) * rate),)


def model_of(layers: int) -> ModelConfig:
    return llama(num_layers=layers, d_model=WIDTH, seq_len=SEQ_LEN, vocab_size=258)


def run_of(folder: Path, layers: int, seed: int, rates: Segments, stop: int) -> RunConfig:
    return RunConfig(
        recipe="forecasts", scale="own", phase="phase", start_step=0, stop_step=stop, seed=0,
        model=model_of(layers), optimizer=adamw(), learning_rate=rates,
        stability=stability(), batch=always(BATCH), mixture=always({"text": 100.0}), order=order(seed=seed),
        checkpoints=checkpoints(every_steps=stop), start=None, caches={"text": str(folder / "text")}, verdict=str(folder / "verdict.json"),
        output=str(folder / "run"),
    )  # fmt: skip


@cache
def step_of(layers: int) -> Any:
    return build_train_step(model_of(layers), adamw())


def train(run: RunConfig, state: TrainState, first: int, last: int) -> tuple[TrainState, np.ndarray, np.ndarray]:
    step, loader, losses = step_of(run.model.num_layers), Loader(run), list[Any]()
    for number in range(first, last):
        batch = loader.batch(number)
        state, measured = step(state, batch.tokens, batch.segment_ids, scheduled_at(run, number))
        losses.append(measured.loss)
    rates = np.array([learning_rate_at(run.learning_rate, number) for number in range(first, last)])
    return state, rates, np.array([float(loss) for loss in losses])


def first_left(band: LossBand, losses: np.ndarray) -> int | None:
    values = losses.tolist()
    return next((update for update in range(1, len(values) + 1) if band.finding(values[:update], update)), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lineages", type=int, default=len(LINEAGES), choices=range(2, len(LINEAGES) + 1))
    earlier, errors, covered, stopped, caught = list[Curve](), list[float](), list[float](), 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder)
        for lineage, (layers, rate) in enumerate(LINEAGES[: parser.parse_args().lineages]):
            head = (linear(0, 20, 0.0, rate), constant(20, PARENT, rate))
            run = run_of(folder, layers, 100 + lineage, head, PARENT)
            params = init_params(lineage, run.model)
            first = TrainState(params, build_optimizer(adamw(), run.model).init(params), None)
            parent, rates, before = train(run, first, 0, PARENT)
            for number, (length, kind) in enumerate((length, kind) for length in LENGTHS for kind in SCHEDULES):
                stop, seed = PARENT + length, 1000 + 100 * lineage + number
                schedules = [(*head, *schedule(kind, factor * rate, PARENT, stop)) for factor in (1.0, TOO_HIGH)]
                sound_run, wrong_run = (run_of(folder, layers, seed, one, stop) for one in schedules)
                _, after, sound = train(sound_run, jax.tree.map(jnp.copy, parent), PARENT, stop)
                _, _, wrong = train(wrong_run, jax.tree.map(jnp.copy, parent), PARENT, PARENT + length // 5)
                curve = Curve(str(lineage), PARENT, np.concatenate([rates, after]), np.concatenate([before, sound]))
                if lineage:
                    forecast = forecast_losses(curve._replace(losses=np.append(before, np.full(length, np.nan))), earlier)
                    band, end = LossBand("", PATIENCE, forecast.low, forecast.high), length // END_SHARE
                    errors.append(abs(float(forecast.mean[-end:].mean() / sound[-end:].mean()) - 1))
                    covered.append(float(((sound >= forecast.low) & (sound <= forecast.high)).mean()))
                    stopped += first_left(band, sound) is not None
                    caught += first_left(band, wrong) is not None
                    print(
                        f"{len(errors)}: {layers} layers, {kind} over {length}: error of the end {100 * errors[-1]:.2f} % (median "
                        f"{100 * np.median(errors):.2f} %), covered {100 * np.mean(covered):.1f} %, sound phases stopped {stopped}, "
                        f"too high rates stopped {caught}",
                        flush=True,
                    )
                earlier.append(curve)


if __name__ == "__main__":
    main()
