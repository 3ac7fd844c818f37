"""A small world: texts, a tokenizer trained on them, a tiny model, held-out caches and benchmarks."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, SpecialTokens, special_tokens
from phasewise.tasks.evaluation.held_out import HeldOutDocument, HeldOutTokens, read_held_out_tokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.made_benchmarks import write_benchmarks
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file
from phasewise.trainer.config import ModelConfig, Rope
from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, write_manifest
from phasewise.trainer.model.params import Params, init_params
from tests.compilation import compile_from_now_on
from tests.trainer.model.families import logits

HeldOut = Mapping[str, Sequence[HeldOutDocument]]
SYLLABLES = ("ba", "ce", "di", "fo", "gu", "ha", "ke", "li", "mo", "nu", "pa", "re", "si", "to", "vu")
PAIRS = [(f"qu{vowel}{end}", f"{end}{vowel}x") for vowel in "aeiou" for end in ("nt", "rk", "lm", "sp")]


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> None:
    compile_from_now_on(quickly=True)


def write_prose(seed: int, num_words: int) -> str:
    """Made-up words, a line break now and then, and every few words two that always come together: the second can be known."""
    rng, words = random.Random(seed), list[str]()
    while len(words) < num_words:
        words += ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(rng.randint(2, 6))]
        words += rng.choice(PAIRS)
    return " ".join(word + ("\n" if rng.random() < 0.05 else "") for word in words).replace("\n ", "\n")


@pytest.fixture(scope="session")
def held_out_texts() -> HeldOut:
    return {
        component: [
            HeldOutDocument(digest_of_bytes(f"{component}-{number}".encode()), write_prose(1000 * place + number, 150 + 40 * number))
            for number in range(6)
        ]
        for place, component in enumerate(("code", "law", "questions"))
    }


@pytest.fixture(scope="session")
def tokenizer(held_out_texts: HeldOut) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]  # a setter without a stub
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]  # a setter without a stub
    special, alphabet = [BEGIN_OF_TEXT, END_OF_TEXT], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((document.text for document in chain(*held_out_texts.values())), trainer)
    return tokenizer


@pytest.fixture(scope="session")
def config(tokenizer: Tokenizer) -> ModelConfig:
    return ModelConfig(
        vocab_size=tokenizer.get_vocab_size(), seq_len=48, num_layers=1, d_model=32, d_ff=48, num_query_heads=2, num_kv_heads=1,
        head_dim=16, rope=Rope(theta=10_000.0, scaling=None), rms_norm_epsilon=1e-5, initializer_std=0.3, compute_dtype="float32",
        qk_norm=False, tied_head=False, sliding_window=None, float32_attention=False,
    )  # fmt: skip


@pytest.fixture(scope="session")
def params(config: ModelConfig) -> Params:
    return init_params(0, config)


@pytest.fixture(scope="session")
def broken_params(params: Params) -> Params:
    return jax.tree.map(lambda weight: weight * np.nan, params)


LogSoftmax = Callable[[Sequence[int] | np.ndarray], np.ndarray]


@pytest.fixture(scope="session")
def log_softmax(params: Params, config: ModelConfig) -> LogSoftmax:
    """[tokens, vocabulary] of one sequence alone in its row, in float64. What fills the row comes after it and can't be seen."""
    compiled = jax.jit(logits, static_argnames="config")

    def table(tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        row = np.zeros((1, config.seq_len), np.int32)
        row[0, : len(tokens)] = tokens
        z = np.asarray(compiled(params, row, config=config))[0, : len(tokens)].astype(np.float64)
        return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))

    return table


WriteCache = Callable[..., Path]


@pytest.fixture(scope="session")
def special(tokenizer: Tokenizer) -> SpecialTokens:
    return special_tokens(tokenizer)


@pytest.fixture
def model(params: Params, config: ModelConfig, tokenizer: Tokenizer, special: SpecialTokens) -> JaxLanguageModel:
    return JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special)


