"""A file that is one document."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from phasewise.tasks.data.formats.findings import MAX_DOCUMENT_BYTES, Fault, Finding, LeftOut, Reason, Record

Read = Callable[..., list[Finding]]


@pytest.mark.parametrize("file_format", ["text", "markdown"])
def test_a_file_is_a_document_as_it_is(tmp_path: Path, read: Read, file_format: str):
    text = "# Grüße\r\n\r\n日本語 🌳  \n\n"
    (tmp_path / "a.md").write_bytes(text.encode())
    (tmp_path / "b.md.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    assert read(tmp_path / "a.md", file_format) == read(tmp_path / "b.md.gz", file_format) == [Record(text, "file")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"caf\xe9", "not UTF-8"),
        (b"half \xed\xa0\xbc", "half a surrogate pair"),
        (b"x" * (MAX_DOCUMENT_BYTES + 1), "too long"),
    ],
    ids=["Latin-1", "surrogate", "long"],
)
def test_a_bad_file_is_a_fault(tmp_path: Path, read: Read, content: bytes, reason: Reason):
    (tmp_path / "a.txt").write_bytes(content)
    (fault,) = read(tmp_path / "a.txt", "text")
    assert isinstance(fault, Fault)
    assert (fault.reason, fault.where, fault.whole_file) == (reason, "file", False)


def test_a_truncated_file_is_no_document(tmp_path: Path, read: Read):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"some words")[:-1])
    (fault,) = read(tmp_path / "a.txt.gz", "text")
    assert isinstance(fault, Fault)
    assert (fault.reason, fault.whole_file) == ("truncated", True)


def test_white_space_is_left_out_and_the_longest_text_is_not(tmp_path: Path, read: Read):
    (tmp_path / "a.txt").write_bytes(b" \n\n")
    assert read(tmp_path / "a.txt", "text") == [LeftOut("empty text", "file")]
    (tmp_path / "a.txt").write_bytes(b"")
    assert read(tmp_path / "a.txt", "text") == [LeftOut("empty file", "file", whole_file=True)]
    (tmp_path / "b.txt").write_bytes(b"x" * MAX_DOCUMENT_BYTES)
    assert read(tmp_path / "b.txt", "text") == [Record("x" * MAX_DOCUMENT_BYTES, "file")]
