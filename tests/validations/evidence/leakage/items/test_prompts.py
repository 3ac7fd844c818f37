import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.validations.evidence.leakage import prompts

NEST = "Where do wrens nest?"
FRAMES = (
    "Question: {}\nAnswer:", "Q: {}\nA:", "Q: {}\nA: Among A through E, the answer is", "Q: {}\nA: Let's think step by step.",
    "### Question: {}\n### Answer", "**Problem 7:** {}\n**Solution:**", "{} The final answer is:",
)  # fmt: skip
BARE = ("Context: it all depends", "The answer to this is what?", "Which letter follows A:")


@pytest.mark.parametrize(("framed", "bare"), [
    *((frame.format(NEST), NEST) for frame in FRAMES), *((text, text) for text in BARE),
    ("Context: A wren is small.\nQuestion: Where does it nest?\nAnswer:", "A wren is small.\nWhere does it nest?"),
])  # fmt: skip
def test_frames_come_off_and_nothing_else(framed: str, bare: str) -> None:
    assert prompts.strip_frame(framed) == bare


@pytest.mark.parametrize(("text", "question", "options"), [
    ("Which?\nOptions:\n(A) red fox\n(B) blue jay", "Which?", ("red fox", "blue jay")),
    ("Which?\nOptions:\n- Yes\n- No", "Which?", ("Yes", "No")),
    ("Which? Answer Choices: (A)5(x + 1) (B)6 (C)None", "Which?", ("5(x + 1)", "6", "None")),
    ("Which? Answer Choices: A red fox B blue jay", "Which?", ("red fox", "blue jay")),
    ("Which?\nA. red fox\nB. A. A. Milne", "Which?", ("red fox", "A. A. Milne")), ("Which?\nA. \nB. blue", "Which?", ("", "blue")),
    ("Which (A) red (B) blue (C) green", "Which", ("red", "blue", "green")),
    ("Options: a ) 38 , b ) 27.675 , c ) none", "", ("38", "27.675", "none")),
    ("As A. J. P. Taylor wrote in 1945.\nWhich?", "As A. J. P. Taylor wrote in 1945.\nWhich?", ()),
    ("Name all options: there are some", "Name all options: there are some", ()), ("A. red\nB. blue (", "", ("red", "blue (")),
    ("(A) is taller than (B)", "(A) is taller than (B)", ()),
])  # fmt: skip
def test_options_come_off_the_end(text: str, question: str, options: tuple[str, ...]) -> None:
    assert prompts.split_options(text)[:2] == (question, options)


@settings(max_examples=50)
@given(
    st.sampled_from([("(", ") "), ("", ". "), ("", ") ")]),
    st.lists(st.from_regex(r"[f-z]{1,6}( [f-z]{1,6}){0,3}", fullmatch=True), min_size=2, max_size=9),
)
def test_what_is_written_as_a_list_is_read_back(mark: tuple[str, str], options: list[str]) -> None:
    lines = "".join(f"\n{mark[0]}{letter}{mark[1]}{option}" for letter, option in zip("ABCDEFGHI", options, strict=False))
    assert prompts.split_options(f"which of these?{lines}")[:2] == ("which of these?", tuple(options))
    assert prompts.without_options(f"which of these?{lines}", options) == "which of these?"


def test_other_options_than_the_given_ones_stay() -> None:
    text = "In the list\nA. red\nB. blue\nC. green"
    assert prompts.without_options(text, ("1 only", "2 only")) == text
    assert prompts.without_options("Which?\nChoices:\nred, blue or green", ("green", "red", "blue")) == "Which?"


def test_letters_come_off_options_in_any_order_or_not_at_all_and_are_counted() -> None:
    assert prompts.strip_letters(("(A)yes", "(C)maybe", "B? no")) == (("yes", "maybe", "no"), ("A", "C", "B"))
    for unlettered in (("A wren", "Birds"), ("(B)yes", "(C)no")):
        assert prompts.strip_letters(unlettered) == (unlettered, ())
    assert [prompts.letter_index(text) for text in ("A", "(b)", " C. ", "AB", "", "1")] == [0, 1, 2, None, None, None]
    assert [prompts.are_letters(letters) for letters in (("A", "B", "C"), ("A", "C"))] == [True, False]


def test_what_differs_and_background_are_split_off() -> None:
    assert prompts.distinct_parts(("It broke because the cup", "It broke because the big plate")) == ("cup", "big plate")
    assert prompts.distinct_parts(("the cup fell", "the plate fell")) == ("cup", "plate")
    assert prompts.distinct_parts(("same", "same")) == ("same", "same")
    assert prompts.split_background("A wren is small. Q: Where does it nest?") == ("A wren is small.", "Where does it nest?")
    assert prompts.split_background("Where?") == ("", "Where?")
