"""A small model that learns to find a value by its key, as runs of the trainer: on rows of one length, then on rows of four times that."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from flows.recipes.words import adamw, constant, linear, llama, order, stability
from tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from tasks.evaluation.needles import Needles, Wording
from tests.trainer.token_caches import BEGIN, END, write_conversations, write_passing_verdict
from trainer.base.run_folder import RunFolder
from trainer.base.storage import read_json
from trainer.checkpoints.path import checkpoint_path
from trainer.config import CheckpointPolicy, ModelConfig, Rope, RunConfig, StartFrom, Steps, always
from trainer.run import execute

SHORT, LONG = 128, 512
"""Tokens of a row: while it is trained from scratch, and in the extension."""
WINDOW = 32
WARMUP_STEPS, PEAK_RATE = 30, 4e-3
BATCH_TOKENS = 2_048
WORDS, KEYS, VALUES, VOCAB_SIZE = 16, 32, 32, 96
TOLD = 8
"""Keys that a text of the benchmark tells; a document tells from one to so many, so that easy ones are among them."""
ASKED_SHARE = 0.5
"""How much of a row asks for its keys, with their values."""
WORD_NAMES = tuple(f"w{number}" for number in range(WORDS))
KEY_NAMES = tuple(f"k{number}" for number in range(KEYS))
VALUE_NAMES = tuple(f"v{number}" for number in range(VALUES))
NEEDLES = Needles(
    length=SHORT,
    keys=TOLD,
    items_per_depth=16,
    wording=Wording(needle="{key} {value}", question="{key}", keys=KEY_NAMES, values=VALUE_NAMES),
)
Document = tuple[np.ndarray, list[tuple[int, int]]]
"""Its tokens, and the spans of them that are answers."""


class Lengths(NamedTuple):
    """How long each part of the experiment is, in updates."""

    first: int = 800
    extension: int = 130


def tokenizer() -> Tokenizer:
    """A word a token: words, keys and values."""
    names = (BEGIN_OF_TEXT, END_OF_TEXT, *WORD_NAMES, *KEY_NAMES, *VALUE_NAMES)
    built = Tokenizer(WordLevel({name: number for number, name in enumerate(names)}, unk_token=WORD_NAMES[0]))
    built.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]  # a setter without a stub
    built.add_special_tokens([BEGIN_OF_TEXT, END_OF_TEXT])
    return built


def haystack() -> list[str]:
    """Words in any order, as the documents have them, and of none of them."""
    return [WORD_NAMES[number] for number in np.random.default_rng(7).integers(WORDS, size=4 * LONG)]


def model(seq_len: int) -> ModelConfig:
    """Two layers as Trinity has them: a local one with RoPE and a window, and a global one without positions.

    RoPE's theta is as small for the window as Trinity's, 10,000, is for its 4,096 tokens.
    """
    return llama(
        num_layers=2,
        d_model=64,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=32,
        d_ff=64,
        seq_len=seq_len,
        vocab_size=VOCAB_SIZE,
        rope=Rope(theta=100, scaling=None),
        qk_norm=True,
        embedding_scale=8.0,
        initializer_std=0.0625,
        initializer_cutoff=3.0,
        sliding_window=WINDOW,
        global_attention_every=2,
        attend_within_documents=False,
    )


def documents(length: int, count: int) -> Iterator[Document]:
    """Documents of exactly one row: words, among them keys each with a value, and then the keys again and again with their values.

    The values that are given again are the answers.
    """
    rng = np.random.default_rng(length)
    first_key, asks = END + 1 + WORDS, int(ASKED_SHARE * length) // 2
    for _ in range(count):
        told = int(rng.integers(1, TOLD + 1))
        keys = first_key + rng.permutation(KEYS)[:told]
        pairs = np.stack([keys, first_key + KEYS + rng.integers(VALUES, size=told)], axis=1)
        asked = np.concatenate([rng.permutation(pairs) for _ in range(-(-asks // told))])[:asks].reshape(-1)
        text = END + 1 + rng.integers(WORDS, size=length - 2 - pairs.size - asked.size)
        places = np.sort(rng.integers(0, len(text) + 1, size=told))
        before = np.insert(text, np.repeat(places, 2), pairs.reshape(-1))
        first = 1 + len(before) + 1
        answers = [(place, place + 1) for place in range(first, first + 2 * asks, 2)]
        yield np.array([BEGIN, *before, *asked, END], np.uint16), answers


def cache(home: Path, length: int, rows: int) -> Path:
    """At least so many documents of a length as a token cache."""
    folder = home / f"{rows}-rows-of-{length}"
    return folder if (folder / "manifest.json").exists() else write_conversations(folder, [list(documents(length, rows))])


def first_run(home: Path, seed: int, lengths: Lengths) -> RunConfig:
    """On short rows, from scratch, at a constant rate."""
    warm = min(WARMUP_STEPS, lengths.first // 2)
    rates = (linear(0, warm, 0.0, PEAK_RATE), constant(warm, lengths.first, PEAK_RATE))
    sequences = BATCH_TOKENS // SHORT
    return RunConfig.model_validate(
        {
            **_common(home, seed, "first"),
            "start_step": 0,
            "stop_step": lengths.first,
            "model": model(SHORT),
            "learning_rate": rates,
            "batch": always(sequences),
            "order": order(seed=seed),
            "start": None,
            "caches": {"rows": str(cache(home, SHORT, sequences * lengths.first))},
        }
    )


def next_run(home: Path, parent: RunConfig, length: int, lengths: Lengths) -> RunConfig:
    """From the end of the first one, on rows of this length: as many tokens a step, and a rate that falls to nothing."""
    start, stop = parent.stop_step, parent.stop_step + lengths.extension
    digest = read_json(RunFolder.at(parent.output).result)["params_digest"]
    checkpoint = str(checkpoint_path(Path(parent.output), start))
    return RunConfig.model_validate(
        {
            **_common(home, parent.seed, f"rows-of-{length}"),
            "start_step": start,
            "stop_step": stop,
            "model": model(length),
            "learning_rate": (linear(start, stop, PEAK_RATE, 0.0),),
            "batch": Steps[int](((0, BATCH_TOKENS // SHORT), (start, BATCH_TOKENS // length))),
            "order": order(seed=parent.seed, first_step=start),
            "start": StartFrom(checkpoint=checkpoint, params_digest=digest, fresh=()),
            "caches": {"rows": str(cache(home, length, BATCH_TOKENS // length * lengths.extension))},
        }
    )


def train(run: RunConfig) -> RunConfig:
    """Train a run, if it was not trained before."""
    if not RunFolder.at(run.output).result.exists():
        write_passing_verdict(run)
        execute(run)
    return run


def _common(home: Path, seed: int, phase: str) -> dict[str, object]:
    output = home / "runs" / f"seed-{seed}" / phase
    return {
        "recipe": "needle",
        "scale": "own",
        "phase": phase,
        "seed": seed,
        "optimizer": adamw(),
        "stability": stability(),
        "loss_on": "answers",
        "mixture": always({"rows": 100.0}),
        "checkpoints": CheckpointPolicy(every_steps=100_000, every_minutes=None, keep_all=False),
        "verdict": str(output / "verdict.json"),
        "output": str(output),
    }
