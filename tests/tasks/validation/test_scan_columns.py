"""The strings of every kind of column, against pyarrow's own values; and offsets that lead nowhere."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phasewise.tasks.validation.scan_tables import may_hold_text, strings_of

OFFSETS: Any = pa.array([0, 1, 2, 3], pa.int32())
SECOND = pa.array([False, True, False])
ABC: Any = pa.array(["a", "b", "c"])
COLUMNS: list[Any] = [
    pa.ListArray.from_arrays(OFFSETS, ABC, mask=SECOND),  # what is null may have values all the same
    pa.MapArray.from_arrays(OFFSETS, ABC, ABC, mask=SECOND),
    pa.array(["a", None, "b\0c"]),
    pa.array(["a", None, "b"], pa.large_string()),
    pa.array(["a", None, "b" * 40], pa.string_view()),
    pa.array([b"ab", None, b"cd"], pa.binary(2)),
    pa.array([b"ab", None, b"cd"], pa.binary_view()),
    pa.array([["a", "b"], None, ["c", None], []]),
    pa.array([["a", "b"], None, ["c"]], pa.large_list(pa.large_string())),
    pa.array([["a", "b"], None, ["c", "d"]], pa.list_(pa.string(), 2)),
    pa.array([["a", "b"], None, ["c"]], pa.list_view(pa.string())),
    pa.array([[("k", "a")], None, [("q", "c"), ("r", None)]], pa.map_(pa.string(), pa.string())),
    pa.array([{"x": "a", "y": ["l"]}, None, {"x": None, "y": ["m", "n"]}]),
    pa.array(["a", None, "a", "b"]).dictionary_encode(),
    pa.array([["a"], ["b", "a"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    pa.array([{"x": [[["deep"]], []]}, {"x": None}]),
    pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array(["a", "b", "c"]), pa.array([1, 2, 3])]),
    pa.UnionArray.from_dense(pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array(["a", "b"]), pa.array([1])]),
    pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', "x"])),
]


def strings(value: object) -> Iterator[str]:
    """The slow way: every string in a Python value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode()
    elif isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from strings(each)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type)[:30])
def test_the_strings_of_a_column_are_those_of_its_values(column: Any):
    assert may_hold_text(column.type)
    for part in (column, column.slice(1), column.slice(1, 1), column.slice(0, 0)):
        expected = [list(strings(value)) for value in part.to_pylist()]
        assert [list(row) for row in strings_of(part)] == expected


def test_runs_are_unrolled_and_names_may_repeat():
    runs = pc.run_end_encode(pa.array(["a", "a", "b"]))  # pyright: ignore[reportAttributeAccessIssue]  # the stubs lack it
    assert [list(row) for row in strings_of(runs.slice(1))] == [["a"], ["b"]]
    twice = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], ["n", "n"])
    assert [list(row) for row in strings_of(twice)] == [["a", "b"]]


def test_numbers_are_not_text_and_bytes_are_where_they_read_as_text():
    assert not may_hold_text(pa.list_(pa.int64()))
    assert strings_of(pa.array([1, 2])) == [(), ()]
    assert [list(row) for row in strings_of(pa.array([b"\0\1\2", "Grüße".encode()]))] == [[], ["Grüße"]]


def test_what_is_not_utf_8_costs_no_other():
    broken: Any = pa.array([b"fine", b"\xff"]).view(pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), broken)
    for column in (broken, lists, pa.StructArray.from_arrays([broken], ["x"])):
        assert [list(row) for row in strings_of(column)] == [["fine"], ["�"]]


def test_offsets_that_lead_out_are_refused():
    whole: Any = pa.array([["a"], ["b"]])
    buffers = [None, pa.array([0, 9, 2], pa.int32()).buffers()[1]]
    column = pa.Array.from_buffers(whole.type, 2, buffers, children=[whole.values])
    with pytest.raises(pa.ArrowInvalid, match="lead out of its values"):
        strings_of(column)


def test_indices_that_lead_out_are_refused():
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int32()), pa.array(["a"]), safe=False)
    with pytest.raises(pa.ArrowException, match="out of bounds"):
        strings_of(wrong)
