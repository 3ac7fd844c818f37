import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import SpecialTokens, load_tokenizer
from phasewise.tasks.evaluation import held_out as held_out_module
from phasewise.tasks.evaluation.held_out import (
    HeldOutDocument,
    HeldOutTokens,
    read_held_out_texts,
    read_held_out_tokens,
)
from phasewise.tasks.evaluation.scoring import bits_per_byte
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.model.params import Params
from tests.tasks.data.conversation_worlds import layout, made_conversations, write_caches, write_source

HeldOut = Mapping[str, Sequence[HeldOutDocument]]


def test_a_uniform_model_needs_log2_of_the_vocabulary_a_token(
    params: Params, config: ModelConfig, caches: Mapping[str, Path], tokenizer: Tokenizer
) -> None:
    held_out = read_held_out_tokens(caches, tokenizer)
    measured = bits_per_byte({**params, "head": np.zeros_like(params["head"])}, config, held_out)
    for component, held in held_out.items():
        expected = math.log2(config.vocab_size) * sum(map(len, held.documents)) / held.text_bytes
        assert measured.components[component] == pytest.approx(expected, rel=1e-5)
    assert measured.macro == pytest.approx(np.mean(list(measured.components.values())))


def test_equals_a_direct_sum_over_windows(params: Params, config: ModelConfig, log_softmax: Callable[[np.ndarray], np.ndarray]) -> None:
    documents = [np.random.default_rng(seed).integers(2, config.vocab_size, length) for seed, length in enumerate((5, 48, 49, 130))]
    bits = 0.0
    for document in documents:
        sequence = np.concatenate([[0], document])
        for start in range(0, len(document), config.seq_len):
            inputs = sequence[start : start + config.seq_len][: len(document) - start]
            targets = document[start : start + config.seq_len]
            bits -= log_softmax(inputs)[np.arange(len(targets)), targets].sum() / math.log(2)
    measured = bits_per_byte(params, config, {"code": HeldOutTokens(documents, 700, SpecialTokens(0, 1))})
    assert measured.components["code"] == pytest.approx(bits / 700, rel=1e-5)


def test_documents_come_back_as_they_were_written(
    caches: Mapping[str, Path], tokenizer: Tokenizer, held_out_texts: Mapping[str, Sequence[HeldOutDocument]]
) -> None:
    assert read_held_out_texts(caches, tokenizer) == held_out_texts
    tokens = read_held_out_tokens(caches, tokenizer)
    assert tokens["code"].text_bytes == sum(len(document.text.encode()) for document in held_out_texts["code"])
    assert tokens["code"].documents[0].tolist() == tokenizer.encode(held_out_texts["code"][0].text).ids


def test_of_a_large_cache_only_the_beginning_is_decoded(
    caches: Mapping[str, Path], tokenizer: Tokenizer, held_out_texts: HeldOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = held_out_texts["law"][:2]
    monkeypatch.setattr(held_out_module, "MAX_HELD_OUT_CHARACTERS", len(first.text) + len(second.text))
    assert read_held_out_texts(caches, tokenizer)["law"][:2] == [first, second]
    monkeypatch.setattr(held_out_module, "MAX_HELD_OUT_CHARACTERS", len(first.text) + len(second.text) - 1)
    assert read_held_out_texts(caches, tokenizer)["law"][1].text == second.text.rpartition(" ")[0]
    monkeypatch.setattr(held_out_module, "MAX_HELD_OUT_CHARACTERS", len(first.text) + 100)
    found = read_held_out_texts(caches, tokenizer)["law"]
    assert found[0] == first
    assert [document.id for document in found] == [first.id, second.id]
    assert found[1].text
    assert second.text[:101].startswith(f"{found[1].text} ")


def test_less_text_means_whole_documents_and_their_own_bytes(
    caches: Mapping[str, Path], tokenizer: Tokenizer, held_out_texts: HeldOut
) -> None:
    whole = read_held_out_tokens(caches, tokenizer)["law"]
    first, second = (len(document) for document in whole.documents[:2])
    for max_tokens, count in ((1, 1), (first, 1), (first + 1, 2), (first + second, 2), (10**9, len(whole.documents))):
        less = read_held_out_tokens(caches, tokenizer, max_tokens=max_tokens)["law"]
        assert len(less.documents) == count
        assert less.text_bytes == sum(len(document.text.encode()) for document in held_out_texts["law"][:count])


def test_of_conversations_the_tokens_that_the_template_writes_count_in_part_as_in_whole(tmp_path: Path) -> None:
    """All special tokens, the one that ends documents among them, are predicted: so they are in the bytes that are divided by."""
    template = "{% for m in messages %}<|turn|>{{ m.content }}{{ eos_token }}{% endfor %}"
    write_caches(write_source(tmp_path / "source", layout("messages", template), made_conversations(60)), tmp_path)
    tokenizer = load_tokenizer(tmp_path / "tokenizer" / "tokenizer.json")
    manifest = read_manifest(tmp_path / "held_out")
    for max_tokens in (None, 10**9):
        found = read_held_out_tokens({"talk": tmp_path / "held_out"}, tokenizer, max_tokens=max_tokens)["talk"]
        assert found.text_bytes == manifest.text_bytes
        assert sum(map(len, found.documents)) == manifest.tokens - 2 * manifest.documents


def test_caches_that_cannot_be_measured_are_refused(
    tmp_path: Path, tokenizer: Tokenizer, write_cache: Callable[..., Path], held_out_texts: HeldOut
) -> None:
    with pytest.raises(DataError, match="at least one component"):
        read_held_out_tokens({}, tokenizer)
    with pytest.raises(DataError, match="law must have held-out text, found 0 bytes"):
        read_held_out_tokens({"law": write_cache(tmp_path / "law", [])}, tokenizer)
    with pytest.raises(DataError, match="found the split 'train'"):
        read_held_out_tokens({"code": write_cache(tmp_path / "code", held_out_texts["code"], "train")}, tokenizer)


def test_caches_of_another_tokenizer_are_refused(tokenizer: Tokenizer, caches: Mapping[str, Path]) -> None:
    swapped = tokenizer.to_str().replace("begin_of_text", "?").replace("end_of_text", "begin_of_text").replace("?", "end_of_text")
    with pytest.raises(DataError, match="found the ids 1 and 0 in the tokenizer, 0 and 1 in questions"):
        read_held_out_tokens(caches, Tokenizer.from_str(swapped))
