import bz2
import gzip
import json
import lzma
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from phasewise.tasks.validation import scan_texts
from phasewise.tasks.validation.scan_files import FilePiece, Reading, may_hold_text, strings_of
from phasewise.tasks.validation.scan_texts import Text, text_of_line, text_of_value, texts_of
from tests.hostile_makers import arrow, parquet

ROWS = [
    {"id": "first", "question": "What is it?", "choices": ["red", "blue"], "answer": {"text": "red", "label": 0}},
    {"id": 2, "text": "Grüße, 世界.", "meta": {"url": "here"}},
]
TEXTS = ["What is it?\nred\nblue\nred", "Grüße, 世界.\nhere"]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
OFFSETS: Any = pa.array([0, 1, 2, 3], pa.int32())
SECOND = pa.array([False, True, False])
ABC: Any = pa.array(["a", "b", "c"])
COLUMNS: list[Any] = [  # what is null may have values all the same: the first two
    pa.ListArray.from_arrays(OFFSETS, ABC, mask=SECOND), pa.MapArray.from_arrays(OFFSETS, ABC, ABC, mask=SECOND),
    pa.array(["a", None, "b\0c"]), pa.array(["a", None, "b"], pa.large_string()), pa.array(["a", None, "b" * 40], pa.string_view()),
    pa.array([b"ab", None, b"cd"], pa.binary(2)), pa.array([b"ab", None, b"cd"], pa.binary_view()),
    pa.array([["a", "b"], None, ["c", None], []]), pa.array([["a", "b"], None, ["c"]], pa.large_list(pa.large_string())),
    pa.array([["a", "b"], None, ["c", "d"]], pa.list_(pa.string(), 2)), pa.array([["a", "b"], None, ["c"]], pa.list_view(pa.string())),
    pa.array([[("k", "a")], None, [("q", "c"), ("r", None)]], pa.map_(pa.string(), pa.string())),
    pa.array([{"x": "a", "y": ["l"]}, None, {"x": None, "y": ["m", "n"]}]), pa.array(["a", None, "a", "b"]).dictionary_encode(),
    pa.array([["a"], ["b", "a"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))), pa.array([{"x": [[["deep"]], []]}, {"x": None}]),
    pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array(["a", "b", "c"]), pa.array([1, 2, 3])]),
    pa.UnionArray.from_dense(pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array(["a", "b"]), pa.array([1])]),
    pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', "x"])),
]  # fmt: skip


def piece(path: Path, start: int = 0, stop: int | None = None) -> FilePiece:
    return FilePiece(path.name, str(path), path.name, path.stat().st_size, start, stop)


def read(path: Path) -> tuple[list[str], list[str]]:
    reading = Reading(piece(path))
    found = list(reading)
    assert [document.number for document in found] == list(range(reading.documents))
    return [document.text.decode() for document in found], [unread.reason for unread in reading.unread]


def written(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(("name", "content"), [
    ("a.jsonl", LINES), ("a.json", LINES), ("a.json", json.dumps(ROWS).encode()), ("a.json", json.dumps(ROWS, indent=2).encode()),
    ("a.ndjson", b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n")), ("a.jsonl.zst", zstandard.compress(LINES)),
    ("a.json.bz2", bz2.compress(json.dumps(ROWS).encode())), ("a.jsonl.xz", lzma.compress(LINES)), ("without an ending", LINES),
    ("b10b", gzip.compress(LINES)), ("a.txt", json.dumps(ROWS).encode()), ("a.png", zstandard.compress(gzip.compress(LINES))),
    ("a.utf16.jsonl", LINES.decode().encode("utf-16")), ("a.utf16", LINES.decode().encode("utf-16-le")),
])  # fmt: skip
def test_every_string_of_a_row_is_its_text(tmp_path: Path, name: str, content: bytes):
    path = written(tmp_path, name, content)
    assert (read(path), [document.id for document in Reading(piece(path))]) == ((TEXTS, []), ["first", "2"])


def test_the_text_comes_first_and_what_does_not_parse_is_scanned_as_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path, "a.jsonl", b'{"source": "web", "text": "Long ago.", "id": "x"}\n{"title": "T", "text": ["a", "b"]}\n')
    assert read(path)[0] == ["Long ago.\nweb", "T\na\nb"]
    path = written(tmp_path, "a.jsonl", b'{"text": "fine"}\n{"text": "cut of\n\xff\xfe bytes\n')
    assert read(path) == (["fine", '{"text": "cut of\n', "�� bytes\n"], [])
    assert read(written(tmp_path, "b.json", b'{"text": "one"}\n{"text": "two"\n'))[0] == ["one", '{"text": "two"\n']
    monkeypatch.setattr(scan_texts, "MAX_JSON_BYTES", LINES.index(10) + 1)
    assert read(written(tmp_path, "a.json", LINES))[0] == TEXTS
    rows = json.dumps(ROWS, indent=0, ensure_ascii=False)
    found = "".join(read(written(tmp_path, "b.json.gz", gzip.compress(rows.encode())))[0])
    assert all(word in found for word in ("What is it?", "blue", "Grüße"))


@given(
    rows=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=20),
    cuts=st.lists(st.integers(0, 400), max_size=4),
)
def test_ranges_of_a_file_have_each_line_once(tmp_path_factory: pytest.TempPathFactory, rows: list[str], cuts: list[int]):
    content = "".join(json.dumps({"text": row}) + "\n" for row in rows).encode()
    path = written(tmp_path_factory.mktemp("lines"), "a.jsonl", content)
    edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    pieces = [piece(path, start, stop) for start, stop in pairwise(edges)]
    assert [document.text.decode() for one in pieces for document in Reading(one)] == rows


