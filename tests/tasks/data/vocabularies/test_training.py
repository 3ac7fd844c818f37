"""Training and cutting: every text comes back, no token reaches over a cut, and a cut is what training at the size gives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from phasewise.tasks.data.vocabularies.splits import SPLITS, SplitName
from phasewise.tasks.data.vocabularies.training import MIN_VOCAB_SIZE, Amount, train, truncate
from phasewise.trainer.base.errors import ConfigError, DataError
from tests.tasks.conftest import write_prose

TEXTS = {
    "numbers": [" ".join(str(7919 * number % 1_000_003) for number in range(400))],
    "prose": [write_prose(number, 20) for number in range(8)] + ["日本語日本語 한국어한국어 Grüße 🌳"] * 5,
}
VOCAB_SIZE = 600


def content(split: SplitName = "trinity", vocab_size: int = VOCAB_SIZE) -> str:
    return train(TEXTS, vocab_size, split=split).content


@pytest.fixture(scope="module", params=SPLITS)
def trained(request: pytest.FixtureRequest) -> tuple[SplitName, str]:
    return request.param, content(request.param)


def test_it_has_the_size_that_was_asked_for(trained: tuple[SplitName, str]):
    assert Tokenizer.from_str(trained[1]).get_vocab_size() == VOCAB_SIZE
    assert content(trained[0]) == trained[1], "and is the same each time"


@pytest.mark.parametrize("vocab_size", [MIN_VOCAB_SIZE, MIN_VOCAB_SIZE + 1, 400, VOCAB_SIZE - 1, VOCAB_SIZE])
def test_a_cut_one_is_the_one_that_training_gives(trained: tuple[SplitName, str], vocab_size: int):
    split, larger = trained
    assert truncate(larger, vocab_size) == content(split, vocab_size)


def test_two_merges_may_make_one_entry():
    """A cut after it keeps the merges that were learnt when it had its last entry."""
    written = json.loads(content(vocab_size=MIN_VOCAB_SIZE))
    merges = [["a", "b"], ["b", "c"], ["a", "bc"], ["ab", "c"], ["c", "d"]]
    for number, token in enumerate(("ab", "bc", "abc", "cd")):
        written["model"]["vocab"][token] = MIN_VOCAB_SIZE + number
    larger = json.dumps({**written, "model": {**written["model"], "merges": merges}})
    for entries, kept in ((2, 2), (3, 3), (4, 5)):
        model = json.loads(truncate(larger, MIN_VOCAB_SIZE + entries))["model"]
        assert (model["merges"], len(model["vocab"])) == (merges[:kept], MIN_VOCAB_SIZE + entries)


@given(text=st.text())
def test_every_text_comes_back(trained: tuple[SplitName, str], text: str):
    tokenizer = Tokenizer.from_str(trained[1])
    tokenizer.encode_special_tokens = True
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_special_tokens_of_a_template_have_entries_and_nothing_is_learnt_from_them():
    """A cut keeps them, and where a text spells one, its bytes are not merged towards it."""
    more = ("<|eot_id|>", "<|start_header_id|>")
    texts = {"chat": ["<|start_header_id|>" * 50 + " river mountain river mountain" * 20]}
    larger = train(texts, 272, split="llama3", special_tokens=more).content
    tokenizer = Tokenizer.from_str(larger)
    assert [tokenizer.id_to_token(number) for number in range(4)] == ["<|begin_of_text|>", "<|end_of_text|>", *more]
    assert tokenizer.encode("<|eot_id|>", add_special_tokens=False).ids == [2]
    assert not [token for token in tokenizer.get_vocab() if "head" in token and token not in more]
    assert truncate(larger, 266, more) == train(texts, 266, split="llama3", special_tokens=more).content
    with pytest.raises(ConfigError, match="at least 260, for 256 bytes and 4 special tokens"):
        truncate(larger, 259, more)
    with pytest.raises(DataError, match="its entries must be 2 special tokens"):
        truncate(larger, 266)


def test_no_more_is_read_than_is_asked_for():
    found = train({"a": ["12345678"] * 5, "b": ["x"]}, MIN_VOCAB_SIZE, split="trinity", max_bytes=9)
    assert found.amounts == {"a": Amount(2, 16), "b": Amount(1, 1)}


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="at least 258"):
        train(TEXTS, 257, split="trinity")
    with pytest.raises(DataError, match="must give 300 entries, found 259 in 2 bytes"):
        train({"a": ["ab"]}, 300, split="trinity")
    larger = content()
    for vocab_size, said in ((257, "at least 258"), (VOCAB_SIZE + 1, f"at most the {VOCAB_SIZE} entries")):
        with pytest.raises(ConfigError, match=said):
            truncate(larger, vocab_size)
    other = json.loads(larger)
    other["model"]["merges"][0], other["model"]["merges"][1] = other["model"]["merges"][1], other["model"]["merges"][0]
    for changed in (other, {"model": {"type": "WordLevel", "vocab": {"a": 0}}}, {}):
        with pytest.raises(DataError, match="cut by the rank of its merges"):
            truncate(json.dumps(changed), 300)
