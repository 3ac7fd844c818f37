import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import SpecialTokens, load_tokenizer
from phasewise.tasks.evaluation import held_out as held_out_module
from phasewise.tasks.evaluation.held_out import HeldOutTokens, read_held_out_texts, read_held_out_tokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.ngram_baselines import ByteNgram, ngram_bits_per_byte
from phasewise.tasks.evaluation.scoring import bits_per_byte
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.model.params import Params
from tests.tasks.data.conversation_worlds import layout, made_conversations, write_caches, write_source
from tests.tasks.evaluation.conftest import HeldOut, WriteCache

Caches = Mapping[str, Path]


def test_a_uniform_model_needs_log2_of_the_vocabulary(model: JaxLanguageModel, caches: Caches):
    held_out, blind = read_held_out_tokens(caches, model.tokenizer), {**model.params, "head": np.zeros_like(model.params["head"])}
    measured = bits_per_byte(blind, model.config, held_out)
    for component, held in held_out.items():
        expected = math.log2(model.config.vocab_size) * sum(map(len, held.documents)) / held.text_bytes
        assert measured.components[component] == pytest.approx(expected, rel=1e-5)
    assert measured.macro == pytest.approx(np.mean(list(measured.components.values())))


def test_equals_a_direct_sum_over_windows(params: Params, config: ModelConfig, log_softmax: Callable[[np.ndarray], np.ndarray]):
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


def test_documents_come_back_as_far_as_they_are_asked_for(
    caches: Caches, tokenizer: Tokenizer, held_out_texts: HeldOut, monkeypatch: pytest.MonkeyPatch
):
    assert read_held_out_texts(caches, tokenizer) == held_out_texts
    tokens = read_held_out_tokens(caches, tokenizer)
    assert tokens["code"].text_bytes == sum(len(document.text.encode()) for document in held_out_texts["code"])
    assert tokens["code"].documents[0].tolist() == tokenizer.encode(held_out_texts["code"][0].text).ids
    whole = read_held_out_tokens(caches, tokenizer)["law"]
    first, second = (len(document) for document in whole.documents[:2])
    for max_tokens, count in ((1, 1), (first, 1), (first + 1, 2), (first + second, 2), (10**9, len(whole.documents))):
        less = read_held_out_tokens(caches, tokenizer, max_tokens=max_tokens)["law"]
        assert len(less.documents) == count
        assert less.text_bytes == sum(len(document.text.encode()) for document in held_out_texts["law"][:count])
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


def test_of_conversations_the_tokens_that_the_template_writes_count_in_part_as_in_whole(tmp_path: Path):
    template = "{% for m in messages %}<|turn|>{{ m.content }}{{ eos_token }}{% endfor %}"
    write_caches(write_source(tmp_path / "source", layout("messages", template), made_conversations(60)), tmp_path)
    tokenizer = load_tokenizer(tmp_path / "tokenizer" / "tokenizer.json")
    manifest = read_manifest(tmp_path / "held_out")
    for max_tokens in (None, 10**9):
        found = read_held_out_tokens({"talk": tmp_path / "held_out"}, tokenizer, max_tokens=max_tokens)["talk"]
        assert found.text_bytes == manifest.text_bytes
        assert sum(map(len, found.documents)) == manifest.tokens - 2 * manifest.documents


def test_other_caches_are_refused(tmp_path: Path, tokenizer: Tokenizer, write_cache: WriteCache, held_out_texts: HeldOut, caches: Caches):
    with pytest.raises(DataError, match="at least one component"):
        read_held_out_tokens({}, tokenizer)
    with pytest.raises(DataError, match="law must have held-out text, found 0 bytes"):
        read_held_out_tokens({"law": write_cache(tmp_path / "law", [])}, tokenizer)
    with pytest.raises(DataError, match="found the split 'train'"):
        read_held_out_tokens({"code": write_cache(tmp_path / "code", held_out_texts["code"], "train")}, tokenizer)
    swapped = tokenizer.to_str().replace("begin_of_text", "?").replace("end_of_text", "begin_of_text").replace("?", "end_of_text")
    with pytest.raises(DataError, match="found the ids 1 and 0 in the tokenizer, 0 and 1 in questions"):
        read_held_out_tokens(caches, Tokenizer.from_str(swapped))


