"""Long text as many documents: nothing is lost or changed, and each says where it begins."""

import io
from pathlib import Path

import pytest

from phasewise.tasks.data.formats.findings import FileFault, Record
from phasewise.tasks.data.formats.paragraphs import MAX_CHARACTERS, WANTED_CHARACTERS, read_paragraphs
from phasewise.tasks.data.reading import read_piece
from phasewise.tasks.data.source import Piece, Source


def read(text: str | bytes) -> list[Record]:
    content = text if isinstance(text, bytes) else text.encode()
    found = list(read_paragraphs(io.BufferedReader(io.BytesIO(content)), lambda text, where, _: Record(text, where)))
    assert all(isinstance(one, Record) for one in found)
    return found  # pyright: ignore[reportReturnType]


def paragraph(number: int) -> str:
    return f"Paragraph {number}. " + "word " * 100 + "\n\n"


def test_text_is_cut_at_blank_lines_and_nothing_is_lost():
    text = "".join(map(paragraph, range(40)))
    found = read(text)
    assert "".join(one.text for one in found) == text
    assert len(found) > 5
    assert all(WANTED_CHARACTERS <= len(one.text) < WANTED_CHARACTERS + 600 for one in found[:-1])
    assert all(one.text.startswith("Paragraph ") and one.text.endswith("\n\n") for one in found)
    assert [one.where for one in found[:2]] == ["from line 1", "from line 9"]


@pytest.mark.parametrize("text", ["short", "x" * (3 * MAX_CHARACTERS + 5), "line\n" * 5000, "a\r\nb\r\n" * 3000, "ü" * 20_000 + "\n\n"])
def test_text_without_blank_lines_is_cut_all_the_same(text: str):
    found = read(text)
    assert "".join(one.text for one in found) == text
    assert all(len(one.text) <= 2 * MAX_CHARACTERS for one in found)


def test_blank_lines_alone_at_the_end_are_no_document():
    text = paragraph(0) * 4
    assert read(text + "\n\n\n") == read(text)


def test_a_byte_order_mark_is_no_text_and_an_empty_file_a_fault():
    assert read(b"\xef\xbb\xbfhello")[0].text == "hello"
    with pytest.raises(FileFault):
        read("")


def test_a_source_may_name_it(tmp_path: Path):
    path = tmp_path / "book.txt"
    path.write_text("".join(map(paragraph, range(40))))
    source = Source(url=str(tmp_path), include=("*.txt",), format="paragraphs")
    assert len(list(read_piece(source, Piece(name="book.txt", url=str(path))))) > 5
    path.write_bytes(b"good\n\n" * 1000 + b"\xff")
    assert any(not isinstance(one, Record) for one in read_piece(source, Piece(name="book.txt", url=str(path))))
