"""What is normalised, and that a second time changes nothing."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.data.normalize import NORMALIZER, normalize
from phasewise.tasks.data.source import Normalization

TEXT = st.text(st.one_of(st.sampled_from(" \t\r\n\u00a0\u0301e"), st.characters(exclude_categories=["Cs"])))
WAYS = st.builds(
    Normalization,
    unicode=st.sampled_from(["NFC", None]),
    line_ends=st.sampled_from(["lf", "keep"]),
    trailing_spaces=st.sampled_from(["keep", "strip"]),
)


@settings(deadline=None)
@given(TEXT, WAYS)
def test_a_second_time_changes_nothing(text: str, how: Normalization):
    once = normalize(text, how)
    assert normalize(once, how) == once
    assert how.unicode is None or unicodedata.is_normalized("NFC", once)
    assert how.line_ends == "keep" or "\r" not in once
    assert how.trailing_spaces == "keep" or not any(end in once + "\n" for end in (" \n", "\t\n", " \r", "\t\r"))


@settings(deadline=None)
@given(TEXT)
def test_nothing_is_changed_that_is_not_wished(text: str):
    assert normalize(text, Normalization(unicode=None, line_ends="keep", trailing_spaces="keep")) == text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, " café \n\nx\t\ny  "),
        ({"unicode": None}, " cafe\u0301 \n\nx\t\ny  "),
        ({"line_ends": "keep"}, " café \r\n\rx\t\ny  "),
        ({"trailing_spaces": "strip"}, " café\n\nx\ny"),
        ({"trailing_spaces": "strip", "line_ends": "keep"}, " café\r\n\rx\ny"),
    ],
)
def test_each_part_is_chosen(changes: dict[str, str], expected: str):
    assert normalize(" cafe\u0301 \r\n\rx\t\ny  ", Normalization.model_validate(changes)) == expected


def test_a_long_run_of_spaces_takes_linear_time():
    text = " " * 3_000_000 + "x"
    assert normalize(text, Normalization(trailing_spaces="strip")) == text


def test_the_version_names_code_and_unicode_tables():
    name, digest, unicode = NORMALIZER.split("+")
    assert (name, len(digest), unicode) == ("nfc-lf-2", 8, f"unicode-{unicodedata.unidata_version}")
