"""Where a text is cut: against the report's own pattern for digits, by scripts, by the main pattern; and in time that grows with length."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from phasewise.tasks.data.vocabularies.splits import MAX_DIGITS, SPLITS, SplitName, build_pre_tokenizer


def cut(text: str, name: SplitName = "trinity") -> list[str]:
    """The pieces, as they are in the text."""
    return [text[start:stop] for _, (start, stop) in build_pre_tokenizer(name).pre_tokenize_str(text)]


@given(digits=st.text("0123456789", min_size=1, max_size=MAX_DIGITS))
def test_digits_are_cut_as_the_report_s_look_ahead_cuts_them(digits: str):
    assert cut(digits) == re.sub(r"(?<=\d)(?=(\d{3})+(?!\d))", "|", digits).split("|")


@pytest.mark.parametrize("length", [509, 510, 511, 512, 513, 1020, 1021, 5000])
def test_longer_runs_are_cut_from_the_left_first(length: int):
    digits = "".join(random.Random(length).choices("0123456789", k=length))
    runs = [digits[start : start + 510] for start in range(0, length, 510)]
    expected = [part for run in runs for part in re.sub(r"(?<=\d)(?=(\d{3})+(?!\d))", "|", run).split("|")]
    assert cut(digits) == expected


def test_digits_are_apart_from_what_is_around_them():
    assert cut("costs 12345, not x1234") == ["costs", " ", "12", "345", ",", " not", " x", "1", "234"]
    assert cut("१२३४") == ["१", "२३४"]
    assert cut("12345", "llama3") == ["123", "45"]
    assert cut(" 12345", "gpt2") == [" 12345"]


@pytest.mark.timeout(300)  # a guard against hanging: a cut that looks ahead to the end of the run at each digit takes days
def test_millions_of_digits_come_to_an_end():
    digits = "".join(random.Random(0).choices("0123456789", k=3_000_000))
    tokenizer = Tokenizer(models.BPE(vocab={digit: int(digit) for digit in "0123456789"}, merges=[]))
    tokenizer.pre_tokenizer = build_pre_tokenizer("trinity")
    (found,) = tokenizer.encode_batch_fast([digits])
    assert len(found.ids) == len(digits)


@pytest.mark.parametrize("script", ["日本", "㐀", "豈", "⼀", "ひら", "カナ", "ｶﾅ", "ภาษา", "ພາສາ", "ភាសា", "မြန်", "ꩠ", "ꧠ", "한국", "ᄀ"])
def test_a_script_without_spaces_is_apart(script: str):
    assert cut(f"word{script}word") == ["word", script, "word"]
    assert cut(f"ж{script}") == ["ж", script]


def test_scripts_with_spaces_are_words():
    assert cut("Grüße жук عربي") == ["Grüße", " жук", " عربي"]


def test_the_main_pattern():
    assert cut("don't f(.x) -- a\n\n  b\t \nc  ") == [
        "don", "'t", " f", "(.", "x", ")", " --", " a", "\n\n", " ", " b", "\t \n", "c", "  "
    ]  # fmt: skip


def test_llama_2_has_single_digits_and_spaces_before_words():
    assert cut("don't  f(.x) = 12 a1", "llama2") == [
        "don", "'", "t", " ", " f", "(.", "x", ")", " =", " ", "1", "2", " a", "1"
    ]  # fmt: skip
    assert cut("a\n\n\tb   ", "llama2") == ["a", "\n", "\n", "\t", "b", "   "]


def test_neox_has_runs_of_spaces_apart_and_gpt_2_s_pattern_around_them():
    assert cut("don't  f(.x) 12 a1", "neox") == ["don", "'t", "  ", "f", "(.", "x", ")", " 12", " a", "1"]
    assert cut(f"x{' ' * 30}y", "neox") == ["x", " " * 24, " " * 6, "y"]


@given(text=st.text(), name=st.sampled_from(SPLITS))
def test_nothing_is_lost_between_the_cuts(text: str, name: SplitName):
    assert "".join(cut(text, name)) == text
