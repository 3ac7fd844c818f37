"""Measure batch heterogeneity by data order: `python -m experiments.incidents.batch_heterogeneity OUT [--seeds 3]`.

Documents of log-normal length from eight components, each easier or harder to predict, train a small model in several orders. The
baseline of the report packs documents in order into a separate stream per device, as TorchTitan does. Or all devices cut one stream
between them. Or the same rows are permuted, or come from document buffers of several sizes. A microbatch is the part of an update on
one device. BatchHet is the largest loss of a microbatch minus the mean over the microbatches of its update (Trinity Large report,
equation 40). `--rows-a-device 8` is one setting with all buffers. Several settings are compared with one buffer.
`docs/lab/batch-heterogeneity.md` has the figures.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

from phasewise.trainer.config import Execution, ModelConfig, Rope, RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.loader import Batch, Loader
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.loop import build_mean_loss
from phasewise.trainer.state import init_state
from phasewise.trainer.step import build_train_step
from tests.trainer.token_caches import BEGIN, END, write_token_cache

STEPS, WARMUP_STEPS, MEASURED_FROM = 150, 10, 50
MICROBATCHES, SEQ_LEN = 8, 64
ROWS_A_DEVICE = (8,)
"""Trinity Large has six, and later eight."""
VOCAB_SIZE, COMPONENTS, DOCUMENTS = 128, 8, 4000
MEDIAN_TOKENS, LOG_DEVIATION = 150, 1.3
"""Of the documents' lengths: the mean is 350 tokens, five rows and a half; one in fifty has more than 2,200."""
BUFFERS = (2, 8, 32, 128, 512)
PEAK_RATE = 1e-2
ONE_BUFFER = 128
SEQUENTIAL, ONE_STREAM, PERMUTED = "sequential, a stream a device", "sequential, one stream", "rows permuted"


@dataclass(frozen=True)
class Spread:
    order: str
    rows_a_device: int
    seed: int
    batch_het: float
    step_variance: float
    last_loss: float


def model() -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCAB_SIZE,
        seq_len=SEQ_LEN,
        num_layers=1,
        d_model=32,
        d_ff=64,
        num_query_heads=2,
        num_kv_heads=1,
        head_dim=16,
        rope=Rope(theta=10_000.0, scaling=None),
        rms_norm_epsilon=1e-5,
        initializer_std=0.02,
        compute_dtype="float32",
        qk_norm=False,
        tied_head=True,
        sliding_window=None,
        float32_attention=False,
    )


