"""The loader against its NumPy bound: tables that are already there, and one copy a row from a memory map."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, Shard, write_manifest

SHARES = {"a": 70.0, "b": 20.0, "c": 10.0}
TOKENS = {"a": 10_000_000, "b": 5_000_000, "c": 1_000_000}
VOCAB_SIZE, BATCH, REPEATS, FAR_STEP = 8192, 64, 5, 10**6
BATCHES = {256: 400, 4096: 100}


def loader_ratios() -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for dtype in ("uint32", "uint16"):
        with _caches(dtype) as home:
            for seq_len in BATCHES:
                found.append((f"loader, share of the NumPy bound, {seq_len}-token rows, {dtype}", _share_of_bound(home, seq_len, dtype)))
                first = _milliseconds_to_first_batch(home, seq_len)
                found.append((f"loader, ms from opening to the batch of step 10^6, {seq_len}-token rows, {dtype}", first))
    return found


def _share_of_bound(home: Path, seq_len: int, dtype: str) -> float:
    loader = Loader(_run(home, seq_len))
    bound = _bound(home, seq_len, dtype)
    turns = [partial(_batch_of_turn, loader, turn) for turn in range(REPEATS)]
    loaded, bounded = np.array([(_seconds(turn, seq_len), _seconds(bound, seq_len)) for turn in turns]).T
    return float(np.median(bounded) / np.median(loaded))


def _milliseconds_to_first_batch(home: Path, seq_len: int) -> float:
    run = _run(home, seq_len)
    times = list[float]()
    for repeat in range(REPEATS):
        start = time.perf_counter()
        Loader(run).batch(FAR_STEP + repeat * 10_000)  # a new pass each time, without a cached permutation
        times.append(1000 * (time.perf_counter() - start))
    return float(np.median(times))


def _batch_of_turn(loader: Loader, turn: int, step: int) -> object:
    return loader.batch(1000 * (turn + 1) + step)


def _seconds(batch: Callable[[int], object], seq_len: int) -> float:
    batch(0)
    start = time.perf_counter()
    for step in range(1, BATCHES[seq_len] + 1):
        batch(step)
    return time.perf_counter() - start


def _bound(home: Path, seq_len: int, dtype: str) -> Callable[[int], np.ndarray]:
    rng = np.random.default_rng(9)
    sequences = (max(BATCHES.values()) + 1) * BATCH
    maps = [np.memmap(home / name / "shard-00000.bin", dtype, "r") for name in SHARES]
    rows = [tokens[: len(tokens) // seq_len * seq_len].reshape(-1, seq_len) for tokens in maps]
    tables = [rng.permutation(len(part)) for part in rows]
    sources = rng.choice(len(rows), sequences, p=[share / 100 for share in SHARES.values()])
    places = np.zeros(sequences, np.int64)
    for number, table in enumerate(tables):
        chosen = sources == number
        places[chosen] = table[np.arange(chosen.sum()) % len(table)]

    def batch(step: int) -> np.ndarray:
        tokens = np.empty((BATCH, seq_len), dtype)
        inside = slice(step * BATCH, (step + 1) * BATCH)
        for row, (source, place) in enumerate(zip(sources[inside].tolist(), places[inside].tolist(), strict=True)):
            tokens[row] = rows[source][place]
        return tokens

    return batch


@contextmanager
def _caches(dtype: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(1234)
        for name, tokens in TOKENS.items():
            cache = Path(folder) / name
            cache.mkdir()
            rng.integers(0, VOCAB_SIZE, tokens).astype(dtype).tofile(cache / "shard-00000.bin")
            write_manifest(cache, _manifest(name, tokens, dtype))
        yield Path(folder)


def _manifest(name: str, tokens: int, dtype: str) -> Manifest:
    values = {
        "format_version": FORMAT_VERSION, "component": name, "split": "train", "key": name, "source": {}, "sources": (), "reader": "none",
        "normalizer": "none", "encoder": "none", "tokenizer_digest": "none", "begin_of_text": 0, "end_of_text": 1, "dtype": dtype,
        "shards": (Shard(name="shard-00000", tokens=tokens, documents=0, digest="none", index_digest="none"),),
        "documents": 0, "tokens": tokens, "text_bytes": 0, "left_out": {},
    }  # fmt: skip
    return Manifest.model_validate(values)


def _run(home: Path, seq_len: int) -> RunConfig:
    stop = 2 * FAR_STEP
    return RunConfig.model_validate(
        {
            "recipe": "bench", "scale": "full", "phase": "only", "start_step": 0, "stop_step": stop, "seed": 0,
            "model": {
                "vocab_size": VOCAB_SIZE, "seq_len": seq_len, "num_layers": 1, "d_model": 8, "d_ff": 8, "num_query_heads": 1,
                "num_kv_heads": 1, "head_dim": 8, "rope": {"theta": 10_000, "scaling": None}, "rms_norm_epsilon": 1e-5,
                "initializer_std": 0.02, "compute_dtype": "float32",
        "qk_norm": False, "tied_head": False, "sliding_window": None, "float32_attention": False,
            },
            "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
            "learning_rate": [{"kind": "constant", "start_step": 0, "end_step": stop, "start": 1e-3, "end": 1e-3}],
            "stability": {
                "max_grad_norm": [[0, None]], "z_loss": [[0, None]],
                "ema_decay": [[0, None]], "max_update_rms": [[0, None]], "max_update_norm": [[0, None]], "skip_step": [[0, None]],
            },
            "batch": [[0, BATCH]], "mixture": [[0, SHARES]],
            "order": {"seed": 0, "permutation": "feistel", "block_sequences": 2048},
            "checkpoints": {"every_steps": stop, "every_minutes": None, "keep_all": False},
            "start": None, "caches": {name: str(home / name) for name in SHARES}, "verdict": "none", "output": "none",
        }
    )  # fmt: skip
