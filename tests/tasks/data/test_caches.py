"""From documents to token caches: the bytes, their manifest, and what comes back."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tasks.data import caches
from tasks.data.caches import build_cache, cache_key
from tasks.data.documents import read_documents
from tasks.data.plan import ComponentPlan, DataPlan
from tasks.data.source import Source
from tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, load_tokenizer, tokenizer_digest
from trainer.data.cache import TokenCache
from trainer.data.manifest import MANIFEST_NAME, Manifest, Split, read_manifest
from trainer.errors import DataError
from trainer.storage import digest_of_file


@pytest.fixture(scope="module")
def plan(prepared) -> DataPlan:  # pyright: ignore[reportMissingParameterType]  # a World of the conftest
    return prepared.plan()


def build(plan: DataPlan, folder: Path, split: Split = "train") -> Manifest:
    web: ComponentPlan = plan.components["web"]
    return build_cache("web", web.source, split, web.documents.folder, plan.tokenizer, web.cache(split).key, folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_two_builds_are_equal_byte_for_byte(plan: DataPlan, tmp_path: Path, split: Split):
    build(plan, tmp_path / "a", split)
    build(plan, tmp_path / "b", split)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(plan.components["web"].cache(split).folder)
    assert set(contents(tmp_path / "a")) == {MANIFEST_NAME, "shard-00000.bin", "shard-00000.parquet"}


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_tokens_decode_back_to_the_documents(plan: DataPlan, split: Split):
    tokenizer = load_tokenizer(plan.tokenizer)
    for name, component in plan.components.items():
        expected = read_documents(component.documents.folder, split).to_pylist()
        found = list(TokenCache.open(component.cache(split).folder).documents())
        assert len(found) == len(expected) > 0, name
        for document, row in zip(found, expected, strict=True):
            assert (document.id, document.source_file) == (row["id"], row["source_file"])
            assert (document.tokens[0], document.tokens[-1]) == (0, 1)
            assert tokenizer.decode(document.tokens[1:-1].tolist(), skip_special_tokens=False) == row["text"]


def test_the_manifest_says_what_is_there(plan: DataPlan):
    web = plan.components["web"]
    folder, manifest = web.train.folder, read_manifest(web.train.folder)
    index = pq.read_table(folder / "shard-00000.parquet").to_pydict()
    texts = read_documents(web.documents.folder, "train")["text"].to_pylist()
    (shard,) = manifest.shards
    assert manifest.key == web.train.key
    assert (manifest.component, manifest.split, manifest.sources) == ("web", "train", web.files)
    assert (manifest.include, manifest.exclude) == (web.source.include, web.source.exclude)
    assert manifest.tokenizer_digest == tokenizer_digest(plan.tokenizer)
    assert (shard.digest, shard.index_digest) == tuple(digest_of_file(folder / f"shard-00000.{kind}") for kind in ("bin", "parquet"))
    assert manifest.documents == shard.documents == len(texts)
    assert manifest.text_bytes == sum(len(str(text).encode()) for text in texts)
    assert manifest.dtype == "uint16"
    assert manifest.tokens == shard.tokens == sum(index["length"]) == (folder / "shard-00000.bin").stat().st_size // 2
    assert index["offset"] == np.cumsum([0, *index["length"][:-1]]).tolist()


def test_a_folder_without_its_manifest_is_no_cache(plan: DataPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(*_: object):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(caches, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            build(plan, tmp_path / "a")
    assert set(contents(tmp_path / "a")) == {"shard-00000.bin", "shard-00000.parquet"}
    with pytest.raises(DataError, match="is not a finished token cache"):
        TokenCache.open(tmp_path / "a")
    (tmp_path / "a" / "shard-00000.bin").write_bytes(b"cut short")
    build(plan, tmp_path / "a")
    assert contents(tmp_path / "a") == contents(plan.components["web"].train.folder)


def test_a_large_vocabulary_needs_wider_tokens(plan: DataPlan, tmp_path: Path):
    words = {BEGIN_OF_TEXT: 0, END_OF_TEXT: 1, "<unknown>": 2} | {f"word{number}": number for number in range(3, 69_999)} | {"The": 69_999}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]  # a setter without a stub
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    web = plan.components["web"]
    manifest = build_cache("web", web.source, "train", web.documents.folder, tmp_path / "tokenizer.json", "key", tmp_path / "cache")
    assert manifest.dtype == "uint32"
    first = next(TokenCache.open(tmp_path / "cache").documents())
    assert first.tokens[:2].tolist() == [0, 69_999]
    assert (tmp_path / "cache" / "shard-00000.bin").read_bytes()[4:8] == (69_999).to_bytes(4, "little")


def test_the_key_names_everything_that_decides_the_bytes(monkeypatch: pytest.MonkeyPatch):
    keys = {cache_key("d", "train", "t"), cache_key("d", "held_out", "t"), cache_key("e", "train", "t"), cache_key("d", "train", "u")}
    assert len(keys) == 4
    for name, value in (("ENCODER_VERSION", "another"), ("FORMAT_VERSION", 99)):
        with monkeypatch.context() as patch:
            patch.setattr(caches, name, value)
            assert cache_key("d", "train", "t") not in keys, name


def test_the_source_is_described_as_it_was_read(plan: DataPlan, tmp_path: Path):
    web = plan.components["web"]
    source = Source(url=web.source.url, include=("*.jsonl",), exclude=("gsm8k*",), format="jsonl", text_key="text")
    manifest = build_cache("web", source, "train", web.documents.folder, plan.tokenizer, "key", tmp_path)
    assert (manifest.include, manifest.exclude) == (("*.jsonl",), ("gsm8k*",))
