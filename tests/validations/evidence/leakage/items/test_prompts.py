import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.validations.evidence.leakage.prompts import (
    are_letters,
    distinct_parts,
    letter_index,
    split_background,
    split_options,
    strip_frame,
    strip_letters,
    without_options,
)


@pytest.mark.parametrize(
    ("framed", "bare"),
    [
        ("Question: Where do wrens nest?\nAnswer:", "Where do wrens nest?"),
        ("Q: Where do wrens nest?\nA:", "Where do wrens nest?"),
        ("Q: Where do wrens nest?\nA: Among A through E, the answer is", "Where do wrens nest?"),
        ("Q: Where do wrens nest?\nA: Let's think step by step.", "Where do wrens nest?"),
        ("### Question: Where do wrens nest?\n### Answer", "Where do wrens nest?"),
        ("**Problem 7:** Where do wrens nest?\n**Solution:**", "Where do wrens nest?"),
        ("Where do wrens nest? The final answer is:", "Where do wrens nest?"),
        ("Context: A wren is small.\nQuestion: Where does it nest?\nAnswer:", "A wren is small.\nWhere does it nest?"),
        ("Context: it all depends", "Context: it all depends"),
        ("The answer to this is what?", "The answer to this is what?"),
        ("Which letter follows A:", "Which letter follows A:"),
    ],
)
def test_frames_come_off_and_nothing_else(framed: str, bare: str) -> None:
    assert strip_frame(framed) == bare


@pytest.mark.parametrize(
    ("text", "question", "options"),
    [
        ("Which?\nOptions:\n(A) red fox\n(B) blue jay", "Which?", ("red fox", "blue jay")),
        ("Which?\nOptions:\n- Yes\n- No", "Which?", ("Yes", "No")),
        ("Which? Answer Choices: (A)5(x + 1) (B)6 (C)None", "Which?", ("5(x + 1)", "6", "None")),
        ("Which? Answer Choices: A red fox B blue jay", "Which?", ("red fox", "blue jay")),
        ("Which?\nA. red fox\nB. A. A. Milne", "Which?", ("red fox", "A. A. Milne")),
        ("Which?\nA. \nB. blue", "Which?", ("", "blue")),
        ("Which (A) red (B) blue (C) green", "Which", ("red", "blue", "green")),
        ("Options: a ) 38 , b ) 27.675 , c ) none", "", ("38", "27.675", "none")),
        ("As A. J. P. Taylor wrote in 1945.\nWhich?", "As A. J. P. Taylor wrote in 1945.\nWhich?", ()),
        ("Name all options: there are some", "Name all options: there are some", ()),
        ("A. red\nB. blue (", "", ("red", "blue (")),
        ("(A) is taller than (B)", "(A) is taller than (B)", ()),
    ],
)
def test_options_come_off_the_end(text: str, question: str, options: tuple[str, ...]) -> None:
    found = split_options(text)
    assert (found.question, found.options) == (question, options)


@settings(max_examples=50)
@given(
    st.sampled_from([("(", ") "), ("", ". "), ("", ") ")]),
    st.lists(st.from_regex(r"[f-z]{1,6}( [f-z]{1,6}){0,3}", fullmatch=True), min_size=2, max_size=9),
)
def test_what_is_written_as_a_list_is_read_back(mark: tuple[str, str], options: list[str]) -> None:
    lines = "".join(f"\n{mark[0]}{letter}{mark[1]}{option}" for letter, option in zip("ABCDEFGHI", options, strict=False))
    assert split_options(f"which of these?{lines}")[:2] == ("which of these?", tuple(options))
    assert without_options(f"which of these?{lines}", options) == "which of these?"


def test_other_options_than_the_given_ones_stay() -> None:
    text = "In the list\nA. red\nB. blue\nC. green"
    assert without_options(text, ("1 only", "2 only")) == text
    assert without_options("Which?\nChoices:\nred, blue or green", ("green", "red", "blue")) == "Which?"


def test_letters_come_off_options_in_any_order_or_not_at_all() -> None:
    assert strip_letters(("(A)yes", "(C)maybe", "B? no")) == (("yes", "maybe", "no"), ("A", "C", "B"))
    assert strip_letters(("A wren", "Birds")) == (("A wren", "Birds"), ())
    assert strip_letters(("(B)yes", "(C)no")) == (("(B)yes", "(C)no"), ())


def test_letters_are_counted() -> None:
    assert [letter_index(text) for text in ("A", "(b)", " C. ", "AB", "", "1")] == [0, 1, 2, None, None, None]
    assert are_letters(("A", "B", "C"))
    assert not are_letters(("A", "C"))


def test_what_differs_is_reported() -> None:
    assert distinct_parts(("It broke because the cup", "It broke because the big plate")) == ("cup", "big plate")
    assert distinct_parts(("the cup fell", "the plate fell")) == ("cup", "plate")
    assert distinct_parts(("same", "same")) == ("same", "same")


def test_background_is_distinguished_from_the_question() -> None:
    assert split_background("A wren is small. Q: Where does it nest?") == ("A wren is small.", "Where does it nest?")
    assert split_background("Where?") == ("", "Where?")
