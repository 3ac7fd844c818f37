import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.validations.evidence.leakage.words import is_number, is_sign, number_hash, split_words, word_hash

ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def hashes(text: str) -> list[int]:
    return split_words(text.encode()).hashes.tolist()


def in_words(number: int, conjunction: str = " ") -> str:
    """A number below a thousand million, as it is said; `conjunction` follows hundreds."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")
    size, name = (100, "hundred") if number < 1_000 else (1_000, "thousand") if number < 10**6 else (10**6, "million")
    rest = number % size
    behind = conjunction if size == 100 or rest < 100 else " "
    return f"{in_words(number // size, conjunction)} {name}" + (behind + in_words(rest, conjunction) if rest else "")


@pytest.mark.parametrize("conjunction", [" ", " and ", "-"])
def test_every_small_number_is_the_same_in_words_and_in_digits(conjunction: str):
    for number in range(1_200):
        assert hashes(f"the {in_words(number, conjunction)} ships") == hashes(f"the {number} ships"), number


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9 - 1), st.sampled_from([" ", " and "]), st.booleans())
def test_any_number_is_the_same_in_words_and_in_digits(number: int, conjunction: str, is_upper: bool):
    said = in_words(number, conjunction)
    assert hashes(f"so {said.upper() if is_upper else said}, no more") == hashes(f"so {number}, no more")


@pytest.mark.parametrize(("text", "same"), [
    ("twelve hundred", "1200"), ("thirty <b>five</b>", "35"), ("Fourty&#45;two", "42"), ("twenty, thirty one, two", "20 31 2"),
    ("ten and five", "10 and 5"), ("one two three", "1 2 3"), ("twenty zero", "20 0"), ("twenty and one", "20 and 1"),
    ("fourteen five", "14 5"), ("two hundred and men", "200 and men"), ("two hundred and three hundred", "203 hundred"),
    ("two hundred hundred", "200 hundred"), ("two thousand thousand", "2000 thousand"), ("two thousand five million", "2005 million"),
    ("zero hundred", "0 hundred"), ("two hundred and thousand", "200 and thousand"), ("two hundred and", "200 and"),
])  # fmt: skip
def test_where_one_number_ends_and_the_next_begins(text: str, same: str):
    assert hashes(text) == hashes(same)


@pytest.mark.parametrize("word", ["hundred", "a hundred", "and", "a thousand ships", "none", "someone", "tenfold", "second", "3 hundred"])
def test_what_names_no_number_by_itself_stays_a_word(word: str):
    assert not is_number(split_words(word.replace("3 ", "").encode()).hashes).any()
    assert len(hashes(word)) == len(word.split())


def test_a_number_in_words_spans_its_words_and_is_a_sign():
    text = "all of the <i>Twenty</i>-five hundred and six men"
    found = split_words(text.encode())
    written = [text.encode()[start:end].decode() for start, end in zip(found.starts, found.ends, strict=True)]
    assert written == ["all", "of", "the", "Twenty</i>-five hundred and six", "men"]
    assert is_sign(found.hashes).tolist() == is_number(found.hashes).tolist() == [False, False, False, True, False]


def test_words_and_numbers_have_the_hashes_that_texts_have():
    assert hashes("thousand") == [word_hash("thousand")]
    for number in (0, 7, 10, 99, 100, 12_345, 10**18 - 1):
        assert hashes(str(number)) == [int(number_hash(np.uint64(number)))]
