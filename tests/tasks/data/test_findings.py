"""Findings: keys into objects, counts by reason, limits and messages."""

import random
from functools import reduce
from operator import add
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.data.findings import (
    EMPTY_REMEDIES,
    MAX_SAMPLES,
    NOT_AN_OBJECT,
    REMEDIES,
    Counting,
    Fault,
    Finding,
    LeftOut,
    NoText,
    Reason,
    Record,
    Sample,
    Tally,
    reach,
    refusal,
)
from phasewise.tasks.data.source import Piece, Source

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


SOURCE = Source(url="gs://bucket/web", include=("*.jsonl",), format="jsonl", max_bad_fraction=0.01)


def count(findings: list[Finding], name: str = "a.jsonl", start: int | None = None) -> Tally:
    counting = Counting("web", Piece(name=name, url=name, start=start, stop=None))
    assert list(counting.records(findings)) == [finding for finding in findings if isinstance(finding, Record)]
    return counting.tally


FINDINGS: list[Finding] = [
    Record("x", "byte 0"),
    Fault("broken JSON", "byte 9", "{"),
    LeftOut("filter words", "byte 10"),
    LeftOut("empty text", "byte 20"),
    LeftOut("empty text", "byte 30"),
    Fault("truncated", "file", "cut", whole_file=True),
]


def test_a_piece_is_counted_by_reason():
    assert count(FINDINGS) == Tally(
        files=1,
        documents=5,
        bad_documents={"broken JSON": 1},
        bad_files={"a.jsonl": "truncated"},
        left_out={"empty text": 2, "filter words": 1},
        samples=(
            Sample(component="web", file="a.jsonl", where="byte 9", reason="broken JSON", sample="{"),
            Sample(component="web", file="a.jsonl", where="file", reason="truncated", sample="cut"),
        ),
    )


FAULTS = st.builds(
    Fault,
    st.sampled_from(["broken JSON", "too long"]),
    st.integers(0, 99).map("byte {}".format),
    st.just(""),
    st.sampled_from([False] * 9 + [True]),
)
TALLIES = st.lists(
    st.builds(count, st.lists(FAULTS, max_size=30), st.sampled_from("abc"), st.sampled_from([0, 100])), min_size=1, max_size=5
)


@settings(deadline=None)
@given(TALLIES, st.integers(0, 99))
def test_tallies_add_up_in_any_order(tallies: list[Tally], seed: int):
    total = reduce(add, tallies, Tally())
    shuffled = random.Random(seed).sample(tallies, len(tallies))
    assert reduce(lambda sum_, tally: tally + sum_, shuffled, Tally()) == total
    assert total.documents == sum(tally.documents for tally in tallies) == sum(total.bad_documents.values())
    assert all(sum(sample.reason == reason for sample in total.samples) <= MAX_SAMPLES for reason in total.reasons)
    assert {sample.reason for sample in total.samples} >= {*total.bad_documents, *total.bad_files.values()} == set(total.reasons)
    assert Tally.model_validate_json(total.model_dump_json()) == total


def test_a_refusal_says_what_was_required_and_found_where_and_what_to_do():
    tally = count([*FINDINGS, Fault("broken JSON", "byte 70", "{")]) + count([Record("x", "byte 0")], name="b.jsonl")
    text = refusal("web", SOURCE, tally, "gs://bucket/quarantine.jsonl")
    for part in (
        "component web",
        "at most 1.0000%",
        "found 50.0000%",
        "broken JSON, 2 documents, such as a.jsonl, byte 9 ('{'): repair or exclude the file",
        "truncated, 1 file, such as a.jsonl, file ('cut'): fetch the file again",
        "7 documents in 2 files of gs://bucket/web",
        "gs://bucket/quarantine.jsonl",
    ):
        assert part in text
    assert "leave_out" not in text
    unread = count([Fault("field of a message that nothing reads", "byte 0", "{}")])
    assert "must be named in the source's conversation.leave_out" in refusal("web", SOURCE, unread, "quarantine.jsonl")
    linked = refusal("web", SOURCE, Tally(files=1, bad_files={"a": "outside the root"}), "quarantine.jsonl")
    assert "outside the root, 1 file, such as a: the link leads out of the source's folder: name in `url` the folder" in linked
    assert "max_bad_fraction" not in linked


def test_each_reason_has_its_own_remedy():
    assert set(REMEDIES) == set(get_args(Reason))
    assert set(EMPTY_REMEDIES) == set(get_args(NoText))
