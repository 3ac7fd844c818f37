"""Strings, texts, JSON and WARC files as texts for the scan. Unparsable input is scanned unchanged.

All strings of a row are one text, so that an item with question and answer in two fields is found.

A WARC is read by record: the fetched content without the heads of records and of HTTP. The format is ISO 28500: a line with the version,
lines `Name: value`, an empty line, a block of `Content-Length` bytes, two line ends. The HTTP body is joined from its chunks (RFC 9112,
section 7.1) and unpacked by its `Content-Encoding`.
"""

import codecs
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, cast

import orjson

from phasewise.tasks.data.archives import Member, unpack
from phasewise.tasks.data.findings import MAX_DOCUMENT_BYTES, FileFault
from phasewise.tasks.data.streams import BUFFER_BYTES, Measured, WatchedFile, again, is_text
from phasewise.tasks.data.text_files import BYTE_ORDER_MARK, SKIP_BYTES, end_of_line, loads

TEXT_KEY, ID_KEY = "text", "id"
MIN_WORDS_OF_KEY = 4
MAX_TEXT_CHARACTERS = 2**24  # per row: 64 MiB with four bytes each
MAX_JSON_BYTES = MAX_DOCUMENT_BYTES
PEEK_BYTES, MAX_LINE_BYTES, MAX_HEAD_BYTES = 2**16, 2**16, 2**20
VERSION = re.compile(rb"WARC/[01]\.\d+\s*$")
CHUNK = re.compile(rb"[0-9A-Fa-f]+[ \t]*(?:;[^\n]*)?\r?\n")
NO_TEXT_TYPES = {"warcinfo": "about the crawl", "request": "what the crawler asked", "revisit": "a page that stands elsewhere"}
ENCODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "zlib", "br": "brotli", "zstd": "zstd"}


class Text(NamedTuple):
    """A document for the scan: its id, if any, its text in UTF-8, and whether the text is readable."""

    id: str
    text: bytes
    readable: bool = True


def text_of_line(line: bytes) -> Text:
    """Return the strings of a JSON line, or the line itself if parsing fails or would need too much memory."""
    try:
        return text_of_value(loads(line.removeprefix(BYTE_ORDER_MARK)))
    except (orjson.JSONDecodeError, FileFault):
        return Text("", as_utf8(line), readable=is_text(line, cut=False))


def text_of_value(value: object) -> Text:
    """Return a row's id and all its strings: the field `text` first, then the other fields, and an id of several words last."""
    if not isinstance(value, dict):
        return Text("", joined(strings(value)))
    row = cast("dict[str, object]", value)
    first = row.get(TEXT_KEY)
    found = [first] if isinstance(first, str) else []
    for name, each in row.items():
        if name == ID_KEY or (name == TEXT_KEY and found and found[0] is each):
            continue
        if name.count(" ") + 1 >= MIN_WORDS_OF_KEY:
            found.append(name)
        if isinstance(each, str):
            found.append(each)
        else:
            found.extend(strings(each))
    return next(texts_of(row.get(ID_KEY), found, max_characters=sys.maxsize))


def texts_of(id: object, found: list[str], *, max_characters: int = MAX_TEXT_CHARACTERS) -> Iterator[Text]:
    """Yield a document from its id and strings. An id of several words is a part of the text. A long text comes in pieces."""
    is_name = isinstance(id, str | int) and len(str(id).split()) <= 1
    if not is_name:
        found = [*found, *strings(id)]
    name = str(id) if isinstance(id, str | int) else ""
    if sum(map(len, found)) <= max_characters:
        yield Text(name, joined(found))
        return
    held: list[str] = []
    for part in (one[start : start + MAX_TEXT_CHARACTERS] for one in found for start in range(0, len(one), MAX_TEXT_CHARACTERS)):
        if held and sum(map(len, held)) + len(part) > max_characters:
            yield Text(name, joined(held))
            held = []
        held.append(part)
    yield Text(name, joined(held))


def joined(found: Iterable[str]) -> bytes:
    """Return the strings, separated by line ends."""
    return "\n".join(found).encode(errors="replace")


