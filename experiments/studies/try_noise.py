"""False calls of experiments without a true difference, by real trainings: `python -m experiments.studies.try_noise [--trials N]`.

A trial has a control and an arm with three replicates each. Replicates of both continue from one parent, and differ only in the seed of the
data order, so every called difference is false. All trainings run in this process through the trainer's own step and loader, and the
differences are judged by `difference_table`. The benchmark is the next byte of held-out text, whose items all trainings share.
`docs/lab/experiments.md` has the figures.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.gate_noise import Share
from phasewise.flows.recipes.words import adamw, always, checkpoints, constant, linear, llama, order, stability
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.model.decoder import head_weight, run_layers
from phasewise.trainer.model.params import init_params
from phasewise.trainer.optimizer import build_optimizer
from phasewise.trainer.step import TrainState, build_train_step
from phasewise.validations.evidence.arm_differences import ERROR_RATE, Measured, difference_table
from phasewise.validations.evidence.proportions import Pairs
from tests.trainer.token_caches import BEGIN, END, write_token_cache

TEXT = Path(__file__).parents[2] / "docs"
PARENT_STEPS, STOP_STEP, REPLICATES, TRIALS = 100, 130, 3, 100
BATCH, SEQ_LEN, ROWS, ITEMS = 8, 64, 32, 200
MODEL = llama(num_layers=1, d_model=32, seq_len=SEQ_LEN, vocab_size=258)
RATE, FLOOR = 5e-3, 5e-4
PAIRED = {True: "paired", False: "unpaired"}


def build_run(folder: Path, seed: int) -> RunConfig:
    return RunConfig(
        recipe="noise", scale="own", phase="fall", start_step=0, stop_step=STOP_STEP, seed=0, model=MODEL, optimizer=adamw(),
        learning_rate=(constant(0, PARENT_STEPS, RATE), linear(PARENT_STEPS, STOP_STEP, RATE, FLOOR)), stability=stability(),
        batch=always(BATCH), mixture=always({"text": 100.0}), order=order(seed=seed),
        checkpoints=checkpoints(every_steps=STOP_STEP), start=None, caches={"text": str(folder / "text")},
        verdict=str(folder / "verdict.json"), output=str(folder / "run"),
    )  # fmt: skip


class Trainer:
    """Trainings of one model with other data orders. The step is compiled once."""

    def __init__(self, folder: Path) -> None:
        documents = [np.frombuffer(path.read_bytes(), np.uint8).astype(np.uint16) + 2 for path in sorted(TEXT.rglob("*.md"))]
        held_out = np.concatenate(documents[::8])[: ROWS * SEQ_LEN].reshape(ROWS, SEQ_LEN)
        self.held_out = jnp.asarray(held_out.astype(np.int32))
        kept = [np.array([BEGIN, *text, END], np.uint16) for number, text in enumerate(documents) if number % 8]
        write_token_cache(folder / "text", [kept])
        self.folder = folder
        self.step = build_train_step(MODEL, build_run(folder, 0).optimizer)
        params = init_params(0, MODEL)
        first = TrainState(params, build_optimizer(adamw(), MODEL).init(params), None)
        self.parent, _ = self.train(first, seed=0, start=0, stop=PARENT_STEPS)
        self.logits: Callable[..., jax.Array] = jax.jit(lambda one: run_layers(one, self.held_out, MODEL)[0] @ head_weight(one, MODEL))

    def train(self, state: TrainState, *, seed: int, start: int, stop: int) -> tuple[TrainState, float]:
        run, loss = build_run(self.folder, seed), 0.0
        loader = Loader(run)
        for number in range(start, stop):
            batch = loader.batch(number)
            state, measured = self.step(state, batch.tokens, batch.segment_ids, scheduled_at(run, number))
            loss = measured.loss
        return state, float(loss)

    def measure(self, seed: int) -> tuple[float, float, np.ndarray]:
        """Final loss, held-out loss in bits per byte, and the right answers among the items."""
        state, final = self.train(jax.tree.map(jnp.copy, self.parent), seed=seed, start=PARENT_STEPS, stop=STOP_STEP)
        logits, targets = self.logits(state.params)[:, :-1], self.held_out[:, 1:]
        likelihoods = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
        right = np.asarray(logits.argmax(-1) == targets).ravel()
        return final, float(-likelihoods.mean() / np.log(2)), right[:: len(right) // ITEMS][:ITEMS]


def trial(trainer: Trainer, seeds: range) -> dict[str, list[float]]:
    """The adjusted and the plain p-values of the measures, with replicates as pairs and without."""
    measured = [trainer.measure(seed) for seed in seeds]
    control, arm = measured[:REPLICATES], measured[REPLICATES:]
    items = [Pairs(ITEMS, int((a & ~b).sum()), int((b & ~a).sum())) for (*_, b), (*_, a) in zip(control, arm, strict=True)]
    sides = {"final loss": lambda one: one[0], "bits per byte": lambda one: one[1], "next byte": lambda one: float(one[2].mean())}
    found: dict[str, list[float]] = {}
    for is_paired in (True, False):
        tests = [
            Measured("arm", name, [of(one) for one in arm], [of(one) for one in control], items if name == "next byte" else (), is_paired)
            for name, of in sides.items()
        ]
        table = difference_table(tests)
        found[PAIRED[is_paired]] = list(table["adjusted_p_value"])
        found[f"{PAIRED[is_paired]}, without Holm"] = list(table["p_value"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials = parser.parse_args().trials
    with tempfile.TemporaryDirectory() as folder:
        trainer, width = Trainer(Path(folder)), 2 * REPLICATES
        found = [trial(trainer, range(1 + width * number, 1 + width * (number + 1))) for number in range(trials)]
    print(f"{trials} trials of {width} trainings: trials with p < {ERROR_RATE}, of any measure, then of each measure")
    for name in found[0]:
        any_of = Share(sum(min(one[name]) < ERROR_RATE for one in found), trials)
        each = [sum(value < ERROR_RATE for value in of) for of in zip(*(one[name] for one in found), strict=True)]
        print(f"{name:<25} {any_of.found:>3} ({any_of})   {each}")


if __name__ == "__main__":
    main()
