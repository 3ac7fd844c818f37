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

from phasewise.flows.recipes.words import Rates, adamw, constant, linear, llama, order, stability
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.tasks.evaluation.needles import Needles, Wording
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.checkpoints.files import checkpoint_path
from phasewise.trainer.config import CheckpointPolicy, ModelConfig, Rope, RunConfig, StartFrom, Steps, always
from phasewise.trainer.run import execute
from tests.trainer.token_caches import BEGIN, END, write_conversations, write_passing_verdict

OPENING, SHORT, LONG = 32, 128, 512
"""Tokens of a row: where a model learns from nothing what a needle is, while it is trained from scratch, and in the extension."""
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
    first: int = 800
    extension: int = 130
    held: float = 0.0


class Pattern(NamedTuple):
    name: str
    theta: float
    window: int | None
    opening: float
    lengths: Lengths = Lengths()
    far: bool = False
    beyond: bool = True

    def model(self, seq_len: int) -> ModelConfig:
        """Two layers, with QK-norm."""
        return llama(
            num_layers=2,
            d_model=64,
            num_query_heads=4,
            num_kv_heads=2,
            head_dim=32,
            d_ff=64,
            seq_len=seq_len,
            vocab_size=VOCAB_SIZE,
            rope=Rope(theta=self.theta, scaling=None),
            qk_norm=True,
            embedding_scale=8.0,
            initializer_std=0.0625,
            initializer_cutoff=3.0,
            sliding_window=self.window,
            global_attention_every=None if self.window is None else 2,
            attend_within_documents=False,
        )


TRINITY = Pattern("trinity", theta=100, window=32, opening=0.0)
"""A local layer with RoPE and a window, and a global one without positions."""
MARIN = Pattern("marin", theta=10_000, window=None, opening=0.5)
"""RoPE in every layer, as Llama has it."""
FASTER = Pattern("marin-1000", theta=1_000, window=None, opening=4 / 9, lengths=Lengths(900, 400, held=0.5), far=True, beyond=False)
"""The same with documents that ask as far as MK-NIAH, and a theta at which more planes turn by half only in the longer rows."""
PATTERNS = (TRINITY, MARIN, FASTER)


def tokenizer() -> Tokenizer:
    """A word a token: words, keys and values."""
    names = (BEGIN_OF_TEXT, END_OF_TEXT, *WORD_NAMES, *KEY_NAMES, *VALUE_NAMES)
    built = Tokenizer(WordLevel({name: number for number, name in enumerate(names)}, unk_token=WORD_NAMES[0]))
    built.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]  # a setter without a stub
    built.add_special_tokens([BEGIN_OF_TEXT, END_OF_TEXT])
    return built


def haystack() -> list[str]:
    return [WORD_NAMES[number] for number in np.random.default_rng(7).integers(WORDS, size=4 * LONG)]


def documents(length: int, count: int, far: bool) -> Iterator[Document]:
    rng = np.random.default_rng(length)
    first_key, most = END + 1 + WORDS, int(ASKED_SHARE * length) // 2
    for _ in range(count):
        told = int(rng.integers(1, min(TOLD, length // 8) + 1))
        asks = round(np.exp(rng.uniform(np.log(told), np.log(most)))) if far else most
        keys = first_key + rng.permutation(KEYS)[:told]
        pairs = np.stack([keys, first_key + KEYS + rng.integers(VALUES, size=told)], axis=1)
        asked = np.concatenate([rng.permutation(pairs) for _ in range(-(-asks // told))])[:asks].reshape(-1)
        text = END + 1 + rng.integers(WORDS, size=length - 2 - pairs.size - asked.size)
        places = np.sort(rng.integers(0, len(text) + 1, size=told))
        if far:
            places[0] *= rng.integers(2)
            places[-1] += rng.integers(2) * (len(text) - places[-1])
        before = np.insert(text, np.repeat(places, 2), pairs.reshape(-1))
        first = 1 + len(before) + 1
        answers = [(place, place + 1) for place in range(first, first + 2 * asks, 2)]
        yield np.array([BEGIN, *before, *asked, END], np.uint16), answers


def cache(home: Path, length: int, rows: int, far: bool) -> Path:
    folder = home / f"{rows}-rows-of-{length}{'-far' if far else ''}"
    return folder if (folder / "manifest.json").exists() else write_conversations(folder, [list(documents(length, rows, far))])


def runs_before(home: Path, seed: int, pattern: Pattern, lengths: Lengths) -> Iterator[RunConfig]:
    opening = round(pattern.opening * lengths.first)
    parent = None
    for length, start, stop in ((OPENING, 0, opening), (SHORT, opening, lengths.first)):
        if start < stop:
            warm = min(WARMUP_STEPS, stop // 2) if parent is None else start
            risen = constant(warm, stop, PEAK_RATE)
            rates = (linear(0, warm, 0.0, PEAK_RATE), risen) if parent is None else (risen,)
            parent = _run(home, seed, pattern, f"rows-of-{length}-to-{stop}", parent, length, stop, rates)
            yield parent


def next_run(home: Path, parent: RunConfig, pattern: Pattern, length: int, lengths: Lengths) -> RunConfig:
    start = parent.stop_step
    falls, stop = start + round(lengths.held * lengths.extension), start + lengths.extension
    held = (constant(start, falls, PEAK_RATE),) if start < falls else ()
    rates = (*held, linear(falls, stop, PEAK_RATE, 0.0))
    return _run(home, parent.seed, pattern, f"then-rows-of-{length}-to-{stop}", parent, length, stop, rates)


def train(run: RunConfig) -> RunConfig:
    kept = RunFolder.at(run.output).result
    if not kept.exists():
        write_passing_verdict(run)
        execute(run)
    elif read_json(kept)["run_digest"] != run.digest:
        raise ConfigError(f"{kept} must be a result of these settings, found one of others: give another folder, or remove this one.")
    return run


def _run(home: Path, seed: int, pattern: Pattern, phase: str, parent: RunConfig | None, length: int, stop: int, rates: Rates) -> RunConfig:
    sequences, start = BATCH_TOKENS // length, 0 if parent is None else parent.stop_step
    output = home / pattern.name / f"seed-{seed}" / phase
    return RunConfig.model_validate(
        {
            "recipe": f"needle-{pattern.name}",
            "scale": "own",
            "phase": phase,
            "start_step": start,
            "stop_step": stop,
            "seed": seed,
            "model": pattern.model(length),
            "optimizer": adamw(),
            "learning_rate": rates,
            "stability": stability(),
            "batch": always(sequences) if parent is None else Steps[int](((0, parent.batch.at(start - 1)), (start, sequences))),
            "order": order(seed=seed, first_step=start),
            "loss_on": "answers",
            "mixture": always({"rows": 100.0}),
            "checkpoints": CheckpointPolicy(every_steps=100_000, every_minutes=None, keep_all=False),
            "start": None if parent is None else _end_of(parent),
            "caches": {"rows": str(cache(home, length, sequences * (stop - start), pattern.far and length != OPENING))},
            "verdict": str(output / "verdict.json"),
            "output": str(output),
        }
    )


def _end_of(parent: RunConfig) -> StartFrom:
    digest = read_json(RunFolder.at(parent.output).result)["params_digest"]
    return StartFrom(checkpoint=str(checkpoint_path(Path(parent.output), parent.stop_step)), params_digest=digest, fresh=())
