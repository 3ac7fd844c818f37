"""A small model that learns to find a value by its key, as runs of the trainer: on rows of one length, and then on rows of four times it."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from flows.recipes.words import adamw, always, constant, linear, llama, order, stability
from tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from tests.trainer.token_caches import BEGIN, END, write_passing_verdict, write_token_cache
from trainer.base.run_folder import RunFolder
from trainer.base.storage import read_json
from trainer.checkpoints.path import checkpoint_path
from trainer.config import CheckpointPolicy, ModelConfig, RunConfig, StartFrom, Steps
from trainer.run import execute

SHORT, LONG = 128, 512
"""Tokens of a row: while it is trained from scratch, and in the extension."""
WINDOW = 32
STEPS, LONG_STEPS, WARMUP_STEPS = 800, 150, 30
PEAK_RATE = 5e-3
BATCH_TOKENS = 2048
WORDS, KEYS, VALUES = 16, 32, 32
VOCAB_SIZE = 96
MANY_KEYS = 16
"""Keys of a document. Each is asked for once."""
DOCUMENTS = {SHORT: 16_000, LONG: 2_000}


def tokenizer() -> Tokenizer:
    """A word a token: words, keys and values."""
    names = [BEGIN_OF_TEXT, END_OF_TEXT, *(f"w{n}" for n in range(WORDS)), *(f"k{n}" for n in range(KEYS)), *(f"v{n}" for n in range(VALUES))]
    built = Tokenizer(WordLevel({name: number for number, name in enumerate(names)}, unk_token="w0"))
    built.pre_tokenizer = WhitespaceSplit()
    built.add_special_tokens([BEGIN_OF_TEXT, END_OF_TEXT])
    return built


def model(seq_len: int) -> ModelConfig:
    """Two layers as Trinity's: a local one with RoPE, and a global one without."""
    return llama(
        num_layers=2,
        d_model=64,
        num_query_heads=4,
        num_kv_heads=2,
        d_ff=64,
        seq_len=seq_len,
        vocab_size=VOCAB_SIZE,
        qk_norm=True,
        attention_gate=True,
        post_norms=True,
        embedding_scale=8.0,
        initializer_std=0.0625,
        initializer_cutoff=3.0,
        sliding_window=WINDOW,
        global_attention_every=2,
        attend_within_documents=False,
    )


def documents(length: int, count: int, seed: int) -> Iterator[np.ndarray]:
    """Documents of exactly one row: words, between them keys with a value each, and at the end each key again with its value."""
    rng = np.random.default_rng([seed, length])
    first_key, first_value = 2 + WORDS, 2 + WORDS + KEYS
    for _ in range(count):
        keys = first_key + rng.permutation(KEYS)[:MANY_KEYS]
        pairs = np.stack([keys, first_value + rng.integers(VALUES, size=MANY_KEYS)], axis=1)
        asked = rng.permutation(pairs).reshape(-1)
        room = length - 2 - 2 * pairs.size
        text = 2 + rng.integers(WORDS, size=room)
        places = np.sort(rng.integers(0, room + 1, size=MANY_KEYS))
        told = np.insert(text, np.repeat(places, 2), pairs.reshape(-1))
        yield np.array([BEGIN, *told, *asked, END], np.uint16)


def cache(home: Path, length: int, seed: int) -> Path:
    """The documents of a length as a token cache."""
    folder = home / f"rows-of-{length}"
    if not (folder / "manifest.json").exists():
        write_token_cache(folder, [list(documents(length, DOCUMENTS[length], seed))])
    return folder


def run_of(home: Path, seed: int, *, length: int, start_step: int, steps: int, parent: RunConfig | None = None) -> RunConfig:
    """A phase on rows of one length, as many tokens a step in each; its order begins with it."""
    stop_step = start_step + steps
    phase = f"rows-{length}-seed-{seed}-{stop_step}"
    batch = [(0, BATCH_TOKENS // SHORT), (STEPS, BATCH_TOKENS // length)] if parent else [(0, BATCH_TOKENS // length)]
    mixture = [(0, {"rows": 100.0})]
    start = None
    rates = (linear(0, WARMUP_STEPS, 0.0, PEAK_RATE), constant(WARMUP_STEPS, stop_step, PEAK_RATE))
    if parent:
        digest = read_json(RunFolder.at(parent.output).result)["params_digest"]
        start = StartFrom(checkpoint=str(checkpoint_path(Path(parent.output), start_step)), params_digest=digest, fresh=())
        rates = (linear(start_step, stop_step, PEAK_RATE, 0.0),)
    return RunConfig(
        recipe="needle",
        scale="own",
        phase=phase,
        start_step=start_step,
        stop_step=stop_step,
        seed=seed,
        model=model(length),
        optimizer=adamw(),
        learning_rate=rates,
        stability=stability(),
        batch=Steps[int](tuple(batch)),
        mixture=Steps(tuple(mixture)),
        order=order(seed=seed, first_step=start_step),
        checkpoints=CheckpointPolicy(every_steps=steps, every_minutes=None, keep_all=False),
        start=start,
        caches={"rows": str(cache(home, length, seed))},
        verdict=str(home / "runs" / phase / "verdict.json"),
        output=str(home / "runs" / phase),
    )


def train(run: RunConfig) -> RunConfig:
    """Train a run."""
    write_passing_verdict(run)
    execute(run)
    return run
