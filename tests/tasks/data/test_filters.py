"""Filters by field and by text, against a count character by character."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.data.filters import STRETCH_CHARACTERS, build_sift, digit_percent, field_keys, special_percent
from phasewise.tasks.data.formats.findings import LeftOut, Record
from phasewise.tasks.data.source import FieldFilter, TextFilter

TEXT = st.text(
    st.one_of(st.sampled_from("a1 .²½Ⅷ٣।़\u00a0日🌳"), st.characters(exclude_categories=["Cs"])), min_size=1, max_size=60
)  # fmt: skip


@settings(deadline=None)
@given(TEXT)
def test_shares_are_those_of_the_characters(text: str):
    digits = sum(character.isdigit() for character in text)
    special = sum(not (character.isalnum() or character.isspace()) for character in text)
    assert digit_percent(text) == 100 * digits / len(text)
    assert special_percent(text) == 100 * special / len(text)


def test_a_long_text_is_measured_in_stretches():
    assert digit_percent("1x" * STRETCH_CHARACTERS + "日11") == 100 * (STRETCH_CHARACTERS + 2) / (2 * STRETCH_CHARACTERS + 3)


@pytest.mark.parametrize(
    ("measure", "text", "value"),
    [
        ("characters", "Grüße", 5),
        ("words", " two\nwords ", 2),
        ("digit_percent", "a1b2٣", 60),
        ("special_percent", "a_b. é", 100 * 2 / 6),
    ],
)
def test_limits_are_within(measure: str, text: str, value: float):
    def is_taken(**limits: float) -> bool:
        each = TextFilter.model_validate({"measure": measure, **limits})
        finding = build_sift([each])(text, "row 0", {})
        assert finding in (Record(text, "row 0"), LeftOut(f"filter {measure}", "row 0"))
        return isinstance(finding, Record)

    assert all((is_taken(min=value), is_taken(max=value), is_taken(min=value, max=value)))
    assert not any((is_taken(min=value + 0.1), is_taken(max=value - 0.1)))


@pytest.mark.parametrize(
    ("value", "keep", "is_taken"),
    [
        ("py", "py", True),
        ("python", "py", False),
        (3, "3", True),
        (True, "true", True),
        (True, "1", False),
        (False, "false", True),
        (1.5, "1.5", True),
        (None, "None", False),
        (["py"], "py", False),
        ({"py": 1}, "py", False),
    ],
)
def test_a_field_must_have_one_of_the_values(value: object, keep: str, is_taken: bool):
    sift = build_sift([FieldFilter(key="metadata.extension", keep=("other", keep))])
    found = sift("text", "row 0", {"metadata": {"extension": value}})
    assert found == (Record("text", "row 0") if is_taken else LeftOut("filter field metadata.extension", "row 0"))


@pytest.mark.parametrize("fields", [{}, {"metadata": None}, {"metadata": "py"}, {"metadata": {}}])
def test_a_document_without_the_field_is_left_out(fields: dict[str, object]):
    sift = build_sift([FieldFilter(key="metadata.extension", keep=("py",))])
    assert isinstance(sift("text", "row 0", fields), LeftOut)


def test_the_first_filter_that_fails_is_the_reason_and_no_text_is_before_all():
    sift = build_sift([TextFilter(measure="words", min=2), FieldFilter(key="lang", keep=("en",))])
    assert sift("one", "row 0", {}) == LeftOut("filter words", "row 0")
    assert sift("one two", "row 0", {}) == LeftOut("filter field lang", "row 0")
    assert sift("\u00a0\n", "row 0", {}) == sift("", "row 0", {}) == LeftOut("empty text", "row 0")


def test_fields_are_named_once():
    filters = [FieldFilter(key="b", keep=("1",)), TextFilter(measure="words", min=1), FieldFilter(key="a", keep=("1",))]
    assert field_keys([*filters, filters[0]]) == ("b", "a")
