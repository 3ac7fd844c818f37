"""JSON lines, a line at a time, whole or by a range of bytes: a line belongs to the range in which its first byte lies."""

import io
import sys
from collections.abc import Callable, Iterator
from functools import partial

import orjson

from tasks.data.formats.fields import reach
from tasks.data.formats.findings import MAX_DOCUMENT_BYTES, Fault, FileFault, Finding, Reason, Sift, reason_against, sample_of
from tasks.data.formats.json_values import loads

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SKIP_BYTES = 2**20
NEWLINE = ord("\n")
NOT_PARSED = object()
Take = Callable[[object, str, bytes], Finding]
"""A line's value, where it is, and the line itself → what it holds."""


def read_json_lines(
    lines: io.BufferedReader, *, take: Take, start: int = 0, stop: int | None = None
) -> Iterator[Finding]:  # fmt: skip
    """What the lines that begin in `[start, stop)` hold, as `take` finds it in each.

    Blank lines are no documents; a line that is too long is passed over in pieces.

    Raises:
        FileFault: the file has no document at all; found by the code that reads its start.
    """
    end = sys.maxsize if stop is None else stop
    at = _first_line(lines, start, end)
    is_empty = True
    while at < end and (line := lines.readline(MAX_DOCUMENT_BYTES + 1)):
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
            yield Fault(fault.reason, f"byte {at}", sample_of(line))
            at += len(line)
            continue
        if finding := _read(line, at, document, take):
            is_empty = False
            yield finding
        at += len(line)
    if is_empty and start == 0 and not any(chunk.strip() for chunk in iter(partial(lines.read, SKIP_BYTES), b"")):
        raise FileFault("empty file", "it has no document")


def take_text(text_key: str, sift: Sift) -> Take:
    """Takes the text of a field."""

    def take(document: object, where: str, line: bytes) -> Finding:
        if isinstance(document, dict) and isinstance(text := document.get(text_key), str):
            return sift(text, where, document)
        text = reach(document, text_key)
        if isinstance(text, str):
            return sift(text, where, document if isinstance(document, dict) else {})
        return Fault("missing key" if text is None else "wrong type", where, sample_of(line))

    return take


def _read(line: bytes, at: int, document: object, take: Take) -> Finding | None:
    """What a line holds; None of a blank one. A byte order mark at the file's start is no part of it."""
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


def _first_line(lines: io.BufferedReader, start: int, end: int) -> int:
    """Go to the first line that begins at `start` or later."""
    if start == 0:
        return 0
    lines.seek(start - 1)
    return _end_of_line(lines, start - 1, end)


def _end_of_line(lines: io.BufferedReader, at: int, end: int) -> int:
    """Pass over the rest of a line, but not beyond `end` by more than a piece of it: what begins there is not asked for."""
    while at < end and (rest := lines.readline(SKIP_BYTES)):
        at += len(rest)
        if rest[-1] == NEWLINE:
            break
    return at
