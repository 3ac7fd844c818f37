"""Which vocabulary needs the fewest bits per byte? `python -m tests.pulse.vocabularies FOLDER [--kinds]`.

Tokenizers are trained on the files of Python's standard library, all but one in ten: one split at three sizes, or with `--kinds` those that
Marin chose among, Llama 2's, GPT-NeoX's and Llama 3's, at one size and at sizes that are to each other as theirs are (32,000, 50,257 and
128,256). Then one model with one recipe – Kestrel's at proxy scale, 64 wide – is trained from scratch with each, with the same number of
updates of the same number of tokens. So a vocabulary of more bytes a token sees more text, and a larger one has more parameters: that is
the choice as Marin made it. What is measured is bits per byte on the files that were held out. The interval is of 95 %, by drawing files
and seeds again; the difference to the first vocabulary is taken file by file and seed by seed, so it is narrower than the two intervals.
`docs/tokenizers.md` says what came of it.
"""

import argparse
import json
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from flows.recipes import load_record
from tasks.data.special_tokens import special_tokens
from tasks.data.vocabularies.splits import SPLITS, SplitName
from tasks.data.vocabularies.training import train as train_tokenizer
from tasks.data.vocabularies.training import truncate
from tasks.evaluation.bits_per_byte import bits_per_byte
from tasks.evaluation.held_out import HeldOutTokens
from tests.pulse.learning_rates import RATE_AT_128, SEQUENCES, run_at
from trainer.base.wording import MISSING, plural
from trainer.config import RunConfig
from trainer.model.params import Params
from trainer.schedule import scheduled_at
from trainer.state import init_state
from trainer.step import build_train_step

SIZES, WIDTH, STEPS, SEEDS = (512, 2048, 8192), 64, 400, 2
SMALLEST = 2048
KINDS: dict[SplitName, int] = {"llama2": 32_000, "neox": 50_257, "llama3": 128_256}
"""Split → entries of the vocabulary that it is named after."""
HELD_OUT_ONE_IN, MAX_HELD_OUT_BYTES = 10, 20_000
DRAWS = 2000


class Vocabulary(NamedTuple):
    """What one is trained to."""

    split: SplitName
    size: int


class Interval(NamedTuple):
    """A value, and the middle 95 % of what it is when files and seeds are drawn again."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


class Measured(NamedTuple):
    """A vocabulary; `bits` are those of each file, a row a seed."""

    split: SplitName
    vocab_size: int
    bytes_per_token: float
    parameters: int
    bits: list[list[float]]


def files() -> tuple[list[str], list[str]]:
    """Texts to train on, and the beginnings of those that are held out."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    held_out = [text[:MAX_HELD_OUT_BYTES] for text in texts[::HELD_OUT_ONE_IN]]
    return [text for number, text in enumerate(texts) if number % HELD_OUT_ONE_IN], [text for text in held_out if text.strip()]


