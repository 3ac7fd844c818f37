"""Whatever a file looks like, what is in it is scanned, or it is said that it was not."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from phasewise.tasks.validation import scan_texts
from phasewise.tasks.validation.scan_files import FilePiece, Reading
from phasewise.tasks.validation.scan_texts import Text, text_of_line, text_of_value, texts_of

ROWS = [
    {"id": "first", "question": "What is it?", "choices": ["red", "blue"], "answer": {"text": "red", "label": 0}},
    {"id": 2, "text": "Grüße, 世界.", "meta": {"url": "here"}},
]
TEXTS = ["What is it?\nred\nblue\nred", "Grüße, 世界.\nhere"]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def piece(path: Path, start: int = 0, stop: int | None = None) -> FilePiece:
    return FilePiece(path.name, str(path), path.name, path.stat().st_size, start, stop)


def read(path: Path) -> tuple[list[str], list[str]]:
    """The texts, and why something was not read."""
    reading = Reading(piece(path))
    found = list(reading)
    assert [document.number for document in found] == list(range(reading.documents))
    return [document.text.decode() for document in found], [unread.reason for unread in reading.unread]


def written(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.json", LINES),
        ("a.json", json.dumps(ROWS).encode()),
        ("a.json", json.dumps(ROWS, indent=2).encode()),
        ("a.ndjson", b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n")),
        ("a.jsonl.gz", gzip.compress(LINES)),
        ("a.jsonl.zst", zstandard.compress(LINES)),
        ("a.json.bz2", bz2.compress(json.dumps(ROWS).encode())),
        ("a.jsonl.xz", lzma.compress(LINES)),
        ("without an ending", LINES),
        ("b10b", gzip.compress(LINES)),
        ("a.txt", json.dumps(ROWS).encode()),
        ("a.png", zstandard.compress(gzip.compress(LINES))),
        ("a.utf16.jsonl", LINES.decode().encode("utf-16")),
        ("a.utf16", LINES.decode().encode("utf-16-le")),
    ],
)
def test_every_string_of_a_row_is_its_text(tmp_path: Path, name: str, content: bytes):
    path = written(tmp_path, name, content)
    assert read(path) == (TEXTS, [])
    assert [document.id for document in Reading(piece(path))] == ["first", "2"]


def test_the_field_called_text_comes_first(tmp_path: Path):
    """A span counts from its start."""
    path = written(tmp_path, "a.jsonl", b'{"source": "web", "text": "Long ago.", "id": "x"}\n{"title": "T", "text": ["a", "b"]}\n')
    assert read(path)[0] == ["Long ago.\nweb", "T\na\nb"]


def test_what_does_not_parse_is_scanned_as_it_is(tmp_path: Path):
    path = written(tmp_path, "a.jsonl", b'{"text": "fine"}\n{"text": "cut of\n\xff\xfe bytes\n')
    assert read(path) == (["fine", '{"text": "cut of\n', "�� bytes\n"], [])
    assert read(written(tmp_path, "b.json", b'{"text": "one"}\n{"text": "two"\n'))[0] == ["one", '{"text": "two"\n']


def test_a_large_json_file_is_read_as_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_a_line_too_long_to_be_held_is_scanned_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the range in which it begins, and by no other."""
    monkeypatch.setattr(scan_texts, "MAX_DOCUMENT_BYTES", 16)
    monkeypatch.setattr(scan_texts, "SKIP_BYTES", 4)
    path = written(tmp_path, "a.jsonl", b'"short"\n"' + b"x" * 40 + b'"\n"last"\n')
    found = [[document.text for document in Reading(piece(path, start, stop))] for start, stop in ((0, 20), (20, 40), (40, 60))]
    assert found[0][0] == b"short"
    assert b"".join(found[0][1:]) == b'"' + b"x" * 40 + b'"\n'
    assert found[1:] == [[], [b"last"]]


def nested_table() -> pa.Table:
    return pa.table(
        {
            "number": [1, 2],
            "question": pa.array(["What is it?", "Grüße"], pa.large_string()),
            "choices": [["red", "blue"], None],
            "answer": [{"text": "red", "place": 1}, {"text": None, "place": 2}],
            "kind": pa.array(["a", "b"]).dictionary_encode(),
            "image": [b"\0\1", b"plain"],
        }
    )


