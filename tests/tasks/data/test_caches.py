import ast
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from phasewise.tasks.data import caches, conversation_text, documents, filters, reading, tokenizer
from phasewise.tasks.data.caches import cache_key
from phasewise.tasks.data.conversation import BUILT_IN
from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, load_tokenizer
from phasewise.tasks.evaluation import phase_evaluation
from phasewise.trainer.base import identity
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_file
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import MANIFEST_NAME, Manifest, Split, read_manifest
from tests.tasks.data.builds import build_cache

DECIDES_NOTHING = {f"phasewise.tasks.data.{name}" for name in ("source", "digests", "listing")}
"""Settings, names and digests of files, which are in the key themselves."""
DECIDES_NO_MEASURE = {
    "phasewise.tasks.data.conversation": "a template's text is in the key of its cache",
    "phasewise.tasks.data.plan": "names caches, whose contents are in the key",
    "phasewise.tasks.data.verify": "compares a cache with its manifest, and refuses it or not",
    "phasewise.tasks.evaluation.made_benchmarks": "reads benchmarks, whose bytes are in the key",
    "phasewise.tasks.evaluation.gate_benchmarks": "its code is in the digests of real benchmarks and needles, which are in the key",
    "phasewise.tasks.evaluation.corpus_fit": "its code is in the key of phases with own held-out text",
    "phasewise.tasks.progress": "says what happens",
}


@pytest.fixture(scope="module")
def plan(prepared) -> DataPlan:  # pyright: ignore[reportMissingParameterType]  # a World of the conftest
    return prepared.plan()


def build(plan: DataPlan, folder: Path, split: Split) -> Manifest:
    web = plan.components["web"]
    return build_cache(web.documents.folder, split, plan.tokenizer, folder, web.cache(split).key)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_two_builds_are_equal_byte_for_byte_and_tokens_decode_back_to_the_documents(plan: DataPlan, tmp_path: Path, split: Split):
    build(plan, tmp_path / "a", split)
    build(plan, tmp_path / "b", split)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(plan.components["web"].cache(split).folder)
    names = [shard.name for shard in read_manifest(tmp_path / "a").shards]
    assert len(names) > 1
    shards = {f"{name}.{kind}" for name in names for kind in ("bin", "parquet")}
    assert shards <= set(contents(tmp_path / "a")) <= shards | {MANIFEST_NAME} | {f"shard-{number:05d}.json" for number in range(9)}
    tokenizer = load_tokenizer(plan.tokenizer)
    for name, component in plan.components.items():
        texts = list(split_texts(component.documents.folder, split))
        found = list(TokenCache.open(component.cache(split).folder).documents())
        assert len(found) == len(texts) > 0, name
        for document, text in zip(found, texts, strict=True):
            assert (document.id, document.tokens[0], document.tokens[-1]) == (digest_of_bytes(text.encode()), 0, 1)
            assert tokenizer.decode(document.tokens[1:-1].tolist(), skip_special_tokens=False) == text
        assert {document.source_file for document in found} <= {file.name for file in component.listing.files}


def test_the_manifest_says_what_is_there(plan: DataPlan):
    web = plan.components["web"]
    folder, manifest = web.train.folder, read_manifest(web.train.folder)
    texts = list(split_texts(web.documents.folder, "train"))
    assert (manifest.key, manifest.component, manifest.split, manifest.sources) == (web.train.key, "web", "train", web.listing.files)
    assert (manifest.source, manifest.tokenizer_digest) == (web.source.described(), digest_of_file(plan.tokenizer))
    assert (manifest.begin_of_text, manifest.end_of_text, manifest.dtype, manifest.documents) == (0, 1, "uint16", len(texts))
    assert manifest.text_bytes == sum(len(text.encode()) for text in texts)
    for shard in manifest.shards:
        index = pq.read_table(folder / f"{shard.name}.parquet").to_pydict()
        assert (shard.digest, shard.index_digest) == tuple(digest_of_file(folder / f"{shard.name}.{kind}") for kind in ("bin", "parquet"))
        assert shard.tokens == sum(index["length"]) == (folder / f"{shard.name}.bin").stat().st_size // 2
        assert index["offset"] == np.cumsum([0, *index["length"][:-1]]).tolist()
    assert manifest.tokens == sum(shard.tokens for shard in manifest.shards)


def test_a_large_vocabulary_needs_wider_tokens(plan: DataPlan, tmp_path: Path):
    words = {BEGIN_OF_TEXT: 0, END_OF_TEXT: 1, "<unknown>": 2} | {f"word{number}": number for number in range(3, 69_999)} | {"The": 69_999}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]  # a setter without a stub
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    web = plan.components["web"]
    manifest = build_cache(web.documents.folder, "train", tmp_path / "tokenizer.json", tmp_path / "cache")
    assert manifest.dtype == "uint32"
    first = next(TokenCache.open(tmp_path / "cache").documents())
    assert first.tokens[:2].tolist() == [0, 69_999]
    assert (tmp_path / "cache" / "shard-00000.bin").read_bytes()[4:8] == (69_999).to_bytes(4, "little")


def test_the_key_names_everything_that_decides_the_bytes(monkeypatch: pytest.MonkeyPatch):
    keys = {cache_key("d", "train", "t"), cache_key("d", "held_out", "t"), cache_key("e", "train", "t"), cache_key("d", "train", "u")}
    assert len(keys) == 4
    for name, value in (("ENCODER", "another"), ("FORMAT_VERSION", 99)):
        with monkeypatch.context() as patch:
            patch.setattr(caches, name, value)
            assert cache_key("d", "train", "t") not in keys, name


def modules_used_by(paths: set[str], room: str) -> set[str]:
    trees = [ast.parse((identity.HOUSE / path).read_text()) for path in paths]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and str(node.module).startswith(room)]
    named = {(str(node.module), f"{node.module}.{alias.name}") for node in imports for alias in node.names}
    places = {name: identity.HOUSE / f"{name.removeprefix('phasewise.').replace('.', '/')}.py" for _, name in named}
    return {name if places[name].exists() else module for module, name in named}


def names_of(paths: set[str]) -> set[str]:
    return {f"phasewise.{path.removesuffix('.py').replace('/', '.')}" for path in paths}


def test_every_module_that_decides_bytes_or_measures_is_in_a_version_and_each_version_has_its_digest():
    digested = {path.relative_to(identity.HOUSE).as_posix() for path in identity.files_of(*phase_evaluation.MEASURING)}
    assert modules_used_by(digested, "phasewise.tasks.") - names_of(digested) == set(DECIDES_NO_MEASURE)
    digested = {*reading.READER_CODE, *documents.DOCUMENTS_CODE, *caches.ENCODER_CODE, *conversation_text.COMPOSER_CODE}
    assert modules_used_by(digested, "phasewise.tasks.data") - names_of(digested) <= DECIDES_NOTHING
    for version, code in (
        (reading.READER, reading.READER_CODE), (documents.DOCUMENTS, documents.DOCUMENTS_CODE), (caches.ENCODER, caches.ENCODER_CODE),
        (conversation_text.COMPOSER, conversation_text.COMPOSER_CODE), (tokenizer.TOKENIZER_VERSION, (tokenizer,)),
        (filters.NORMALIZER, (filters,)),
    ):  # fmt: skip
        assert identity.code_digest(*code) in version
    assert identity.digest_of_json(BUILT_IN)[: identity.DIGITS] in conversation_text.COMPOSER
