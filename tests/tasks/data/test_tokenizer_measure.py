"""What is counted: by hand on small texts, and scripts add up to the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from phasewise.tasks.data.tokenizer_training import (
    MIN_VOCAB_SIZE,
    Fit,
    ScriptFit,
    SplitName,
    digit_groups,
    measure,
    script_of,
    train,
    white_space_tokens,
)


def by_bytes(*merged: str, split: SplitName = "trinity") -> Tokenizer:
    """Every byte is a token, but for the pieces that are merged."""
    texts = [piece for piece in merged for _ in range(50)]
    size = MIN_VOCAB_SIZE + sum(len(piece.encode()) - 1 for piece in merged)
    return Tokenizer.from_str(train({"a": texts}, size, split=split).content)


BYTES = by_bytes()


def test_a_small_text_by_hand():
    found = measure(by_bytes(" cat"), {"a": ["a cat", " cat é"], "b": ["日本 12\n"]})
    assert found.subsets == {"a": Fit(2, 12, 11, 4, 6, 0), "b": Fit(1, 10, 6, 2, 10, 0)}
    assert (found.subsets["a"].bytes_per_token, found.subsets["a"].fertility, found.subsets["b"].characters_per_token) == (2.0, 1.5, 0.6)
    assert found.scripts == {
        "latin": ScriptFit(1 + 4 + 4 + 2, 1 + 1 + 1 + 2),
        "white space": ScriptFit(3, 3),
        "cjk": ScriptFit(6, 6),
        "digits": ScriptFit(2, 2),
    }


@given(texts=st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_scripts_add_up_to_the_whole(texts: list[str]):
    found = measure(BYTES, {"a": texts})
    whole = found.subsets["a"]
    assert whole.not_back == 0
    assert sum(fit.tokens for fit in found.scripts.values()) == whole.tokens == whole.text_bytes
    assert sum(fit.text_bytes for fit in found.scripts.values()) == whole.text_bytes


def test_a_text_that_does_not_come_back_is_counted():
    lossy = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    lossy.normalizer = normalizers.Lowercase()
    lossy.decoder = decoders.ByteLevel()
    assert measure(lossy, {"a": ["ab", "aB", "ba"]}).subsets["a"].not_back == 1


@pytest.mark.parametrize(
    ("character", "script"),
    [("a", "latin"), ("é", "latin"), ("ж", "cyrillic"), ("日", "cjk"), ("한", "hangul"), ("ไ", "thai"), ("7", "digits"), ("½", "digits"),
     ("\n", "white space"), ("\u00a0", "white space"), ("+", "punctuation and symbols"), ("🌳", "punctuation and symbols")],
)  # fmt: skip
def test_scripts(character: str, script: str):
    assert script_of(character) == script


NUMBERS = " ".join(str(7919 * number % 1_000_003) for number in range(5000))


@pytest.mark.parametrize(
    ("split", "found"), [("trinity", "threes from the right"), ("llama3", "threes from the left"), ("gpt2", "no rule")]
)
def test_how_digits_are_cut_is_found_by_asking(split: SplitName, found: str):
    tokenizer = Tokenizer.from_str(train({"a": [NUMBERS]}, 1200, split=split).content)
    assert digit_groups(tokenizer) == found


def test_white_space_is_counted_beside_what_it_is_between():
    assert list(white_space_tokens(BYTES).values()) == [1, 2, 4, 8, 16, 2, 4, 2, 2]
    found = white_space_tokens(by_bytes(" y"))
    assert (found["1 space"], found["2 spaces"], found["two tabs"]) == (0, 1, 2)
