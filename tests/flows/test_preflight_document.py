import pytest

from experiments.lab.preflight_tables import DOCUMENT, put, slices

TEXT = "before\n<!-- main lines: made -->\nold\n<!-- main lines: end -->\nafter\n"


def test_a_table_goes_between_its_marks_and_not_into_a_document_without_them() -> None:
    assert put(TEXT, "main lines", r"| \1 |") == TEXT.replace("old", r"| \1 |")
    with pytest.raises(AssertionError, match="marks of branches once"):
        put(TEXT, "branches", "new")


def test_the_document_has_all_marks_and_the_table_of_slices_as_it_is() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in ("main lines", "gains", "branches", "sparse models", "smallest slices"):
        put(text, name, "")
    assert put(text, "slices", slices()) == text
