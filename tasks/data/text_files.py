"""JSON lines, a line at a time, whole or by a range of bytes: a line belongs to the range in which its first byte lies."""

import io
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import orjson

from phasewise.tasks.data.findings import (
    MAX_DOCUMENT_BYTES,
    Fault,
    FileFault,
    Finding,
    Reason,
    Record,
    Sift,
    Taken,
    has_text,
    is_there,
    reach,
    reason_against,
    sample_of,
    unread_fields,
)

WANTED_CHARACTERS, MAX_CHARACTERS = 2_000, 8_000
"""A document ends at the first blank line after so many, and at the latest at the second."""
ALWAYS_PARSED_BYTES = 2**20
MAX_VALUES_BYTES = 320 * 2**20
OBJECT_BYTES, VALUE_BYTES = 200, 64  # of an object with one field, of a short string: a little more than CPython's
STRING = re.compile(rb'"(?:[^"\\]+|\\.)*+"', re.DOTALL)
NOT_FINITE = re.compile(STRING.pattern + rb"|(NaN|-?Infinity)\b", re.DOTALL)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SKIP_BYTES = 2**20
SNIFFED_BYTES = 2**10
ARRAY_OF_OBJECTS = re.compile(rb"\[\s*\{")
NEWLINE = ord("\n")
NOT_PARSED = object()
Take = Callable[[object, str, bytes], Taken]
"""A line's value, where it is, and the line itself → what it holds."""


def read_paragraphs(file: io.BufferedReader, sift: Sift) -> Iterator[Finding]:
    """The file's text in documents of about `WANTED_CHARACTERS`; all of it but blank lines between them, and each in its place.

    Raises:
        FileFault: the file is empty.
        UnicodeDecodeError: it is not UTF-8.
    """
    reader = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        if not (line := reader.readline(MAX_CHARACTERS)):
            raise FileFault("empty file", "it has no bytes")
        lines, size, first, number = list[str](), 0, 1, 0
        while line:
            number += line.endswith("\n")
            lines.append(line)
            size += len(line)
            if size >= MAX_CHARACTERS or (size >= WANTED_CHARACTERS and line.isspace()):
                yield sift("".join(lines), f"from line {first}", {})
                lines, size, first = [], 0, number + 1
            line = reader.readline(MAX_CHARACTERS)
        if "".join(lines).strip() or first == 1:
            yield sift("".join(lines), f"from line {first}", {})
    finally:
        reader.detach()


def read_plain(file: io.BufferedReader, sift: Sift) -> Iterator[Finding]:
    """The file's text; a byte order mark is its signature and not part of it.

    Raises:
        FileFault: the file is empty.
    """
    raw = file.read(MAX_DOCUMENT_BYTES + 1)
    if not raw:
        raise FileFault("empty file", "it has no bytes")
    if len(raw) > MAX_DOCUMENT_BYTES:
        yield Fault("too long", "file", sample_of(raw))
        return
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        yield Fault(reason_against(raw), "file", sample_of(raw))
        return
    yield sift(text, "file", {})


