import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from phasewise.tasks.data.archives import MAX_LAYERS
from phasewise.tasks.validation import scan_files, scan_texts
from phasewise.tasks.validation.scan_files import FilePiece, Reading, Unread, may_hold_text, strings_of
from phasewise.tasks.validation.scan_texts import Text, text_of_line, text_of_value, texts_of
from tests.hostile_makers import arrow, good_files, lines, lz4, parquet, rows, tar, warc, zipped

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


TEXT: str = rows()[0]["text"]
JSON_LINES = lines()
PAGE = b"<p>What the page says.</p>"


def read_bytes_of(content: bytes, folder: Path, name: str = "x", exclude: tuple[str, ...] = ()) -> tuple[dict[str, str], list[Unread]]:
    (folder / name).write_bytes(content)
    reading = Reading(FilePiece(name, str(folder / name), name, len(content), exclude=exclude))
    found: dict[str, str] = {}
    for document in reading:
        found[document.file] = found.get(document.file, "") + document.text.decode()
    return found, reading.unread


@pytest.mark.parametrize("name", good_files())
def test_every_kind_of_file_is_read_whatever_its_name(tmp_path: Path, name: str):
    found, unread = read_bytes_of(good_files()[name], tmp_path, "b10b")
    assert [one.reason for one in unread] == ["about the crawl"] * name.count("warc") * (2 if name.endswith("warc.gz") else 1)
    expected = {"a.txt": "Words and more words.", "utf16.txt": "Wörter und noch mehr."}.get(name, TEXT)
    assert expected in "\n".join(found.values())


def test_members_are_named_by_their_way_and_layers_have_a_bound(tmp_path: Path):
    inner = zipped({"in/a.jsonl.gz": gzip.compress(JSON_LINES)})
    found, unread = read_bytes_of(zstandard.compress(tar({"deep/x.zip": inner, "/etc/b": parquet()})), tmp_path)
    assert list(found) == ["x!/deep/x.zip!/in/a.jsonl.gz", "x!//etc/b"]
    assert all(TEXT in text for text in found.values())
    assert unread == []
    content = JSON_LINES
    for _ in range(MAX_LAYERS):
        content = zipped({"in": content})
    assert TEXT in next(iter(read_bytes_of(content, tmp_path)[0].values()))
    found, (unread,) = read_bytes_of(gzip.compress(content), tmp_path)
    assert not found
    assert (unread.file, unread.is_fault) == ("x" + "!/in" * 3, True)
    assert f"more than {MAX_LAYERS} times" in unread.reason


def array(of: object) -> bytes:
    np.save(file := io.BytesIO(), np.array(of))
    return file.getvalue()


@pytest.mark.parametrize(("content", "said", "is_fault"), [
    (b"\x89PNG\r\n\x1a\n", "a PNG image holds no text", False), (array([1.5]), "an array of numbers (NumPy) holds no text", False),
    (parquet(pa.table({"n": [1]})), "no column may hold text: n", False),
    (b'{"tokens": [1, 2]}\n' * 3, "none of its 3 documents has any text", False),
    (array(["a text"]), "not read: it is a NumPy array of texts or objects", True),
    (b"%PDF-1.4", "not read: it is a PDF document", True),
    (b"version https://git-lfs.github.com/spec/v1\n", "not read: it is a pointer of Git LFS", True),
    (bytes(range(256)), "not read: it is neither text nor anything else", True),
    (JSON_LINES + bytes(500) + b"\n", "1 of its 41 documents are neither text", True),
    (gzip.compress(JSON_LINES)[:-9], "ends inside member 1", True), (gzip.compress(JSON_LINES) + b"and more", "incorrect header", True),
    (parquet()[:-9], "does not end with it", True), (arrow(pa.ipc.new_stream)[:-8], "without the mark of the stream's end", True),
])  # fmt: skip
@pytest.mark.parametrize("pack", [bytes, lambda content: tar({"m": content}), lambda content: lz4(zipped({"m": content}))])
def test_what_was_not_read_is_reported_wherever_it_is(tmp_path: Path, content: bytes, said: str, is_fault: bool, pack: Any):
    (unread,) = read_bytes_of(pack(content), tmp_path)[1]
    assert said in unread.reason
    assert (unread.is_fault, unread.file) == (is_fault, ("x" if pack is bytes else "x!/m"))


@pytest.mark.parametrize("content", [b"Words, " * 2000, JSON_LINES, json.dumps(rows()).encode()])
def test_what_is_before_a_cut_is_scanned(tmp_path: Path, content: bytes):
    found, unread = read_bytes_of(tar({"m": content})[: 512 + len(content) - 100], tmp_path)
    together = found["x!/m"]
    assert together.startswith(("Words, ", TEXT, "["))
    assert len(together) > len(content) // 3
    assert unread
    assert all("the file ends" in one.reason and one.is_fault for one in unread)