def test_every_column_of_a_table_that_may_hold_text(tmp_path: Path):
    columns = {
        "number": [1, 2], "question": pa.array(["What is it?", "Grüße"], pa.large_string()), "choices": [["red", "blue"], None],
        "answer": [{"text": "red", "place": 1}, {"text": None, "place": 2}], "kind": pa.array(["a", "b"]).dictionary_encode(),
        "image": [b"\0\1", b"plain"],
    }  # fmt: skip
    table, expected = pa.table(columns), (["What is it?\nred\nblue\nred\na", "Grüße\nb\nplain"], [])
    for content in (parquet(table, row_group_size=1), arrow(pa.ipc.new_file, table), arrow(pa.ipc.new_stream, table)):
        assert read(written(tmp_path, "a", content)) == expected
    assert read(written(tmp_path, "c", parquet(table.select(["number"])))) == ([], ["no column may hold text: number"])
    raw = pa.array([b"fine", b"\xff broken", b"fine too"]).view(pa.string())
    assert read(written(tmp_path, "d", parquet(pa.table({"text": raw})))) == (["fine", "� broken", "fine too"], [])


def test_any_other_file_is_one_text_that_is_cut_if_it_or_a_line_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, content, text in (
        ("README", "Grüße\n\nund mehr".encode(), ["Grüße\n\nund mehr"]), ("a.py.gz", gzip.compress(b"x = 1\n"), ["x = 1\n"]),
        ("a.txt", "Grüße".encode("utf-16"), ["Grüße"]), ("b.txt", "Grüße".encode("latin-1"), ["Gr��e"]), ("empty.txt", b"", []),
    ):  # fmt: skip
        assert read(written(tmp_path, name, content)) == (text, [])
    monkeypatch.setattr(scan_texts, "MAX_DOCUMENT_BYTES", 10)
    content = b"one\ntwo\nthree\nfourfourfourfour\nfive"
    found, unread = read(written(tmp_path, "a.txt", content))
    assert ("".join(found).encode(), found[0]) == (content, "one\ntwo\n")
    assert not unread
    monkeypatch.setattr(scan_texts, "MAX_DOCUMENT_BYTES", 16)
    monkeypatch.setattr(scan_texts, "SKIP_BYTES", 4)
    path = written(tmp_path, "a.jsonl", b'"short"\n"' + b"x" * 40 + b'"\n"last"\n')
    found = [[document.text for document in Reading(piece(path, start, stop))] for start, stop in ((0, 20), (20, 40), (40, 60))]
    assert (found[0][0], b"".join(found[0][1:]), found[1:]) == (b"short", b'"' + b"x" * 40 + b'"\n', [[], [b"last"]])