def arrow_file(table: pa.Table, path: Path, new: Callable[..., Any]) -> Path:
    with new(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


def test_every_column_of_a_table_that_may_hold_text(tmp_path: Path):
    table, expected = nested_table(), (["What is it?\nred\nblue\nred\na", "Grüße\nb\nplain"], [])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    assert read(tmp_path / "a.parquet") == expected
    assert read(arrow_file(table, tmp_path / "a.arrow", pa.ipc.new_file)) == expected
    assert read(arrow_file(table, tmp_path / "b.arrow", pa.ipc.new_stream)) == expected
    pq.write_table(table.select(["number"]), tmp_path / "c.parquet")
    assert read(tmp_path / "c.parquet") == ([], ["no column may hold text: number"])


def test_a_row_that_is_not_utf_8_costs_no_other(tmp_path: Path):
    raw = pa.array([b"fine", b"\xff broken", b"fine too"]).view(pa.string())
    pq.write_table(pa.table({"text": raw}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == (["fine", "� broken", "fine too"], [])


def test_any_other_file_is_one_text(tmp_path: Path):
    assert read(written(tmp_path, "README", "Grüße\n\nund mehr".encode())) == (["Grüße\n\nund mehr"], [])
    assert read(written(tmp_path, "a.py.gz", gzip.compress(b"x = 1\n"))) == (["x = 1\n"], [])
    assert read(written(tmp_path, "a.txt", "Grüße".encode("utf-16"))) == (["Grüße"], [])
    assert read(written(tmp_path, "b.txt", "Grüße".encode("latin-1"))) == (["Gr��e"], [])
    assert read(written(tmp_path, "empty.txt", b"")) == ([], [])


def test_a_text_too_long_to_be_held_is_cut_at_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scan_texts, "MAX_DOCUMENT_BYTES", 10)
    content = b"one\ntwo\nthree\nfourfourfourfour\nfive"
    found, unread = read(written(tmp_path, "a.txt", content))
    assert "".join(found).encode() == content
    assert found[0] == "one\ntwo\n"
    assert not unread


def test_what_cannot_be_read_is_said(tmp_path: Path):
    assert read(written(tmp_path, "a.png", b"\x89PNG\r\n\0\0")) == ([], ["a PNG image holds no text"])
    lines = b"".join(json.dumps({"text": f"{number} {pow(7, number, 10**40)}"}).encode() + b"\n" for number in range(9000))
    packed = gzip.compress(lines)
    texts, reasons = read(written(tmp_path, "a.jsonl.gz", packed[: len(packed) // 2]))
    assert texts
    assert ["ends inside" in reason for reason in reasons] == [True]
    assert len(read(written(tmp_path, "a.parquet", b"PAR1 no table"))[1]) == 1
    readings = {name: Reading(piece(tmp_path / name)) for name in ("a.png", "a.parquet")}
    assert [list(reading) for reading in readings.values()] == [[], []]
    assert [unread.is_fault for reading in readings.values() for unread in reading.unread] == [False, True]


# ── the text of a row ──


def test_sentences_for_keys_and_ids_are_text():
    assert text_of_value({"What is it called?": "red", "short key": 1}) == Text("", b"What is it called?\nred")
    assert text_of_value({"id": "row-7", "text": "words"}) == Text("row-7", b"words")
    assert text_of_value({"id": "a question of words", "text": "words"}) == Text("a question of words", b"words\na question of words")
    assert text_of_value({"id": {"q": "hidden"}, "x": "y"}) == Text("", b"y\nhidden")


def test_the_text_is_first_and_may_be_anything():
    assert text_of_value({"a": "1", "text": "2", "b": ["3"]}).text == b"2\n1\n3"
    assert text_of_value({"a": "1", "text": ["2"]}).text == b"1\n2"
    assert text_of_value(["1", {"text": "2"}]).text == b"1\n2"
    assert text_of_value({"text": "half \ud800"}).text == b"half ?"
    assert text_of_line(b"[" * 1000 + b'"deep"' + b"]" * 1000).text == b"deep"


def test_what_does_not_parse_is_as_it_is_and_is_reported_where_it_is_no_text():
    assert text_of_line(b'{"text": "cut of') == Text("", b'{"text": "cut of')
    assert text_of_line(b"caf\xe9") == Text("", "caf�".encode())
    assert not text_of_line(bytes(40)).readable


def test_a_row_too_long_to_be_held_comes_in_pieces():
    found = ["a" * 6, "b" * 6, "c"]
    assert list(texts_of("row", found, max_characters=13)) == [Text("row", b"aaaaaa\nbbbbbb\nc")]
    assert list(texts_of("row", found, max_characters=12)) == [Text("row", b"aaaaaa\nbbbbbb"), Text("row", b"c")]
    assert list(texts_of("row", ["long"] * 3, max_characters=3)) == [Text("row", b"long")] * 3