def write_documents(folder: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    lengths = np.maximum(2, np.exp(rng.normal(np.log(MEDIAN_TOKENS), LOG_DEVIATION, DOCUMENTS))).astype(int)
    documents: list[np.ndarray] = []
    for component, length in zip(rng.integers(0, COMPONENTS, DOCUMENTS).tolist(), lengths.tolist(), strict=True):
        chance = 0.2 + 0.1 * component
        jumps = rng.random(length) > chance
        steps = np.where(jumps, rng.integers(0, VOCAB_SIZE - 2, length), 3 + 2 * component)
        documents.append(np.array([BEGIN, *(2 + np.cumsum(steps) % (VOCAB_SIZE - 2)), END], np.uint16))
    return write_token_cache(folder, [documents])


def run_of(folder: Path, seed: int, buffer_documents: int | None, rows_a_device: int) -> RunConfig:
    unlimited, sequences = [[0, None]], MICROBATCHES * rows_a_device
    values = {
        "recipe": "heterogeneity",
        "scale": "own",
        "phase": "only",
        "start_step": 0,
        "stop_step": STEPS,
        "seed": seed,
        "model": model(),
        "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
        "learning_rate": [
            {"kind": "linear", "start_step": 0, "end_step": WARMUP_STEPS, "start": 0.0, "end": PEAK_RATE},
            {"kind": "constant", "start_step": WARMUP_STEPS, "end_step": STEPS, "start": PEAK_RATE, "end": PEAK_RATE},
        ],
        "stability": {
            "max_grad_norm": [[0, 1.0]],
            **dict.fromkeys(("z_loss", "ema_decay", "max_update_rms", "max_update_norm", "skip_step"), unlimited),
        },
        "batch": [[0, sequences]],
        "mixture": [[0, {"text": 100}]],
        "order": {"seed": seed, "permutation": "feistel", "block_sequences": sequences, "buffer_documents": buffer_documents},
        "checkpoints": {"every_steps": STEPS, "every_minutes": None, "keep_all": False},
        "start": None,
        "caches": {"text": str(folder)},
        "verdict": str(folder / "verdict.json"),
        "output": str(folder / "run"),
    }
    return RunConfig.model_validate(values)


def in_sequence(cache: TokenCache, rows_a_device: int, streams: int, step: int) -> Batch:
    each = MICROBATCHES * rows_a_device // streams
    begins = np.arange(streams) * (cache.num_rows(SEQ_LEN) // streams) + step * each
    rows = cache.rows((begins[:, None] + np.arange(each)).ravel(), SEQ_LEN)
    return Batch(rows, cache.manifest.begin_of_text)


def orders(folder: Path, seed: int, rows_a_device: int, buffers: Sequence[int]) -> dict[str, tuple[RunConfig, Callable[[int], Batch]]]:
    """Name → run, and the batch of a step."""
    plain, cache = run_of(folder, seed, None, rows_a_device), TokenCache.open(folder)
    found: dict[str, tuple[RunConfig, Callable[[int], Batch]]] = {
        SEQUENTIAL: (plain, partial(in_sequence, cache, rows_a_device, MICROBATCHES)),
        ONE_STREAM: (plain, partial(in_sequence, cache, rows_a_device, 1)),
        PERMUTED: (plain, Loader(plain).batch),
    }
    for documents in buffers:
        run = run_of(folder, seed, documents, rows_a_device)
        found[f"buffer of {documents}"] = (run, Loader(run).batch)
    return found


def build_losses(model: ModelConfig, rows_a_device: int) -> Callable[..., jax.Array]:
    """Weights, tokens and documents of a batch → the mean loss of each microbatch."""
    mean_loss = build_mean_loss(model, Execution())
    cut = (MICROBATCHES, rows_a_device, SEQ_LEN)
    of_parts = jax.vmap(mean_loss, in_axes=(None, 0, 0))
    return jax.jit(lambda params, tokens, segments: of_parts(params, tokens.reshape(cut), segments.reshape(cut)))


def measure(order: str, run: RunConfig, batch_of: Callable[[int], Batch]) -> Spread:
    rows_a_device = run.batch.at(0) // MICROBATCHES
    update, losses_of = build_train_step(run.model, run.optimizer), build_losses(run.model, rows_a_device)
    state = init_state(run)
    hets, means = list[float](), list[float]()
    for step in range(STEPS):
        batch = batch_of(step)
        losses = np.asarray(losses_of(state.params, batch.tokens, batch.segment_ids))
        hets.append(float(losses.max() - losses.mean()))
        means.append(float(losses.mean()))
        state, _ = update(state, batch.tokens, batch.segment_ids, scheduled_at(run, step))
    of_losses = np.array(means[MEASURED_FROM:])
    step_variance = float(np.mean(np.diff(of_losses) ** 2) / 2)
    return Spread(order, rows_a_device, run.seed, float(np.mean(hets[MEASURED_FROM:])), step_variance, float(of_losses.mean()))


def table(found: Sequence[Spread]) -> str:
    """A line an order: means over the seeds, the range of BatchHet, and both against the sequential order."""
    lines = [
        "| order | BatchHet, nats a token | range over seeds | less than sequential | step-to-step variance | times less | mean loss |",
        "|---|---|---|---|---|---|---|",
    ]
    names = list(dict.fromkeys(one.order for one in found))
    base = [one for one in found if one.order == SEQUENTIAL]
    base_het, base_variance = (float(np.mean([getattr(one, name) for one in base])) for name in ("batch_het", "step_variance"))
    for name in names:
        of_order = [one for one in found if one.order == name]
        hets = [one.batch_het for one in of_order]
        het, variance = float(np.mean(hets)), float(np.mean([one.step_variance for one in of_order]))
        loss = float(np.mean([one.last_loss for one in of_order]))
        lines.append(
            f"| {name} | {het:.3f} | {min(hets):.3f} to {max(hets):.3f} | {100 * (1 - het / base_het):.0f} % "
            f"| {variance:.2e} | {base_variance / variance:.1f} | {loss:.3f} |"
        )
    return "\n".join(lines)


def draw(found: Sequence[Spread]) -> Figure:
    figure = Figure(figsize=(9.0, 3.0), layout="constrained")
    fields = (("batch_het", "BatchHet, nats a token"), ("step_variance", "step-to-step variance of the loss"))
    for axes, (field, title) in zip(figure.subplots(1, 2), fields, strict=True):
        for documents in BUFFERS:
            values = [getattr(one, field) for one in found if one.order == f"buffer of {documents}"]
            axes.scatter([documents] * len(values), values, color="#17705f", s=14, label="document buffer" if documents == 2 else None)
        for name, colour in ((SEQUENTIAL, "#b0531c"), (ONE_STREAM, "#c9a227"), (PERMUTED, "#2b6a9e")):
            mean = float(np.mean([getattr(one, field) for one in found if one.order == name]))
            axes.axhline(mean, color=colour, linewidth=1.2, label=name)
        axes.set(xscale="log", xlabel="documents in the buffer when it is refilled", title=title)
        axes.set_xticks(BUFFERS, [str(one) for one in BUFFERS])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(fontsize=8)
    return figure


def main() -> None:
    """Write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows-a-device", type=int, nargs="+", default=ROWS_A_DEVICE)
    arguments = parser.parse_args()
    found: list[Spread] = []
    settings = arguments.rows_a_device
    for seed in range(arguments.seeds):
        folder = write_documents(arguments.out / f"text-{seed}", seed)
        for rows in settings:
            for name, (run, batch_of) in orders(folder, seed, rows, BUFFERS if len(settings) == 1 else (ONE_BUFFER,)).items():
                found.append(measure(name, run, batch_of))
                print(found[-1], flush=True)
    for rows in settings:
        print(f"\n{rows} rows a device\n\n{table([one for one in found if one.rows_a_device == rows])}")
    if len(settings) == 1:
        draw(found).savefig(arguments.out / "batch-heterogeneity.png", dpi=100)


if __name__ == "__main__":
    main()
