"""Does the best learning rate stay where the rule of the scales puts it? `python -m tests.pulse.learning_rates FOLDER`.

Kestrel's model at proxy scale in three widths, each trained from scratch with five rates on the bytes of Python's standard library: the
same batches for all of them, none seen twice. A rate is a multiple of what the rule gives (`flows.recipes.scaled`: 1 / width at one batch).
The loss is that of the last tenth of the updates, each before it is trained on. It prints a row a run, and draws a picture; where the rule
holds, the best multiple is the same for every width. `docs/experiments.md` says what came of it.
"""

import argparse
import json
import math
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from flows.recipes import load_record
from flows.recipes.phase import Phase
from trainer.config import Execution, LearningRateSegment, ModelConfig, RunConfig, always
from trainer.preflight.spec import StepShape, run_of
from trainer.schedule import scheduled_at
from trainer.state import init_state
from trainer.step import build_train_step

WIDTHS = (64, 128, 256)
MULTIPLES = (0.125, 0.25, 0.5, 1.0, 2.0)
RATE_AT_128 = 2.4e-3
"""What the rule makes of Ocelot's 1.7e-3 for a width of 128 and a batch of 6, of 4,096 and 3,072: 1.7e-3 · √(6 / 3072) · 4096 / 128."""
SEQUENCES, STEPS, WARMUP, SEEDS = 8, 300, 40, 1
BYTES = 256
INCHES, PIXELS_AN_INCH = (6.0, 3.4), 100


class Trained(NamedTuple):
    """One run; `rate` is the peak."""

    width: int
    multiple: float
    seed: int
    rate: float
    loss: float


def model_of(phase: Phase, width: int) -> ModelConfig:
    """The phase's proxy model in another width, with heads of the same size, over bytes."""
    model = phase.model
    heads = width // model.head_dim
    kv_heads = max(1, heads * model.num_kv_heads // model.num_query_heads)
    d_ff = round(width * model.d_ff / model.d_model)
    return model.but(vocab_size=BYTES, d_model=width, d_ff=d_ff, num_query_heads=heads, num_kv_heads=kv_heads)


def run_at(phase: Phase, width: int, rate: float, *, steps: int, seed: int) -> RunConfig:
    """A run from scratch: warm-up, the rate, and a straight decay over the last fifth."""
    shape = StepShape(
        model=model_of(phase, width), optimizer=phase.optimizer, batch_sequences=SEQUENCES, keeps_average=False, clips_update_rms=False,
        update_norm_window=None, skip_step_window=None,
    )  # fmt: skip
    decay = steps - steps // 5
    pieces = (("linear", 0, WARMUP, 0.0, rate), ("constant", WARMUP, decay, rate, rate), ("linear", decay, steps, rate, 0.0))
    segments = [LearningRateSegment.model_validate(dict(zip(LearningRateSegment.model_fields, piece, strict=True))) for piece in pieces]
    empty = run_of(shape, Execution())
    return empty.but(seed=seed, stop_step=steps, learning_rate=tuple(segments), batch=always(SEQUENCES))


def library_bytes() -> np.ndarray:
    """Python's standard library, one file after the other."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)


def train(run: RunConfig, text: np.ndarray) -> float:
    """The mean loss of the last tenth of the updates; infinite where it is no number."""
    length = run.model.seq_len
    places = np.random.default_rng(run.seed).permutation(len(text) // length)
    rows = text[: len(text) // length * length].reshape(-1, length)[places].astype(np.int32)
    step: Any = build_train_step(run.model, run.optimizer, run.execution)
    state, losses = init_state(run), list[float]()
    segments = jnp.ones((SEQUENCES, length), jnp.int32)
    for number in range(run.stop_step):
        batch = jnp.asarray(rows[number * SEQUENCES : (number + 1) * SEQUENCES])
        state, measured = step(state, batch, segments, scheduled_at(run, number))
        losses.append(float(measured.loss))
    loss = float(np.mean(losses[-run.stop_step // 10 :]))
    return loss if math.isfinite(loss) else math.inf


def best_multiple(runs: Sequence[Trained]) -> float:
    """The minimum of a parabola through the best multiple and its neighbours, over the logarithm of the multiple; seeds are averaged."""
    multiples = sorted({one.multiple for one in runs})
    losses = [float(np.mean([one.loss for one in runs if one.multiple == multiple])) for multiple in multiples]
    best = int(np.argmin(losses))
    if best in (0, len(multiples) - 1):
        return multiples[best]
    near = slice(best - 1, best + 2)
    a, b, _ = np.polyfit(np.log2(multiples[near]), losses[near], 2)
    return float(2 ** (-b / (2 * a)))


def draw(runs: Sequence[Trained]) -> Figure:
    """Loss over the multiple of the rule's rate, a line a width."""
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.subplots()
    for width in sorted({one.width for one in runs}):
        own = [one for one in runs if one.width == width]
        multiples = sorted({one.multiple for one in own})
        losses = [np.mean([one.loss for one in own if one.multiple == multiple]) for multiple in multiples]
        axes.plot(multiples, losses, marker="o", label=f"{width} wide, best at {best_multiple(own):.2g}")
    axes.set(xscale="log", xlabel="multiple of the rule's learning rate", ylabel="loss, nats a byte", xticks=MULTIPLES)
    axes.set_xticklabels([f"{multiple:g}" for multiple in MULTIPLES])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return figure


def main(folder: Path, steps: int, seeds: int) -> None:
    """Train all, a row each, and draw them."""
    phase, text = load_record("marin-8b", "proxy").phase("kestrel"), library_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    runs: list[Trained] = []
    print("width  multiple    rate  seed   loss", flush=True)
    for width in WIDTHS:
        for multiple in MULTIPLES:
            for seed in range(seeds):
                rate = multiple * RATE_AT_128 * 128 / width
                run = run_at(phase, width, rate, steps=steps, seed=seed)
                runs.append(Trained(width, multiple, seed, rate, train(run, text)))
                print(f"{width:>5}  {multiple:>8g}  {rate:.1e}  {seed:>4}  {runs[-1].loss:.4f}", flush=True)
        print(f"{width:>5}  best at {best_multiple([one for one in runs if one.width == width]):.2f}", flush=True)
    (folder / "learning-rates.json").write_text(json.dumps([one._asdict() for one in runs], indent=1) + "\n")
    draw(runs).savefig(folder / "learning-rates.png", dpi=PIXELS_AN_INCH)
    print(folder / "learning-rates.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    main(asked.folder, asked.steps, asked.seeds)
