"""Documents of text files: JSON lines by ranges of bytes, whole files, and paragraphs. A line belongs to the range with its first byte."""

import io
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import orjson

from phasewise.tasks.data import findings

WANTED_CHARACTERS, MAX_CHARACTERS = 2_000, 8_000
"""A paragraph document ends at the first blank line after the first limit, and at the latest at the second."""
ALWAYS_PARSED_BYTES = 2**20
MAX_VALUES_BYTES = 320 * 2**20
OBJECT_BYTES, VALUE_BYTES = 200, 64  # memory of an object with one field and of a short string in CPython, rounded up
STRING = re.compile(rb'"(?:[^"\\]+|\\.)*+"', re.DOTALL)
NOT_FINITE = re.compile(STRING.pattern + rb"|(NaN|-?Infinity)\b", re.DOTALL)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SKIP_BYTES = 2**20
SNIFFED_BYTES = 2**10
ARRAY_OF_OBJECTS = re.compile(rb"\[\s*\{")
NEWLINE = ord("\n")
Take = Callable[[object, str, bytes], findings.Taken]  # the value of a line, its place, and the line → its finding


def read_paragraphs(file: io.BufferedReader, sift: findings.Sift) -> Iterator[findings.Finding]:
    """Cut the text at blank lines into documents. Raises FileFault if the file is empty, UnicodeDecodeError if it is not UTF-8."""
    reader = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        line = reader.readline(MAX_CHARACTERS)
        if not line:
            raise findings.FileFault("empty file", "it has no bytes")
        text, first, number = "", 1, 0
        while line:
            number += line.endswith("\n")
            text += line
            if len(text) >= MAX_CHARACTERS or (len(text) >= WANTED_CHARACTERS and line.isspace()):
                yield sift(text, f"from line {first}", {})
                text, first = "", number + 1
            line = reader.readline(MAX_CHARACTERS)
        if text.strip() or first == 1:
            yield sift(text, f"from line {first}", {})
    finally:
        reader.detach()


def read_plain(file: io.BufferedReader, sift: findings.Sift) -> Iterator[findings.Finding]:
    """The text of a file as one document, without a byte order mark. Raises FileFault if the file is empty."""
    raw = file.read(findings.MAX_DOCUMENT_BYTES + 1)
    if not raw:
        raise findings.FileFault("empty file", "it has no bytes")
    if len(raw) > findings.MAX_DOCUMENT_BYTES:
        yield findings.Fault("too long", "file", findings.sample_of(raw))
        return
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        yield findings.Fault(findings.reason_against(raw), "file", findings.sample_of(raw))
        return
    yield sift(text, "file", {})


def loads(raw: bytes) -> object:
    """Parse JSON, with NaN and Infinity as null. Raises orjson.JSONDecodeError, or FileFault if the value would take too much memory."""
    if len(raw) > ALWAYS_PARSED_BYTES and _held_bytes(raw) > MAX_VALUES_BYTES and _held_bytes(STRING.sub(b'""', raw)) > MAX_VALUES_BYTES:
        raise findings.FileFault(
            "expands too much", f"{len(raw)} bytes of JSON hold more than {MAX_VALUES_BYTES} bytes of lists, objects and numbers"
        )
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        if b"NaN" not in raw and b"Infinity" not in raw:
            raise
        return orjson.loads(NOT_FINITE.sub(lambda found: b"null" if found[1] else found[0], raw))


def _held_bytes(raw: bytes) -> int:
    return OBJECT_BYTES * (raw.count(b"{") + raw.count(b"[")) + VALUE_BYTES * (raw.count(b",") + raw.count(b":"))


def read_json_lines(lines: io.BufferedReader, *, take: Take, start: int = 0, stop: int | None = None) -> Iterator[findings.Taken]:
    """The findings of the lines that begin in `[start, stop)`. From byte 0, raises FileFault if the file is no JSON lines or empty."""
    end = sys.maxsize if stop is None else stop
    position = start
    if start:
        lines.seek(start - 1)
        position = end_of_line(lines, start - 1, end)
    is_empty = True
    while position < end and (line := lines.readline(findings.MAX_DOCUMENT_BYTES + 1)):
        if is_empty and not start:
            first = line[:SNIFFED_BYTES].removeprefix(BYTE_ORDER_MARK).strip()
            following = lines.peek(SNIFFED_BYTES).lstrip()[:1] if first in (b"[", b"{") else b""
            if ARRAY_OF_OBJECTS.match(first) or (first == b"[" and following == b"{"):
                raise findings.FileFault(
                    "other format", "it is one JSON array: write each element on a line of its own, for example with jq -c '.[]'"
                )
            if first == b"{" and following == b'"':
                raise findings.FileFault(
                    "other format", "its JSON objects have several lines each: write each on one line, for example with jq -c ."
                )
        if len(line) > findings.MAX_DOCUMENT_BYTES and line[-1] != NEWLINE:
            is_empty = False
            yield findings.Fault("too long", f"byte {position}", findings.sample_of(line))
            position = end_of_line(lines, position + len(line), end)
            continue
        if finding := _read_line(line, position, take):
            is_empty = False
            yield finding
        position += len(line)
    if is_empty and not start and not any(chunk.strip() for chunk in iter(partial(lines.read, SKIP_BYTES), b"")):
        raise findings.FileFault("empty file", "it has no document")


def _read_line(line: bytes, position: int, take: Take) -> findings.Taken | None:
    where = f"byte {position}"
    try:
        try:
            document = loads(line)
        except orjson.JSONDecodeError:
            line = line.removeprefix(BYTE_ORDER_MARK) if position == 0 else line
            if not line.strip():
                return None
            document = loads(line)
    except findings.FileFault as fault:
        return findings.Fault(cast("findings.Reason", fault.reason), where, findings.sample_of(line))
    except orjson.JSONDecodeError as error:
        try:
            line.decode()
        except UnicodeDecodeError:
            return findings.Fault(findings.reason_against(line), where, findings.sample_of(line))
        return findings.Fault("half a surrogate pair" if "surrogate" in error.msg else "broken JSON", where, findings.sample_of(line))
    return take(document, where, line)


def end_of_line(lines: io.BufferedReader, position: int, end: int) -> int:
    """Skip the rest of a line, in steps, and stop soon after `end`."""
    while position < end and (rest := lines.readline(SKIP_BYTES)):
        position += len(rest)
        if rest[-1] == NEWLINE:
            break
    return position


def take_text(text_key: str, sift: findings.Sift) -> Take:
    """Take the text of a field and list the other fields with text. Null is an empty text."""

    def take(document: object, where: str, line: bytes) -> findings.Finding:
        fields = cast("dict[str, object]", document) if isinstance(document, dict) else {}
        text = fields.get(text_key)
        is_plain = isinstance(text, str)
        if not is_plain:
            text = findings.reach(document, text_key)
            if not isinstance(document, dict) or not isinstance(text, str | None):
                return findings.Fault("wrong type", where, findings.sample_of(line))
            if text is None and not findings.is_there(document, text_key):
                return findings.Fault("missing key", where, findings.sample_of(line))
        found = sift(text or "", where, fields)
        if not isinstance(found, findings.Record) or len(fields) == 1:
            return found
        others = fields.items() if is_plain else findings.unread_fields(fields, (text_key,))
        beside = [name for name, value in others if value and name != text_key and findings.has_text(value)]
        return findings.Record(found.text, where, beside=tuple(beside))

    return take