def loads(raw: bytes) -> object:
    """The value that is there. `json.dumps`, and with it pandas, writes NaN and Infinity for numbers that JSON has not: they become null.

    Raises:
        orjson.JSONDecodeError: there is no value.
        FileFault: its lists, objects and numbers would take more memory than they may.
    """
    if len(raw) > ALWAYS_PARSED_BYTES and _held_bytes(raw) > MAX_VALUES_BYTES and _held_bytes(STRING.sub(b'""', raw)) > MAX_VALUES_BYTES:
        raise FileFault(
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


def read_json_lines(
    lines: io.BufferedReader, *, take: Take, start: int = 0, stop: int | None = None
) -> Iterator[Taken]:  # fmt: skip
    """What the lines that begin in `[start, stop)` hold, as `take` finds it in each.

    Blank lines are no documents; a line that is too long is passed over in pieces.

    Raises:
        FileFault: the file has no document at all, or is one JSON value and not lines of them; found by the code that reads its start.
    """
    end = sys.maxsize if stop is None else stop
    if start == 0:
        at = 0
    else:
        lines.seek(start - 1)
        at = _end_of_line(lines, start - 1, end)
    is_empty = True
    while at < end and (line := lines.readline(MAX_DOCUMENT_BYTES + 1)):
        if is_empty and start == 0:
            _check_is_a_line(line, lines)
        if len(line) > MAX_DOCUMENT_BYTES and line[-1] != NEWLINE:
            is_empty = False
            yield Fault("too long", f"byte {at}", sample_of(line))
            at = _end_of_line(lines, at + len(line), end)
            continue
        try:
            document = loads(line)
        except orjson.JSONDecodeError:
            document = NOT_PARSED
        except FileFault as fault:
            is_empty = False
            yield Fault(cast("Reason", fault.reason), f"byte {at}", sample_of(line))
            at += len(line)
            continue
        if finding := _read(line, at, document, take):
            is_empty = False
            yield finding
        at += len(line)
    if is_empty and start == 0 and not any(chunk.strip() for chunk in iter(partial(lines.read, SKIP_BYTES), b"")):
        raise FileFault("empty file", "it has no document")


def take_text(text_key: str, sift: Sift) -> Take:
    """Takes the text of a field, and names the other fields with text. Null is a text without characters."""

    def take(document: object, where: str, line: bytes) -> Finding:
        fields = cast("dict[str, object]", document) if isinstance(document, dict) else {}
        text = fields.get(text_key)
        is_plain = isinstance(text, str)
        if not is_plain:
            text = reach(document, text_key)
            if not isinstance(document, dict) or not isinstance(text, str | None):
                return Fault("wrong type", where, sample_of(line))
            if text is None and not is_there(document, text_key):
                return Fault("missing key", where, sample_of(line))
        found = sift(text or "", where, fields)
        if not isinstance(found, Record) or len(fields) == 1:
            return found
        others = fields.items() if is_plain else unread_fields(fields, (text_key,))
        beside = [name for name, value in others if value and name != text_key and has_text(value)]
        return Record(found.text, where, beside=tuple(beside))

    return take


def _check_is_a_line(line: bytes, lines: io.BufferedReader) -> None:
    """Refuse a file whose first line begins a JSON array of records, or a JSON object of several lines."""
    first = line[:SNIFFED_BYTES].removeprefix(BYTE_ORDER_MARK).strip()
    following = lines.peek(SNIFFED_BYTES).lstrip()[:1] if first in (b"[", b"{") else b""
    if ARRAY_OF_OBJECTS.match(first) or (first == b"[" and following == b"{"):
        raise FileFault("other format", "it is one JSON array: write each element on a line of its own, for example with jq -c '.[]'")
    if first == b"{" and following == b'"':
        raise FileFault("other format", "its JSON objects have several lines each: write each on one line, for example with jq -c .")


def _read(line: bytes, at: int, document: object, take: Take) -> Taken | None:
    where = f"byte {at}"
    if document is NOT_PARSED:
        line = line.removeprefix(BYTE_ORDER_MARK) if at == 0 else line
        if not line.strip():
            return None
        try:
            document = loads(line)
        except orjson.JSONDecodeError as error:
            return Fault(_reason(line, error), where, sample_of(line))
    return take(document, where, line)


def _reason(line: bytes, error: orjson.JSONDecodeError) -> Reason:
    try:
        line.decode()
    except UnicodeDecodeError:
        return reason_against(line)
    return "half a surrogate pair" if "surrogate" in error.msg else "broken JSON"


def _end_of_line(lines: io.BufferedReader, at: int, end: int) -> int:
    """Pass over the rest of a line, but not beyond `end` by more than a piece of it: what begins there is not asked for."""
    while at < end and (rest := lines.readline(SKIP_BYTES)):
        at += len(rest)
        if rest[-1] == NEWLINE:
            break
    return at
