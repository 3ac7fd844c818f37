"""Time from the start of `python -m phasewise.trainer` to its first update, with the compilation cache of an earlier run."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.measure import Options, Row, in_turns
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import METRICS_NAME
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, Shard, write_manifest
from phasewise.trainer.metrics import read_metrics

VOCAB_SIZE, SEQ_LEN, BATCH, TOKENS = 8192, 256, 16, 1_000_000


def rows(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_cache(home / "text")
        seconds_to_first_update(peer_run(home, "compiles"))
        started = [f"new-{number}" for number in range(options.repeats)]
        again = [f"again-{number}" for number in range(options.repeats)]
        for name in again:
            seconds_to_first_update(peer_run(home, name), stop_after=3)
        found = in_turns(
            {
                "new": lambda: seconds_to_first_update(peer_run(home, started.pop())),
                "again": lambda: seconds_to_first_update(peer_run(home, again.pop())),
            },
            options.repeats,
        )
    yield Row("start of the process to the first update, seconds, warm cache", found["new"], at_most=7, note="Levanter, idle cores: 21 s")
    yield Row("the same, going on from a checkpoint", found["again"], at_most=7)


def seconds_to_first_update(run: RunConfig, *, stop_after: int | None = None) -> float:
    path = Path(run.output) / "run.json"
    before = len(read_metrics(Path(run.output) / METRICS_NAME))
    write_json(path, run.model_dump(mode="json"))
    started = time.perf_counter()
    with (
        open(path.with_name("trainer.log"), "wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "phasewise.trainer", str(path)], stdout=log, stderr=log, env={**os.environ, "JAX_PLATFORMS": "cpu"}
        ) as process,
    ):
        while len(read_metrics(path.with_name(METRICS_NAME))) < before + (stop_after or 1):
            if process.poll() is not None:
                raise RuntimeError(f"the trainer ended first:\n{path.with_name('trainer.log').read_text()}")
            time.sleep(0.005)
        elapsed = time.perf_counter() - started
        process.terminate() if stop_after else process.kill()
    return elapsed


def peer_run(home: Path, name: str, **changes: Any) -> RunConfig:
    """The peers' train step as a run: Llama d_model 256, 4 layers, 4/2 heads of 64, d_ff 704, vocabulary 8,192, 16 × 256 tokens."""
    output, cache = home / name, home / "text"
    write_sealed(output / "verdict.json", {"passes": True, "judged": {"text": _manifest().digest}})
    always: dict[str, Any] = {
        "max_grad_norm": 1.0, "z_loss": None, "ema_decay": None, "max_update_rms": None, "max_update_norm": None, "skip_step": None,
    }  # fmt: skip
    values = {
        "recipe": "bench", "scale": "full", "phase": name, "start_step": 0, "stop_step": 1000, "seed": 0,
        "model": {
            "vocab_size": VOCAB_SIZE, "seq_len": SEQ_LEN, "num_layers": 4, "d_model": 256, "d_ff": 704, "num_query_heads": 4,
            "num_kv_heads": 2, "head_dim": 64, "rope": {"theta": 10_000, "scaling": None}, "rms_norm_epsilon": 1e-5,
            "initializer_std": 0.02, "compute_dtype": "float32", "qk_norm": False, "tied_head": False, "sliding_window": None,
            "float32_attention": False,
        },
        "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
        "learning_rate": [{"kind": "constant", "start_step": 0, "end_step": 1000, "start": 3e-4, "end": 3e-4}],
        "stability": {key: [[0, value]] for key, value in always.items()},
        "batch": [[0, BATCH]], "mixture": [[0, {"text": 100.0}]],
        "order": {"seed": 0, "permutation": "feistel", "block_sequences": 2048},
        "checkpoints": {"every_steps": 1000, "every_minutes": None, "keep_all": False},
        "start": None, "caches": {"text": str(cache)}, "verdict": str(output / "verdict.json"), "output": str(output),
    }  # fmt: skip
    return RunConfig.model_validate({**values, **changes})


def write_cache(folder: Path) -> None:
    folder.mkdir(parents=True)
    np.random.default_rng(1234).integers(0, VOCAB_SIZE, TOKENS).astype("uint16").tofile(folder / "shard-00000.bin")
    write_manifest(folder, _manifest())


def _manifest() -> Manifest:
    values = {
        "format_version": FORMAT_VERSION, "component": "text", "split": "train", "key": "text", "source": {}, "sources": (),
        "reader": "none", "normalizer": "none", "encoder": "none", "tokenizer_digest": "none", "begin_of_text": 0, "end_of_text": 1,
        "dtype": "uint16", "shards": (Shard(name="shard-00000", tokens=TOKENS, documents=0, digest="none", index_digest="none"),),
        "documents": 0, "tokens": TOKENS, "text_bytes": 0, "left_out": {},
    }  # fmt: skip
    return Manifest.model_validate(values)
