"""Keys that reach into objects."""

import pytest

from phasewise.tasks.data.findings import NOT_AN_OBJECT, reach

DOCUMENT = {"text": "x", "metadata": {"extension": "py", "deep": {"er": 3}, "none": None}, "a.b": "dotted", "a": {"b": "inner", "c": "d"}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("text", "x"),
        ("metadata.extension", "py"),
        ("metadata.deep.er", 3),
        ("a.b", "dotted"),
        ("a.c", "d"),
        ("missing", None),
        ("metadata.missing", None),
        ("metadata.none.more", None),
        ("missing.more", None),
        ("text.more", NOT_AN_OBJECT),
    ],
)
def test_a_dot_reaches_into_an_object(key: str, value: object):
    assert reach(DOCUMENT, key) == value


@pytest.mark.parametrize("document", [["text"], "text", 3, None])
def test_what_is_no_object_has_no_fields(document: object):
    assert reach(document, "text") is NOT_AN_OBJECT
