"""Tiny token caches made by hand, and the evidence of a phase that is in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.config import DataOrder, MixtureShares, Steps, always
from trainer.data.manifest import FORMAT_VERSION, Manifest, Shard, SourceFile, write_manifest
from trainer.storage import digest_of_bytes, digest_of_file
from validations.evidence.caches import cache_evidence
from validations.evidence.leakage import leakage_evidence, leaked_items, scan_cache
from validations.evidence.mixture import mixture_evidence
from validations.evidence.ngrams import Item, ItemIndex
from validations.expectations.judging import load_library
from validations.limits import DataLimits, LeakageLimits
from validations.verdict import DataEvidence

PROSE = {
    "wikipedia": "The river rises in the northern hills and runs for two hundred miles through farms and towns before it meets the sea.",
    "starcoderdata": "def read_lines(path): open the file, strip every line, drop the empty ones and give back what is left, sorted.",
}
ITEMS = (
    Item(
        "continuation",
        "mc-0012",
        "Which of the following metals melts in a warm hand on a summer day: iron, gallium, copper or tin? Gallium.",
    ),
    Item("continuation", "mc-0013", "How many legs does a spider have?"),
    Item(
        "held-out wikipedia",
        "doc-1",
        "The lighthouse keeper climbed the stairs every evening, lit the lamp and wrote the weather into his book.",
    ),
)


@pytest.fixture(scope="session", autouse=True)
def library():
    """Great Expectations, whose import takes seconds, once for all tests."""
    return load_library()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A byte-level BPE with begin and end tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|begin|>", "<|end|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(PROSE.values(), trainer)
    return tokenizer


@dataclass(frozen=True)
class CacheMaker:
    """Writes caches as the data stage does: shards, their index, the manifest last."""

    root: Path
    tokenizer: Tokenizer

    def write(self, component: str, texts: Sequence[str], *, file: str = "part-0.jsonl", split: str = "train") -> Path:
        """A cache of one shard, in which every text is a document of `file`."""
        folder = self.root / split / component
        folder.mkdir(parents=True, exist_ok=True)
        documents = [np.array([0, *self.tokenizer.encode(text).ids, 1], np.uint16) for text in texts]
        tokens = np.concatenate([np.empty(0, np.uint16), *documents])
        (folder / "shard-00000.bin").write_bytes(tokens.tobytes())
        self._write_index(folder, texts, documents, f"sources/{component}/{file}")
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            component=component,
            split=split,  # pyright: ignore[reportArgumentType]  # the model refuses another word
            key=f"key-{component}",
            source={"include": ["*.jsonl"], "exclude": []},
            sources=self.sources(component, file),
            reader="jsonl-1",
            normalizer="none-1",
            encoder="none-1",
            begin_of_text=0,
            end_of_text=1,
            left_out={},
            tokenizer_digest="0" * 64,
            dtype="uint16",
            shards=(self._shard(folder, len(tokens), len(documents)),),
            documents=len(documents),
            tokens=len(tokens),
            text_bytes=sum(len(text.encode()) for text in texts),
        )
        write_manifest(folder, manifest)
        return folder

    def sources(self, component: str, file: str = "part-0.jsonl") -> tuple[SourceFile, ...]:
        """What the cache of this component says it was made of."""
        return (SourceFile(name=f"sources/{component}/{file}", size_bytes=1, digest=f"digest of {component}"),)

    def _write_index(self, folder: Path, texts: Sequence[str], documents: Sequence[np.ndarray], source_file: str) -> None:
        lengths = np.array([len(document) for document in documents], np.int64)
        columns = {
            "id": pa.array([digest_of_bytes(text.encode())[:12] for text in texts], pa.string()),
            "source_file": pa.array([source_file] * len(texts), pa.string()),
            "offset": pa.array(np.cumsum(lengths) - lengths, pa.int64()),
            "length": pa.array(lengths, pa.int64()),
        }
        pq.write_table(pa.table(columns), folder / "shard-00000.parquet")

    def _shard(self, folder: Path, tokens: int, documents: int) -> Shard:
        digest, index_digest = digest_of_file(folder / "shard-00000.bin"), digest_of_file(folder / "shard-00000.parquet")
        return Shard(name="shard-00000", tokens=tokens, documents=documents, digest=digest, index_digest=index_digest)


@pytest.fixture
def caches(tmp_path: Path, tokenizer: Tokenizer) -> CacheMaker:
    return CacheMaker(tmp_path, tokenizer)


@pytest.fixture
def limits() -> DataLimits:
    leakage = LeakageLimits(ngram_words=13, min_containment=0.5, max_items=0)
    return DataLimits(max_share_error_points=0.5, max_epochs=4.0, leakage=leakage)


@pytest.fixture(scope="session")
def index() -> ItemIndex:
    return ItemIndex.build(ITEMS, ngram_words=13)


@pytest.fixture
def data_evidence(caches: CacheMaker, tokenizer: Tokenizer, index: ItemIndex, limits: DataLimits) -> Callable[..., DataEvidence]:
    """The evidence of a phase over two caches in order; `extra` plants documents into components, `drawn` moves the realised counts."""

    def build(extra: dict[str, list[str]] | None = None, drawn: dict[str, int] | None = None) -> DataEvidence:
        folders = {name: caches.write(name, [text, *(extra or {}).get(name, [])]) for name, text in PROSE.items()}
        table = cache_evidence(folders, {name: caches.sources(name) for name in folders})
        scans = [scan_cache(folder, index, tokenizer, limits.leakage.min_containment) for folder in folders.values()]
        return DataEvidence(
            caches=table,
            mixture=_mixture(drawn or {"wikipedia": 600, "starcoderdata": 200}),
            leakage=leakage_evidence(
                scans,
                index,
                manifest_digests=dict(zip(table["component"], table["manifest_digest"], strict=True)),
                min_containment=limits.leakage.min_containment,
            ),
            leaked_items=leaked_items(scans),
        )

    return build


@dataclass
class Drawn:
    """A schedule that has drawn these sequences, whatever the steps."""

    mixture: Steps[MixtureShares]
    order: DataOrder
    drawn: dict[str, int]

    def realised(self, start_step: int, stop_step: int) -> dict[str, int]:
        return self.drawn

    def cut_at(self, step: int) -> int:
        return 0


def _mixture(drawn: dict[str, int]) -> pd.DataFrame:
    mixture: Steps[MixtureShares] = always({"wikipedia": 75.0, "starcoderdata": 25.0})
    schedule = Drawn(mixture, DataOrder(seed=0, permutation="linear", block_sequences=100), drawn)
    return mixture_evidence(schedule, start_step=0, stop_step=100, rows={"wikipedia": 300, "starcoderdata": 200}, seq_len=32)
