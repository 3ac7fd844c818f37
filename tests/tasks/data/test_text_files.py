import gzip
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.data import text_files
from phasewise.tasks.data.filters import build_sift
from phasewise.tasks.data.findings import MAX_DOCUMENT_BYTES, Fault, FileFault, Reason, Record
from phasewise.tasks.data.text_files import WANTED_CHARACTERS, loads, read_json_lines, read_paragraphs, take_text
from tests.tasks.data.conftest import Read

SIFT = build_sift(())
BAD_LINES: dict[Reason, tuple[bytes, ...]] = {
    "broken JSON": (
        b'{"text": "cut', b'{"text": "a"} {"text": "b"}', b'{"text": "a", "n": NaN,}', b'{"text": "a", "n": Nan}', b"[" * 1_000_000,
        b'{"text": "a", "n": ' + b"9" * 10_000 + b"}", b'{"text": "a", "n": ' + b"[" * 5000 + b"]" * 5000 + b"}", b"\x00" * 100,
    ),
    "not UTF-8": (b'{"text": "caf\xe9"}', b"\xff\xfe{\x00}\x00"),
    "half a surrogate pair": (
        b'{"text": "\xed\xa0\xbc"}', b'{"text": "\\ud83c"}', b'{"text": "\\udf33\\ud83c"}', b'{"text": "a", "other": "\\udf33"}',
    ),
    "missing key": (b'{"content": "a"}', b"{}"),
    "wrong type": (b'{"text": 3}', b'{"text": ["a"]}', b'["text"]', b'"text"', b"null"),
}  # fmt: skip
LINES = st.lists(
    st.one_of(
        st.text(max_size=12).map(lambda text: json.dumps({"text": text}).encode()),
        st.text(max_size=12).map(lambda text: json.dumps({"text": text}, ensure_ascii=False).encode(errors="surrogatepass")),
        st.sampled_from([b"", b" ", b"\r", b"{", b"\xff", b"3", b'{"text": "\\ud800"}', b"\xef\xbb\xbf"]),
    ),
    max_size=12,
)