def rows_of(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> np.ndarray:
    """Documents one after the other, begin and end tokens around each, cut into rows."""
    special = special_tokens(tokenizer)
    encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    tokens = np.concatenate([np.array([special.begin, *one.ids, special.end], np.int32) for one in encoded])
    return tokens[: len(tokens) // length * length].reshape(-1, length)


def train(run: RunConfig, rows: np.ndarray) -> Params:
    """The weights after the run; rows are drawn without putting them back, epoch by epoch."""
    generator = np.random.default_rng(run.seed)
    wanted = run.stop_step * SEQUENCES
    places = np.concatenate([generator.permutation(len(rows)) for _ in range(-(-wanted // len(rows)))])
    step: Any = build_train_step(run.model, run.optimizer, run.execution)
    state = init_state(run)
    segments = jnp.ones((SEQUENCES, run.model.seq_len), jnp.int32)
    for number in range(run.stop_step):
        batch = jnp.asarray(rows[places[number * SEQUENCES : (number + 1) * SEQUENCES]])
        state, _ = step(state, batch, segments, scheduled_at(run, number))
    return state.params


def held_out_of(tokenizer: Tokenizer, texts: Sequence[str]) -> Mapping[str, HeldOutTokens]:
    """Each file a component of its own: so its bits are known by themselves."""
    special = special_tokens(tokenizer)
    return {
        str(number): HeldOutTokens([np.array(tokenizer.encode(text, add_special_tokens=False).ids)], len(text.encode()), special)
        for number, text in enumerate(texts)
    }


def drawn_again(bits: np.ndarray, sizes: np.ndarray) -> Interval:
    """Bits per byte of files together, mean over the seeds.

    Args:
        bits: of each file, or the difference of two; a row a seed.
        sizes: bytes of each file.
    """
    generator = np.random.default_rng(0)
    seeds = generator.integers(0, len(bits), (DRAWS, len(bits)))
    files = generator.integers(0, len(sizes), (DRAWS, len(sizes)))
    drawn = [bits[chosen].mean(axis=0)[of].sum() / sizes[of].sum() for chosen, of in zip(seeds, files, strict=True)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(float(bits.mean(axis=0).sum() / sizes.sum()), float(low), float(high))


def measure(vocabulary: Vocabulary, tokenizer: Tokenizer, texts: tuple[list[str], list[str]], *, steps: int, seeds: int) -> Measured:
    """Train with a tokenizer, once a seed, and measure what is held out."""
    phase = load_record("marin-8b", "proxy").phase("kestrel")
    held_out = held_out_of(tokenizer, texts[1])
    size = tokenizer.get_vocab_size()
    bits: list[list[float]] = []
    parameters = 0
    for seed in range(seeds):
        run = run_at(phase, WIDTH, RATE_AT_128 * 128 / WIDTH, steps=steps, seed=seed)
        run = run.but(model=run.model.but(vocab_size=size).model_dump())
        params = train(run, rows_of(tokenizer, texts[0], run.model.seq_len))
        parameters = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))
        found = bits_per_byte(params, run.model, held_out).components
        bits.append([found[name] * held.text_bytes for name, held in held_out.items()])
    num_tokens = sum(len(document) for held in held_out.values() for document in held.documents)
    return Measured(vocabulary.split, size, sum(held.text_bytes for held in held_out.values()) / num_tokens, parameters, bits)


def print_table(found: Sequence[Measured], sizes: np.ndarray) -> None:
    """A row a vocabulary; differences are to the first."""
    print("split    entries  parameters  bytes/token  bits per byte              less than the first        each seed")
    first = np.array(found[0].bits)
    for one in found:
        bits = np.array(one.bits)
        by_seed = ", ".join(f"{sum(row) / sizes.sum():.4f}" for row in one.bits)
        less = drawn_again(first - bits, sizes) if one is not found[0] else MISSING
        of_size = f"{one.split:<7}  {one.vocab_size:>7,}  {one.parameters:>10,}  {one.bytes_per_token:>11.3f}"
        print(f"{of_size}  {drawn_again(bits, sizes)}  {less!s:<25}  {by_seed}", flush=True)


def vocabularies_of_kinds() -> dict[str, list[Vocabulary]]:
    """Title of a table → its vocabularies."""
    smallest = min(KINDS.values())
    of_record = [Vocabulary(split, round(SMALLEST * entries / smallest)) for split, entries in KINDS.items()]
    return {"one size": [Vocabulary(split, SMALLEST) for split in KINDS], "sizes as the record's": of_record}


def main(folder: Path, tables: Mapping[str, Sequence[Vocabulary]], *, steps: int, seeds: int) -> None:
    """Train all, each vocabulary once, and print a table a title."""
    texts = files()
    sizes = np.array([len(text.encode()) for text in texts[1]])
    wanted = sorted({one for table in tables.values() for one in table})
    largest: dict[SplitName, int] = {one.split: one.size for one in wanted}  # they are sorted: the last of a split is its largest
    content = {split: train_tokenizer({"library": texts[0]}, size, split=split).content for split, size in largest.items()}
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{steps} updates of {SEQUENCES} rows, {plural(seeds, 'seed')}, {len(sizes)} files held out, {sizes.sum():,} bytes", flush=True)
    found: dict[Vocabulary, Measured] = {}
    for one in wanted:
        tokenizer = Tokenizer.from_str(truncate(content[one.split], one.size))
        found[one] = measure(one, tokenizer, texts, steps=steps, seeds=seeds)
        (folder / "vocabularies.json").write_text(json.dumps([done._asdict() for done in found.values()], indent=1) + "\n")
    for title, table in tables.items():
        print(title)
        print_table([found[one] for one in table], sizes)
    print(folder / "vocabularies.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split", choices=SPLITS, default="trinity")
    parser.add_argument("--kinds", action="store_true", help="Those that Marin chose among, in place of one split at three sizes.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    of_split = {f"{asked.split} at three sizes": [Vocabulary(asked.split, size) for size in SIZES]}
    main(asked.folder, vocabularies_of_kinds() if asked.kinds else of_split, steps=asked.steps, seeds=asked.seeds)