TRAIN = ["the cat sat on the mat", "a cat é ate the rat", "", "x", "the\nthe\nthe", "aaaaaaaa"]
UNSEEN = ["the bat sat", "é", "zq", "at the rat the cat\n"]


class SlowNgram:
    def __init__(self, texts: list[str], max_order: int) -> None:
        self.followers: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
        for data in (text.encode() for text in texts):
            for position, byte in enumerate(data):
                for length in range(min(position, max_order - 1) + 1):
                    self.followers[data[position - length : position]][byte] += 1

    def probability(self, byte: int, context: bytes) -> float:
        below = self.probability(byte, context[1:]) if context else 1 / 256
        seen = self.followers.get(context)
        return (seen[byte] + len(seen) * below) / (seen.total() + len(seen)) if seen else below


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5, 6, 8])
def test_equals_the_recursion_over_dictionaries(order: int):
    slow = SlowNgram(TRAIN, order)
    places = [(data, place) for data in (text.encode() for text in UNSEEN) for place in range(len(data))]
    expected = [slow.probability(data[place], data[max(0, place - order + 1) : place]) for data, place in places]
    np.testing.assert_allclose(ByteNgram.fit(TRAIN, order).probabilities(UNSEEN)[-1], expected, rtol=1e-12)
    np.testing.assert_allclose(ByteNgram.fit(TRAIN, 8).probabilities(UNSEEN)[order - 1], expected, rtol=1e-12)


@pytest.mark.parametrize("context", ["", "t", "th", "zz", "the ", "aaaa"])
def test_probabilities_of_all_bytes_sum_to_one(context: str):
    # Only 128 bytes are a text by themselves: the share of the others follows from symmetry, as none above 127 but é was seen.
    model = ByteNgram.fit([text.replace("é", "e") for text in TRAIN], 5)
    ascii_mass = sum(model.probabilities([context + chr(byte)])[:, -1] for byte in range(128))
    unseen = model.probabilities([context + chr(127)])[:, -1]
    np.testing.assert_allclose(ascii_mass + 128 * unseen, 1, rtol=1e-12)


def test_bits_per_byte_by_order_and_component_and_refusals():
    model = ByteNgram.fit(["ab", "cd"], 2)
    joined = model.probabilities(["bc"])[1, -1]
    apart = model.probabilities(["b", "c"])[1, -1]
    assert joined == apart == pytest.approx((1 + 4 / 256) / 8)
    assert model.probabilities(["ab"])[1, -1] == pytest.approx((1 + joined) / 2)
    held_out = {"prose": ["the cat sat", "the rat"], "other": ["zzzz"]}
    measured = ngram_bits_per_byte(TRAIN, held_out, orders=(3, 5))
    probabilities = ByteNgram.fit(TRAIN, 3).probabilities(held_out["prose"])[-1]
    assert measured[3].components["prose"] == pytest.approx(-sum(map(math.log2, probabilities)) / 18)
    assert measured[5].macro == pytest.approx(np.mean([*measured[5].components.values()]))
    assert measured[3].components["prose"] < 8 < measured[3].components["other"]
    with pytest.raises(DataError, match="found 0 bytes"):
        ByteNgram.fit(["", ""], 3)
    with pytest.raises(DataError, match="found none for law"):
        ngram_bits_per_byte(TRAIN, {"code": ["x"], "law": [""]})
    with pytest.raises(ValueError, match="between 1 and 8"):
        ByteNgram.fit(TRAIN, 9)
