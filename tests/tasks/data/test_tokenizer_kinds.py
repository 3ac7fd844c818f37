"""Caches by tokenizers of other families, whose documents begin and end with other tokens or only end with one."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from phasewise.tasks.data import tokenizer as tokenizers
from phasewise.tasks.data.source import Source
from phasewise.tasks.training.pretrained import tokenizer_of
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.loader import Batch
from tests.tasks.data.builds import build_cache, write_documents
from tests.tasks.data.tokenizer_kinds import KINDS, write_kind
from tests.tasks.evaluation.conftest import write_prose

TEXTS = [f"{write_prose(number, 40)} Grüße 🌳 {number}\n  two spaces" for number in range(60)]


@pytest.mark.parametrize("kind", KINDS)
def test_documents_come_back_and_are_kept_apart(tmp_path: Path, kind: str):
    write_kind(kind, TEXTS, tmp_path / "files")
    name, size, around = tokenizer_of(str(tmp_path / "files"))
    assert (name, tuple(around)) == (str(tmp_path / "files"), KINDS[kind][2])
    path = tmp_path / "tokenizer" / "tokenizer.json"
    tokenizers.write_tokenizer(path, (tmp_path / "files" / "tokenizer.json").read_bytes(), around)
    tokenizers.check_special_tokens(path, size)
    assert tokenizers.read_document_tokens(path) == around
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    write_documents(Source(url=str(tmp_path / "source"), include=("*.jsonl",), format="jsonl"), tmp_path / "documents")
    for split in ("train", "held_out"):
        build_cache(tmp_path / "documents", split, path, tmp_path / split)
    cache = TokenCache.open(tmp_path / "train")
    manifest = cache.manifest
    begin, end = manifest.begin_of_text, manifest.end_of_text
    text = tokenizers.TokenText(path, manifest)
    documents = [document.tokens for document in cache.documents()]
    assert len(documents) > 40
    found = [text.excerpt(tokens) for tokens in documents]
    assert sorted(found) == sorted(set(TEXTS) & set(found))
    for tokens in documents:
        assert begin is None or tokens[0] == begin
        assert end is None or tokens[-1] == end
        assert np.isin(tokens, [token for token in (begin, end) if token is not None]).sum() == (begin is not None) + (end is not None)
    whole = np.concatenate(documents)[None]
    ids = Batch(whole, begin, end_of_text=end).segment_ids[0]
    expected = np.repeat(np.arange(1, len(documents) + 1), [len(tokens) for tokens in documents])
    np.testing.assert_array_equal(ids, expected)


def test_a_tokenizer_without_the_named_tokens_is_refused_within_two_seconds(tmp_path: Path):
    write_kind("gpt2", TEXTS, tmp_path)
    path = tmp_path / "tokenizer.json"
    started = time.process_time()
    with pytest.raises(DataError, match=r"must have the tokens <s> and </s> around documents, and lacks <s> and </s>\. State its own"):
        tokenizers.check_special_tokens(path, 10_000, tokenizers.DocumentTokens("<s>", "</s>"))
    assert time.process_time() - started < 2
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="must name its eos_token"):
        tokenizer_of(str(tmp_path))
    path.unlink()
    with pytest.raises(ConfigError, match=r"must have a tokenizer.json, and has none.*save_pretrained"):
        tokenizer_of(str(tmp_path))


def test_names_of_another_tokenizer_are_no_names_of_this_one(tmp_path: Path):
    tokenizer = write_kind("qwen", TEXTS, tmp_path / "files")
    content = (tmp_path / "files" / "tokenizer.json").read_bytes()
    for name in ("one", "other"):
        tokenizers.write_tokenizer(
            tmp_path / name / "tokenizer.json", content if name == "one" else content + b"\n", tokenizers.DocumentTokens(None, "<|im_end|>")
        )
    path = tmp_path / "one" / "tokenizer.json"
    assert tokenizers.special_tokens(tokenizer, path) == (None, tokenizer.token_to_id("<|im_end|>"))
    (tmp_path / "one" / tokenizers.DOCUMENT_TOKENS_NAME).write_bytes((tmp_path / "other" / tokenizers.DOCUMENT_TOKENS_NAME).read_bytes())
    with pytest.raises(DataError, match=r"document_tokens\.json was edited"):
        tokenizers.special_tokens(tokenizer, path)
