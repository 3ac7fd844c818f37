"""This project's train step on the peers' model, as a separate process, with the shapes, batches and settings of the peers' scripts.

python -m experiments.bench.train_step_process step|large|loop|instrumentation   prints a line of JSON, as the peers do
"""

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil

from experiments.bench.measure import in_turns, seconds
from phasewise.trainer.config import AdamW, Component, Execution, ModelConfig, Rope, RunConfig
from phasewise.trainer.data.loader import Batch
from phasewise.trainer.interventions import Scheduled
from phasewise.trainer.metrics import Row
from phasewise.trainer.model.params import init_params
from phasewise.trainer.optimizer import build_optimizer
from phasewise.trainer.process.accelerator import keep_freed_memory
from phasewise.trainer.recorder import Recorder
from phasewise.trainer.step import StepMetrics, TrainState, build_train_step

MODEL = ModelConfig(
    vocab_size=8192, seq_len=256, num_layers=4, d_model=256, d_ff=704, num_query_heads=4, num_kv_heads=2, head_dim=64,
    rope=Rope(theta=10_000.0, scaling=None), rms_norm_epsilon=1e-5, initializer_std=0.02, compute_dtype="float32",
    qk_norm=False, tied_head=False, sliding_window=None, float32_attention=False,
)  # fmt: skip
LARGE = MODEL.but(num_layers=12, d_model=512, d_ff=1408, num_query_heads=8, num_kv_heads=4, vocab_size=16_384)
"""52 M parameters."""
OPTIMIZER = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
SCHEDULED = Scheduled(learning_rate=6e-4, z_loss=0.0, max_grad_norm=1.0, ema_decay=0.0)
EXECUTION = Execution(loss_chunk_tokens=512)
"""Logits of all tokens are 134 MB, which a CPU pages in again at each step."""
SEQUENCES, LARGE_SEQUENCES, WARM_UP, TIMED, TURNS = 16, 4, 2, 5, 5
Step = Callable[[], None]


def batches(sequences: int = SEQUENCES) -> list[Batch]:
    rows = (np.random.default_rng(100 + number).integers(0, MODEL.vocab_size, (sequences, MODEL.seq_len)) for number in range(4))
    return [Batch(tokens.astype(np.int32), begin_of_text=-1) for tokens in rows]


def fresh_state(model: ModelConfig = MODEL) -> TrainState:
    """Weights and optimizer, no average."""
    params = init_params(0, model)
    return TrainState(params, build_optimizer(OPTIMIZER, model).init(params), None)


def measure_step(model: ModelConfig = MODEL, sequences: int = SEQUENCES) -> dict[str, float]:
    jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / "phasewise-bench-compilation-cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    state = fresh_state(model)
    step = build_train_step(model, OPTIMIZER, EXECUTION)
    turns = rotation(sequences)

    def one() -> None:
        nonlocal state
        batch = next(turns)
        state, measured = step(state, batch.tokens, batch.segment_ids, SCHEDULED)
        float(measured.loss)

    first = seconds(one)
    since_start = time.time() - psutil.Process().create_time()
    times = [seconds(one) for _ in range(WARM_UP - 1 + TIMED)][WARM_UP - 1 :]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    side = np.random.default_rng(0).random((2048, 2048), np.float32)
    product = jax.jit(lambda a: a @ a)
    square = jax.device_put(side)
    jax.block_until_ready(product(square))
    products = [seconds(lambda: jax.block_until_ready(product(square))) for _ in range(TIMED)]
    return {
        "step_s_med": statistics.median(times),
        "step_s_min": min(times),
        "first_step_s": first,
        "start_to_first_step_s": since_start,
        "gemm_flops": 2 * 2048**3 / statistics.median(products),
        "rss_mb": peak / 1024,
    }


def rotation(sequences: int = SEQUENCES) -> Iterator[Batch]:
    """The batches again and again."""
    found = batches(sequences)
    while True:
        yield from found


class TimedStep:
    inside = 0.0

    def __init__(self, step: Callable[..., tuple[TrainState, StepMetrics]]):
        self._step = step

    def __call__(self, *arguments: Any) -> tuple[TrainState, StepMetrics]:
        started = time.perf_counter()
        found = jax.block_until_ready(self._step(*arguments))
        self.inside += time.perf_counter() - started
        return found


def measure_loop() -> dict[str, float]:
    from phasewise.trainer import loop

    with tempfile.TemporaryDirectory() as folder:
        run = build_run(Path(folder), steps=WARM_UP + TIMED, instrumentation={"layer_norms_every": 1})
        made: list[TimedStep] = []

        def build(*arguments: Any) -> TimedStep:
            made.append(TimedStep(build_train_step(*arguments)))
            return made[-1]

        loop.build_train_step = build
        marks: list[tuple[float, float]] = []
        write = Recorder.write

        def marked(self: Recorder, step: int, measured: StepMetrics, more: Row) -> None:
            write(self, step, measured, more)
            marks.append((time.perf_counter(), made[0].inside))

        Recorder.write = marked
        loop.train(run)
    (begun, inside_before), (ended, inside_after) = marks[WARM_UP - 1], marks[-2]
    inside = inside_after - inside_before
    return {"outside_share": 1 - inside / (ended - begun), "step_s": inside / (len(marks) - WARM_UP - 1)}


