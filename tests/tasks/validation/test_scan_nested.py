import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from phasewise.tasks.data.archives import MAX_LAYERS
from phasewise.tasks.validation import scan_files
from phasewise.tasks.validation.scan_files import FilePiece, Reading, Unread
from tests.hostile_makers import arrow, good_files, lines, lz4, parquet, rows, tar, warc, zipped

TEXT: str = rows()[0]["text"]
JSON_LINES = lines()
PAGE = b"<p>What the page says.</p>"


def read(content: bytes, folder: Path, name: str = "x", exclude: tuple[str, ...] = ()) -> tuple[dict[str, str], list[Unread]]:
    (folder / name).write_bytes(content)
    reading = Reading(FilePiece(name, str(folder / name), name, len(content), exclude=exclude))
    found: dict[str, str] = {}
    for document in reading:
        found[document.file] = found.get(document.file, "") + document.text.decode()
    return found, reading.unread


@pytest.mark.parametrize("name", good_files())
def test_every_kind_of_file_is_read_whatever_its_name(tmp_path: Path, name: str):
    found, unread = read(good_files()[name], tmp_path, "b10b")
    assert [one.reason for one in unread] == ["about the crawl"] * name.count("warc") * (2 if name.endswith("warc.gz") else 1)
    expected = {"a.txt": "Words and more words.", "utf16.txt": "Wörter und noch mehr."}.get(name, TEXT)
    assert expected in "\n".join(found.values())


def test_members_are_named_by_their_way_and_layers_have_a_bound(tmp_path: Path):
    inner = zipped({"in/a.jsonl.gz": gzip.compress(JSON_LINES)})
    found, unread = read(zstandard.compress(tar({"deep/x.zip": inner, "/etc/b": parquet()})), tmp_path)
    assert list(found) == ["x!/deep/x.zip!/in/a.jsonl.gz", "x!//etc/b"]
    assert all(TEXT in text for text in found.values())
    assert unread == []
    content = JSON_LINES
    for _ in range(MAX_LAYERS):
        content = zipped({"in": content})
    assert TEXT in next(iter(read(content, tmp_path)[0].values()))
    found, (unread,) = read(gzip.compress(content), tmp_path)
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
    (unread,) = read(pack(content), tmp_path)[1]
    assert said in unread.reason
    assert (unread.is_fault, unread.file) == (is_fault, ("x" if pack is bytes else "x!/m"))


@pytest.mark.parametrize("content", [b"Words, " * 2000, JSON_LINES, json.dumps(rows()).encode()])
def test_what_is_before_a_cut_is_scanned(tmp_path: Path, content: bytes):
    found, unread = read(tar({"m": content})[: 512 + len(content) - 100], tmp_path)
    together = found["x!/m"]
    assert together.startswith(("Words, ", TEXT, "["))
    assert len(together) > len(content) // 3
    assert unread
    assert all("the file ends" in one.reason and one.is_fault for one in unread)


def test_what_is_damaged_costs_no_other_member_and_what_is_excluded_or_a_link_is_reported_and_not_opened(tmp_path: Path):
    members = {"a/b.pdf": b"%PDF-1.4", "c.jsonl": JSON_LINES, "d.zip": zipped({"e.pdf": b"%PDF-1.4"})}
    found, unread = read(tar(members), tmp_path, exclude=("*.png", "*.pdf"))
    assert list(found) == ["x!/c.jsonl"]
    assert unread == [Unread(f"x!/{name}", "excluded by *.pdf", False, "*.pdf") for name in ("a/b.pdf", "d.zip!/e.pdf")]
    (tmp_path / "secret").write_text(TEXT)
    found, unread = read(tar({"to": b""}, type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret")), tmp_path)
    assert (found, unread) == ({}, [Unread("x!/to", "a link within its archive", is_fault=False)])
    members = {"a": gzip.compress(JSON_LINES)[:-9], "b.pdf": b"%PDF-1.4", "c": JSON_LINES}
    for pack in (tar, zipped):
        found, unread = read(pack(members), tmp_path)
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
        unread = read(content, tmp_path)[1]
        assert any("of one are taken" in one.reason and one.is_fault for one in unread), (number, len(content), unread)
    monkeypatch.setattr(scan_files, "MAX_UNREAD", 2)
    members = {str(number): b"%PDF-1.4" if number == 4 else b"\x89PNG" for number in range(9)}
    *first, last = read(tar(members), tmp_path)[1]
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
    found, unread = read(gzip.compress(warc({"http://a/b c": body, "http://d": b"next"}, heads)), tmp_path)
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
    unread = read(change(warc({"http://a": b"some words"})), tmp_path)[1]
    assert {one.is_fault for one in unread if said in one.reason} == {True}