@pytest.fixture(scope="session")
def write_cache(tokenizer: Tokenizer) -> WriteCache:
    def write(folder: Path, documents: Sequence[HeldOutDocument], split: str = "held_out", by: Tokenizer = tokenizer) -> Path:
        folder.mkdir(parents=True)
        begin, end = special_tokens(by)
        rows = [np.array([begin, *by.encode(document.text).ids, end], np.uint16) for document in documents]
        offsets = np.cumsum([0, *map(len, rows)])
        tokens = np.concatenate(rows) if rows else np.empty(0, np.uint16)
        tokens.tofile(folder / "0.bin")
        index = {
            "id": pa.array([document.id for document in documents], pa.string()),
            "source_file": pa.array(["made up"] * len(rows), pa.string()),
            "offset": pa.array(offsets[:-1]),
            "length": pa.array([len(row) for row in rows], pa.int64()),
        }
        pq.write_table(pa.Table.from_pydict(index), folder / "0.parquet")
        counts = {"tokens": len(tokens), "documents": len(rows)}
        digests = {"digest": digest_of_file(folder / "0.bin"), "index_digest": digest_of_file(folder / "0.parquet")}
        manifest = {
            "format_version": FORMAT_VERSION, "component": folder.name, "split": split, "key": "0" * 16, "source": {}, "sources": (),
            "reader": "made up", "normalizer": "none", "encoder": "none", "begin_of_text": begin, "end_of_text": end, "left_out": {},
            "tokenizer_digest": "none", "dtype": "uint16", "shards": ({"name": "0", **counts, **digests},), **counts,
            "text_bytes": sum(len(document.text.encode()) for document in documents),
        }  # fmt: skip
        write_manifest(folder, Manifest.model_validate(manifest))
        return folder

    return write


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory, write_cache: WriteCache, held_out_texts: HeldOut) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("tokens")
    return {component: write_cache(home / component, documents) for component, documents in held_out_texts.items()}


@pytest.fixture(scope="session")
def benchmarks(tmp_path_factory: pytest.TempPathFactory, held_out_texts: HeldOut) -> Path:
    folder = tmp_path_factory.mktemp("benchmarks")
    write_benchmarks(folder, held_out_texts)
    return folder


@pytest.fixture(scope="session")
def held_out_tokens(caches: Mapping[str, Path], tokenizer: Tokenizer) -> dict[str, HeldOutTokens]:
    return read_held_out_tokens(caches, tokenizer)


@pytest.fixture(scope="session")
def reading_config(config: ModelConfig) -> ModelConfig:
    return config.but(d_model=config.vocab_size)


def _write_weights(config: ModelConfig, following: np.ndarray) -> Params:
    """Weights of a model whose logits after token i are row i of `following`: what lies between embedding and head adds nothing."""
    params = jax.tree.map(np.zeros_like, init_params(0, config))
    size = config.vocab_size
    return params | {"embedding": np.eye(size, dtype=np.float32), "final_norm": np.ones(size, np.float32), "head": following / size**0.5}


@pytest.fixture(scope="session")
def reading_params(reading_config: ModelConfig, tokenizer: Tokenizer, held_out_texts: HeldOut) -> Params:
    """A model that reads one token and has learned, from the very text, what follows it: it knows something, and not much."""
    counts = np.full((reading_config.vocab_size,) * 2, 0.01, np.float32)
    for document in chain(*held_out_texts.values()):
        ids = tokenizer.encode(document.text).ids
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    return _write_weights(reading_config, np.log(counts / counts.sum(axis=1, keepdims=True)))


@pytest.fixture(scope="session")
def blind_params(reading_config: ModelConfig, tokenizer: Tokenizer, held_out_texts: HeldOut) -> Params:
    """A model that knows how common each token is and reads nothing: whatever comes before, it says the same."""
    counts = np.full(reading_config.vocab_size, 0.01, np.float32)
    for document in chain(*held_out_texts.values()):
        np.add.at(counts, tokenizer.encode(document.text).ids, 1)
    return _write_weights(reading_config, np.tile(np.log(counts / counts.sum()), (len(counts), 1)))