def strings(value: object) -> Iterator[str]:
    """Yield every string in a value, in order, and keys that are sentences. A stack, as JSON may be nested deeply."""
    waiting: list[object] = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            row = cast("dict[str, object]", value)
            for key in reversed(row):
                waiting.append(row[key])
                if key.count(" ") + 1 >= MIN_WORDS_OF_KEY:
                    waiting.append(key)
        elif isinstance(value, list):
            waiting.extend(reversed(cast("list[object]", value)))


def as_utf8(raw: bytes) -> bytes:
    """Return the bytes with replacement characters for invalid UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="replace").encode()
    return raw


def has_lines_of_json(start: bytes) -> bool:
    """Return whether the first non-blank line is a JSON list or object that ends within `start`."""
    line, end, _ = start.removeprefix(BYTE_ORDER_MARK).lstrip().partition(b"\n")
    if not end or line[:1] not in (b"{", b"["):
        return False
    try:
        loads(line)
    except (orjson.JSONDecodeError, FileFault):
        return False
    return True


def read_lines(stream: io.BufferedReader, start: int = 0, stop: int | None = None) -> Iterator[Text]:
    """Yield the lines whose first byte is in `[start, stop)`. A long line comes in pieces."""
    end, at = sys.maxsize if stop is None else stop, start
    if start:
        stream.seek(start - 1)
        at = end_of_line(stream, start - 1, sys.maxsize)
    is_whole = True
    while (at < end or not is_whole) and (line := stream.readline(MAX_DOCUMENT_BYTES)):
        at += len(line)
        is_whole = line.endswith(b"\n")
        if line.strip():
            yield text_of_line(line)


def read_json(stream: io.BufferedReader) -> Iterator[Text]:
    """Yield a list's elements, or one value, or lines, or a text: all of these occur in .json files."""
    content, failure = _read_up_to(stream, MAX_JSON_BYTES + 1)
    if len(content) <= MAX_JSON_BYTES and not failure:
        try:
            value = loads(content.removeprefix(BYTE_ORDER_MARK))
        except (orjson.JSONDecodeError, FileFault):
            pass
        else:
            yield from map(text_of_value, cast("list[object]", value) if isinstance(value, list) else [value])
            return
    is_lines = has_lines_of_json(content[:MAX_DOCUMENT_BYTES])
    whole: io.BufferedReader = io.BufferedReader(Measured(None, again(content, failure, stream.read1)))
    del content
    yield from read_lines(whole) if is_lines else read_text(whole)


def read_text(stream: io.BufferedReader) -> Iterator[Text]:
    """Yield a text as one document. A long text is cut at line ends into neighbouring documents."""
    rest, failure = b"", None
    while not failure:
        chunk, failure = _read_up_to(stream, MAX_DOCUMENT_BYTES - len(rest))
        if not chunk:
            break
        content = rest + chunk
        cut = content.rfind(b"\n") + 1 if len(content) == MAX_DOCUMENT_BYTES else 0
        content, rest = (content[:cut], content[cut:]) if cut else (content, b"")
        yield Text("", as_utf8(content), readable=is_text(content, cut=True))
    if rest:
        yield Text("", as_utf8(rest), readable=is_text(rest, cut=False))
    if failure:
        raise failure


def _read_up_to(stream: io.BufferedReader, size: int) -> tuple[bytes, Exception | None]:
    """Return up to `size` bytes, and the error that cut them off: a truncated text is scanned up to the error."""
    chunks: list[bytes] = []
    try:
        while size and (chunk := stream.read1(min(size, SKIP_BYTES))):
            chunks.append(chunk)
            size -= len(chunk)
    except Exception as error:  # the caller raises it after the read bytes
        return b"".join(chunks), error
    return b"".join(chunks), None


def transcoded(stream: io.BufferedReader, encoding: str) -> io.BufferedReader:
    """Return a stream of another encoding as UTF-8."""
    decoder, ready, has_ended = codecs.getincrementaldecoder(encoding)(errors="replace"), b"", False

    def read(size: int) -> bytes:
        nonlocal ready, has_ended
        while not ready and not has_ended:
            raw = stream.read(SKIP_BYTES)
            has_ended = not raw
            ready = decoder.decode(raw, final=has_ended).encode(errors="replace")
        chunk, ready = ready[:size], ready[size:]
        return chunk

    return io.BufferedReader(Measured(None, read), BUFFER_BYTES)