def measure_instrumentation() -> dict[str, float]:
    import importlib.util

    with tempfile.TemporaryDirectory() as folder:
        to = {"layer_norms_every": 1, "tensorboard": importlib.util.find_spec("tensorboardX") is not None}
        with Recorder(build_run(Path(folder), steps=100, instrumentation=to), restored_step=0) as recorder:
            whole = build_train_step(MODEL, OPTIMIZER, EXECUTION)
            sides = {"off": lambda: seconds(off), "on": lambda: seconds(on)}
            off = build_bare(whole)
            on = build_recorded(whole, recorder)
            in_turns(sides, WARM_UP)  # compiles
            medians = in_turns(sides, TURNS * TIMED)
    return {"on_s": medians["on"], "off_s": medians["off"], "on_over_off": medians["on"] / medians["off"]}


def build_bare(whole: Callable[..., tuple[TrainState, StepMetrics]]) -> Step:
    def losses_only(state: TrainState, tokens: Any, segments: Any, scheduled: Scheduled) -> tuple[TrainState, Any]:
        state, measured = whole(state, tokens, segments, scheduled)
        return state, measured.loss

    step = jax.jit(losses_only, donate_argnums=0)
    state = fresh_state()
    turns = rotation()

    def one() -> None:
        nonlocal state
        batch = next(turns)
        state, loss = step(state, batch.tokens, batch.segment_ids, SCHEDULED)
        float(loss)

    return one


def build_recorded(whole: Callable[..., tuple[TrainState, StepMetrics]], recorder: Recorder) -> Step:
    """Everything is measured and written."""
    state = fresh_state()
    turns = rotation()
    number = 0

    def one() -> None:
        nonlocal state, number
        batch = next(turns)
        number += 1
        state, measured = whole(state, batch.tokens, batch.segment_ids, SCHEDULED)
        recorder.write(number, measured, {"data_seconds": 0.0})

    return one


def build_run(folder: Path, *, steps: int, instrumentation: dict[str, Any]) -> RunConfig:
    """A run on a cache of random tokens."""
    component: Component = "random"
    never: list[Any] = [[0, None]]
    names = ("z_loss", "ema_decay", "max_update_rms", "max_update_norm", "skip_step")
    return RunConfig.model_validate(
        {
            "recipe": "bench", "scale": "proxy", "phase": "bench", "start_step": 0, "stop_step": steps, "seed": 0,
            "model": MODEL.model_dump(), "optimizer": OPTIMIZER.model_dump(),
            "learning_rate": [{"kind": "constant", "start_step": 0, "end_step": steps, "start": 6e-4, "end": 6e-4}],
            "stability": {"max_grad_norm": [[0, 1.0]], **dict.fromkeys(names, never)},
            "batch": [[0, SEQUENCES]], "mixture": [[0, {component: 100}]],
            "order": {"seed": 0, "permutation": "feistel", "block_sequences": SEQUENCES},
            "checkpoints": {"every_steps": 10**6, "every_minutes": None, "keep_all": False}, "start": None,
            "caches": {component: str(write_random_cache(folder / "cache"))}, "verdict": "none",
            "output": str(folder / "run"), "instrumentation": instrumentation, "execution": EXECUTION.model_dump(),
        }
    )  # fmt: skip


def write_random_cache(folder: Path) -> Path:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    from phasewise.trainer.base.identity import digest_of_bytes
    from phasewise.trainer.base.storage import write_atomically
    from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, write_manifest

    tokens = np.random.default_rng(0).integers(1, MODEL.vocab_size, 64 * SEQUENCES * MODEL.seq_len).astype("<u2")
    index = io.BytesIO()
    pq.write_table(pa.table({"id": ["0"], "source_file": ["random"], "offset": [0], "length": [len(tokens)]}), index)
    write_atomically(folder / "shard-00000.bin", tokens.tobytes())
    write_atomically(folder / "shard-00000.parquet", index.getvalue())
    shard = {
        "name": "shard-00000", "tokens": len(tokens), "documents": 1,
        "digest": digest_of_bytes(tokens.tobytes()), "index_digest": digest_of_bytes(index.getvalue()),
    }  # fmt: skip
    manifest = {
        "format_version": FORMAT_VERSION, "component": "random", "split": "train", "key": "random", "source": {}, "sources": (),
        "reader": "none", "normalizer": "none", "encoder": "none", "tokenizer_digest": "none", "begin_of_text": 0, "end_of_text": 1,
        "dtype": "uint16", "shards": [shard], "documents": 1, "tokens": len(tokens), "text_bytes": 0, "left_out": {},
    }  # fmt: skip
    write_manifest(folder, Manifest.model_validate(manifest))
    return folder


MEASURES = {
    "step": measure_step,
    "large": partial(measure_step, LARGE, LARGE_SEQUENCES),
    "loop": measure_loop,
    "instrumentation": measure_instrumentation,
}

if __name__ == "__main__":
    keep_freed_memory()  # as the trainer
    print(json.dumps({"bench": "a_train", "impl": "phasewise", "metrics": MEASURES[sys.argv[1]]()}))