def test_what_cannot_be_read_is_said(tmp_path: Path):
    assert read(written(tmp_path, "a.png", b"\x89PNG\r\n\0\0")) == ([], ["a PNG image holds no text"])
    lines = b"".join(json.dumps({"text": f"{number} {pow(7, number, 10**40)}"}).encode() + b"\n" for number in range(9000))
    packed = gzip.compress(lines)
    texts, reasons = read(written(tmp_path, "a.jsonl.gz", packed[: len(packed) // 2]))
    assert texts
    assert (["ends inside" in reason for reason in reasons], len(read(written(tmp_path, "a.parquet", b"PAR1 no table"))[1])) == ([True], 1)
    readings = [Reading(piece(tmp_path / name)) for name in ("a.png", "a.parquet")]
    assert [list(reading) for reading in readings] == [[], []]
    assert [unread.is_fault for reading in readings for unread in reading.unread] == [False, True]


def test_the_text_of_a_row():
    assert text_of_value({"What is it called?": "red", "short key": 1}) == Text("", b"What is it called?\nred")
    assert text_of_value({"id": "row-7", "text": "words"}) == Text("row-7", b"words")
    assert text_of_value({"id": "a question of words", "text": "words"}) == Text("a question of words", b"words\na question of words")
    assert text_of_value({"id": {"q": "hidden"}, "x": "y"}) == Text("", b"y\nhidden")
    assert (text_of_value({"a": "1", "text": "2", "b": ["3"]}).text, text_of_value({"a": "1", "text": ["2"]}).text) == (b"2\n1\n3", b"1\n2")
    assert (text_of_value(["1", {"text": "2"}]).text, text_of_value({"text": "half \ud800"}).text) == (b"1\n2", b"half ?")
    assert text_of_line(b"[" * 1000 + b'"deep"' + b"]" * 1000).text == b"deep"
    assert (text_of_line(b'{"text": "cut of'), text_of_line(b"caf\xe9")) == (Text("", b'{"text": "cut of'), Text("", "caf�".encode()))
    assert not text_of_line(bytes(40)).readable
    found = ["a" * 6, "b" * 6, "c"]
    assert list(texts_of("row", found, max_characters=13)) == [Text("row", b"aaaaaa\nbbbbbb\nc")]
    assert list(texts_of("row", found, max_characters=12)) == [Text("row", b"aaaaaa\nbbbbbb"), Text("row", b"c")]
    assert list(texts_of("row", ["long"] * 3, max_characters=3)) == [Text("row", b"long")] * 3


def strings(value: object) -> list[str]:
    """The slow way: every string in a Python value."""
    if isinstance(value, str | bytes):
        return [value if isinstance(value, str) else value.decode()]
    each: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for one in each for text in strings(one)]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type)[:30])
def test_the_strings_of_a_column_are_those_of_its_values(column: Any):
    assert may_hold_text(column.type)
    for part in (column, column.slice(1), column.slice(1, 1), column.slice(0, 0)):
        assert [list(row) for row in strings_of(part)] == [strings(value) for value in part.to_pylist()]


def test_runs_bytes_and_broken_text_are_read_and_what_leads_out_is_refused():
    runs = pc.run_end_encode(pa.array(["a", "a", "b"]))  # pyright: ignore[reportAttributeAccessIssue]  # the stubs lack it
    assert [list(row) for row in strings_of(runs.slice(1))] == [["a"], ["b"]]
    twice = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], ["n", "n"])
    assert [list(row) for row in strings_of(twice)] == [["a", "b"]]
    assert not may_hold_text(pa.list_(pa.int64()))
    assert strings_of(pa.array([1, 2])) == [(), ()]
    assert [list(row) for row in strings_of(pa.array([b"\0\1\2", "Grüße".encode()]))] == [[], ["Grüße"]]
    broken: Any = pa.array([b"fine", b"\xff"]).view(pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), broken)
    for column in (broken, lists, pa.StructArray.from_arrays([broken], ["x"])):
        assert [list(row) for row in strings_of(column)] == [["fine"], ["�"]]
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int32()), pa.array(["a"]), safe=False)
    with pytest.raises(pa.ArrowException, match="out of bounds"):
        strings_of(wrong)
    whole: Any = pa.array([["a"], ["b"]])
    buffers = [None, pa.array([0, 9, 2], pa.int32()).buffers()[1]]
    column = pa.Array.from_buffers(whole.type, 2, buffers, children=[whole.values])
    with pytest.raises(pa.ArrowInvalid, match="lead out of its values"):
        strings_of(column)