def test_a_file_is_a_document_as_it_is_and_a_bad_one_is_a_fault(tmp_path: Path, read: Read):
    text = "# Grüße\r\n\r\n日本語 🌳  \n\n"
    (tmp_path / "a.md").write_bytes(text.encode())
    (tmp_path / "b.md.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    for file_format in ("text", "markdown"):
        assert read(tmp_path / "a.md", file_format) == read(tmp_path / "b.md.gz", file_format) == [Record(text, "file")]
    too_long = b"x" * (MAX_DOCUMENT_BYTES + 1)
    for content, reason in ((b"caf\xe9", "not UTF-8"), (b"half \xed\xa0\xbc", "half a surrogate pair"), (too_long, "too long")):
        (tmp_path / "a.txt").write_bytes(content)
        (fault,) = read(tmp_path / "a.txt", "text")
        assert (type(fault), fault.reason, fault.where, fault.whole_file) == (Fault, reason, "file", False)


def test_text_is_cut_at_blank_lines_and_nothing_is_lost():
    text = "".join(f"Paragraph {number}. " + "word " * 100 + "\n\n" for number in range(40))
    found: list[Any] = list(read_paragraphs(io.BufferedReader(io.BytesIO(text.encode())), lambda text, where, _: Record(text, where)))
    assert all(isinstance(one, Record) for one in found)
    assert "".join(one.text for one in found) == text
    assert len(found) > 5
    assert all(WANTED_CHARACTERS <= len(one.text) < WANTED_CHARACTERS + 600 for one in found[:-1])
    assert all(one.text.startswith("Paragraph ") and one.text.endswith("\n\n") for one in found)
    assert [one.where for one in found[:2]] == ["from line 1", "from line 9"]


def test_many_values_are_refused_and_a_text_full_of_brackets_is_no_list(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_files, "ALWAYS_PARSED_BYTES", 1000)
    monkeypatch.setattr(text_files, "MAX_VALUES_BYTES", 2**20)
    for unit in (b"[],", b"{},", b'{"a":0},', b'"ab",', b"0,", b'{"":0},'):
        assert loads(b"[" + unit * 300 + b"0]") is not None
        with pytest.raises(FileFault, match="of JSON hold more than") as fault:
            loads(b"[" + unit * 30_000 + b"0]")
        assert fault.value.reason == "expands too much"
    text = r"[{\"x\": [1, 2]}, \\" * 9000
    assert loads(b'{"text": "' + text.encode() + b'"}') == {"text": text.replace(r"\"", '"').replace("\\\\", "\\")}


def find(content: bytes, start: int = 0, stop: int | None = None) -> list[Any]:
    return list(read_json_lines(io.BufferedReader(io.BytesIO(content)), take=take_text("text", SIFT), start=start, stop=stop))  # pyright: ignore[reportArgumentType]  # BytesIO reads raw bytes as well


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"  \n"])
@pytest.mark.parametrize("last", [b"", b"\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_blank_lines_and_a_byte_order_mark_are_no_text_and_a_file_of_them_is_a_fault(end: bytes, last: bytes, mark: bytes):
    content = mark + end + b'{"text": "a"}' + end + b" \t" + end + end + b'{"text": "b"}' + last
    found = find(content)
    assert ([finding.text for finding in found if isinstance(finding, Record)], len(found)) == (["a", "b"], 2)
    for empty in (mark, mark + end, mark + 2 * end):
        with pytest.raises(FileFault) as fault:
            find(empty)
        assert fault.value.reason == "empty file"


@pytest.mark.parametrize(("reason", "line"), [(reason, line) for reason, lines in BAD_LINES.items() for line in lines])
def test_a_bad_line_is_a_fault_and_no_other_is_lost(reason: Reason, line: bytes):
    first, fault, last = find(b'{"text":"a"}\n' + line + b'\n{"text":"b"}')
    assert (first, last) == (Record("a", "byte 0"), Record("b", f"byte {14 + len(line)}"))
    assert (type(fault), fault.reason, fault.where, fault.whole_file) == (Fault, reason, "byte 13", False)
    assert 0 < len(fault.sample) <= 200


@settings(deadline=None)
@given(lines=LINES, mark=st.sampled_from([b"", b"\xef\xbb\xbf"]), last=st.sampled_from([b"", b"\n"]), data=st.data())
def test_pieces_together_give_the_lines_of_the_file(lines: list[bytes], mark: bytes, last: bytes, data: st.DataObject):
    content = mark + b"\n".join(lines) + last
    cuts = sorted({0, len(content), *data.draw(st.lists(st.integers(0, len(content)), max_size=6))})
    try:
        whole = find(content)
    except FileFault:
        assert not content.replace(b"\xef\xbb\xbf", b"", 1).strip()
        return
    pieces = [finding for start, stop in pairwise(cuts) for finding in find(content, start, stop)]
    assert pieces == whole
    texts = (_text(line) for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    assert [finding.text for finding in whole if isinstance(finding, Record)] == [text for text in texts if text and text.strip()]


def _text(line: bytes) -> str | None:
    try:
        text = json.loads(line.decode())["text"]
        text.encode()
    except (ValueError, TypeError):
        return None
    return text


def test_the_longest_document_is_read_and_a_piece_inside_a_long_line_reads_no_further():
    longest = b'{"text":"' + b"x" * (MAX_DOCUMENT_BYTES - 11) + b'"}'
    (record,) = find(longest + b"\n")
    assert (type(record), len(record.text)) == (Record, MAX_DOCUMENT_BYTES - 11)
    assert isinstance(find(longest)[0], Record)
    for end in (b"", b'\n{"text":"b"}'):
        fault, *rest = find(longest + b" " + end)
        assert (type(fault), fault.reason, len(rest)) == (Fault, "too long", end.count(b"b"))
    content = io.BytesIO(b'{"text":"' + b"x" * 20_000_000 + b'"}\n{"text":"b"}\n')
    lines: io.BufferedReader = io.BufferedReader(content)
    assert list(read_json_lines(lines, take=take_text("text", SIFT), start=1_000_000, stop=2_000_000)) == []
    assert content.tell() < 4_000_000