def warc_records(file: WatchedFile, stream: io.BufferedReader) -> Iterator[Member]:
    """Yield the records' blocks, named by the fetched address or the record id."""
    left = 0

    def read(size: int) -> bytes:
        nonlocal left
        chunk = stream.read(min(size, left))
        if left and size and not chunk:
            raise FileFault("truncated", f"the file ends {left} bytes before the end of this record")
        left -= len(chunk)
        return chunk

    while line := stream.readline(MAX_LINE_BYTES):
        if not line.strip():
            continue
        if not VERSION.match(line):
            raise FileFault("unreadable", f"a record of a WARC begins with its version, found {line[:40]!r}")
        heads = _read_heads(stream)
        length = heads.get("content-length", "")
        if not length.isdecimal():
            raise FileFault("unreadable", f"a record of the WARC has a Content-Length of {length[:40]!r}")
        left = int(length[:20])
        name = heads.get("warc-target-uri") or heads.get("warc-record-id") or "a record without a name"
        no_text = NO_TEXT_TYPES.get(heads.get("warc-type", ""), "")
        is_http = heads.get("content-type", "").lower().startswith("application/http")
        yield Member(name.strip("<>"), partial(_open_http if is_http else Measured, file, read), no_text)
        while left:  # the unread rest
            read(2**18)


def _read_heads(stream: io.BufferedReader, *, may_end: bool = False) -> dict[str, str]:
    """Return lower-case names → values, up to the empty line. `may_end`: an end before the empty line gives no heads."""
    heads: dict[str, str] = {}
    name, taken = "", 0
    while (line := stream.readline(MAX_LINE_BYTES)).strip():
        taken += len(line)
        if taken > MAX_HEAD_BYTES:
            raise FileFault("unreadable", f"a record's head has more than {MAX_HEAD_BYTES} bytes")
        text = line.decode(errors="replace")
        if text[0] in " \t" and name:
            heads[name] += f" {text.strip()}"
            continue
        name, _, value = text.partition(":")
        name = name.strip().lower()
        heads[name] = value.strip()
    if not line and not may_end:
        raise FileFault("truncated", "the file ends inside a record's head")
    return heads if line else {}


def _open_http(file: WatchedFile, read: Callable[[int], bytes]) -> io.RawIOBase:
    message: io.BufferedReader = io.BufferedReader(Measured(file, read), BUFFER_BYTES)
    message.readline(MAX_LINE_BYTES)  # the status, or the request line
    heads = _read_heads(message, may_end=True)  # an answer without a body ends after the heads
    left, has_ended = 0, False

    def read_chunked(size: int) -> bytes:
        nonlocal left, has_ended
        while not left and not has_ended:
            line = message.readline(MAX_LINE_BYTES)
            digits = line.split(b";")[0].strip()
            if not line:
                raise FileFault("truncated", "the answer ends before its last chunk")
            if not re.fullmatch(rb"[0-9A-Fa-f]{0,15}", digits):
                raise FileFault("unreadable", f"a chunk begins with its length, found {line[:40]!r}")
            if digits:  # an empty line ends the chunk before
                left = int(digits, 16)
                has_ended = left == 0
        chunk = message.read1(min(size, left)) if left else b""
        if left and not chunk:
            raise FileFault("truncated", "the answer ends inside a chunk")
        left -= len(chunk)
        return chunk

    body = message
    if "chunked" in heads.get("transfer-encoding", "").lower() and CHUNK.match(message.peek(64)[:64]):
        body: io.BufferedReader = io.BufferedReader(Measured(file, read_chunked), BUFFER_BYTES)
    encoding = ENCODINGS.get(heads.get("content-encoding", "").strip().lower(), "")
    if encoding == "brotli":  # other encodings are recognised by their first bytes
        return unpack(file, body, encoding)
    return Measured(file, body.read1)