def test_what_is_damaged_costs_no_other_member_and_what_is_excluded_or_a_link_is_reported_and_not_opened(tmp_path: Path):
    members = {"a/b.pdf": b"%PDF-1.4", "c.jsonl": JSON_LINES, "d.zip": zipped({"e.pdf": b"%PDF-1.4"})}
    found, unread = read_bytes_of(tar(members), tmp_path, exclude=("*.png", "*.pdf"))
    assert list(found) == ["x!/c.jsonl"]
    assert unread == [Unread(f"x!/{name}", "excluded by *.pdf", False, "*.pdf") for name in ("a/b.pdf", "d.zip!/e.pdf")]
    (tmp_path / "secret").write_text(TEXT)
    found, unread = read_bytes_of(tar({"to": b""}, type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret")), tmp_path)
    assert (found, unread) == ({}, [Unread("x!/to", "a link within its archive", is_fault=False)])
    members = {"a": gzip.compress(JSON_LINES)[:-9], "b.pdf": b"%PDF-1.4", "c": JSON_LINES}
    for pack in (tar, zipped):
        found, unread = read_bytes_of(pack(members), tmp_path)
        assert TEXT in found["x!/c"]
        assert [(one.file, one.is_fault) for one in unread] == [("x!/a", True), ("x!/b.pdf", True)]


def test_a_bomb_is_reported_and_an_endless_list_of_complaints_is_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phasewise.tasks.data.findings.FREE_EXPANSION_BYTES", 10_000)
    many = [{"words": "all the same"}] * 50_000
    bombs = (
        gzip.compress(json.dumps(many).encode()),
        parquet(pa.Table.from_pylist(many), compression="zstd", use_dictionary=False),
        parquet(pa.table({"repeated": pa.array(["all the same " * 99] * 9000).dictionary_encode()})),
        parquet(pa.table({"lists": pa.array([[word["words"] for word in many]])}), compression="zstd"),
        zipped({str(number): gzip.compress(b"word " * 13_000) for number in range(50)}),
    )
    for number, content in enumerate(bombs):
        unread = read_bytes_of(content, tmp_path)[1]
        assert any("of one are taken" in one.reason and one.is_fault for one in unread), (number, len(content), unread)
    monkeypatch.setattr(scan_files, "MAX_UNREAD", 2)
    members = {str(number): b"%PDF-1.4" if number == 4 else b"\x89PNG" for number in range(9)}
    *first, last = read_bytes_of(tar(members), tmp_path)[1]
    assert (len(first), last) == (2, Unread("x", "7 more of its members", is_fault=True))


def test_a_file_that_may_not_be_read_fails_by_name_and_stops_no_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x").write_bytes(JSON_LINES)
    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.open", Mock(side_effect=PermissionError("not for you")))
    reading = Reading(FilePiece("x", str(tmp_path / "x"), "x", 1))
    assert list(reading) == []
    assert "not for you" in reading.unread[0].reason
    assert reading.unread[0].is_fault


def chunked(body: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(body[at : at + 7]), body[at : at + 7]) for at in range(0, len(body), 7)) + b"0\r\n\r\n"


def brotli(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "brotli") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(("heads", "body"), [  # Common Crawl joins the chunks and leaves the head
    (b"", PAGE), (b"Transfer-Encoding: chunked\r\n", chunked(PAGE)), (b"Transfer-Encoding: chunked\r\n", PAGE),
    (b"Content-Encoding: gzip\r\n", gzip.compress(PAGE)), (b"Content-Encoding: gzip\r\n", PAGE),
    (b"Content-Encoding: br\r\nTransfer-Encoding: chunked\r\n", chunked(brotli(PAGE))),
])  # fmt: skip
def test_what_a_server_sent_is_unwrapped(tmp_path: Path, heads: bytes, body: bytes):
    found, unread = read_bytes_of(gzip.compress(warc({"http://a/b c": body, "http://d": b"next"}, heads)), tmp_path)
    assert (found["x!/http://a/b c"], unread[0]) == (PAGE.decode(), Unread("x!/a record without a name", "about the crawl", is_fault=False))
    if heads == b"":
        assert found["x!/http://d"] == "next"


@pytest.mark.parametrize(("change", "said"), [
    (lambda raw: raw[:-10], "ends"),
    (lambda raw: raw.replace(b"Content-Length: 4", b"Content-Length: -9"), "Content-Length of '-9'"),
    (lambda raw: raw.replace(b"Content-Length: 4", b"Content-Length: 3"), "begins with its version"),
    (lambda raw: raw.replace(b"Content-Length: 4", b"Content-Length: 99999999999999999999999"), "before the end of this record"),
])  # fmt: skip
def test_a_damaged_warc_is_reported(tmp_path: Path, change: Callable[[bytes], bytes], said: str):
    unread = read_bytes_of(change(warc({"http://a": b"some words"})), tmp_path)[1]
    assert {one.is_fault for one in unread if said in one.reason} == {True}
