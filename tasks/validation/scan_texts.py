"""WARC files record by record: what a crawler fetched, without the heads of its records and of HTTP, which are not what a page says.

The format is that of ISO 28500: a line with the version, lines `Name: value`, an empty line, a block of `Content-Length` bytes, two line
ends. Of HTTP the body is taken out of its chunks (RFC 9112, section 7.1) and unpacked as `Content-Encoding` says.
"""

import codecs
import io
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple, cast

import orjson

from phasewise.tasks.data.archives import Member, unpacking
from phasewise.tasks.data.findings import MAX_DOCUMENT_BYTES, FileFault
from phasewise.tasks.data.streams import BUFFER_BYTES, Measured, WatchedFile, is_text
from phasewise.tasks.data.text_files import BYTE_ORDER_MARK, SKIP_BYTES, loads
from phasewise.tasks.validation.scan_values import Text, as_utf8, text_of_line, text_of_value

MAX_JSON_BYTES = MAX_DOCUMENT_BYTES
PEEK_BYTES = 2**16


def begins_with_json(start: bytes) -> bool:
    """Whether a text begins as objects and lists do: what is called JSON, or lines of it, may have any name."""
    return start.removeprefix(BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"[")


def has_lines_of_json(start: bytes) -> bool:
    """Whether the first line that is not blank, which is in `start`, is JSON."""
    line, end, _ = start.removeprefix(BYTE_ORDER_MARK).lstrip().partition(b"\n")
    if not end or line[:1] not in (b"{", b"["):
        return False
    try:
        loads(line)
    except (orjson.JSONDecodeError, FileFault):
        return False
    return True


def read_lines(stream: io.BufferedReader, start: int = 0, stop: int | None = None) -> Iterator[Text]:
    """The lines that begin in `[start, stop)`. One that is too long to be held comes in pieces."""
    end, at = sys.maxsize if stop is None else stop, start
    if start:
        stream.seek(start - 1)
        at -= 1
        while rest := stream.readline(SKIP_BYTES):
            at += len(rest)
            if rest.endswith(b"\n"):
                break
    is_whole = True
    while (at < end or not is_whole) and (line := stream.readline(MAX_DOCUMENT_BYTES)):
        at += len(line)
        is_whole = line.endswith(b"\n")
        if line.strip():
            yield text_of_line(line)


def read_json(stream: io.BufferedReader) -> Iterator[Text]:
    """A list's elements, else one value, else lines, else a text: files that are called .json are any of these."""
    content, failure = _read_up_to(stream, MAX_JSON_BYTES + 1)
    rest = _Joined(content, stream, failure)
    if len(content) <= MAX_JSON_BYTES and not failure:
        try:
            value = loads(content.removeprefix(BYTE_ORDER_MARK))
        except (orjson.JSONDecodeError, FileFault):
            pass
        else:
            yield from map(text_of_value, cast("list[object]", value) if isinstance(value, list) else [value])
            return
    start = content[:MAX_DOCUMENT_BYTES]
    del content
    is_lines = has_lines_of_json(start)
    del start
    yield from read_lines(io.BufferedReader(rest)) if is_lines else read_text(io.BufferedReader(rest))


def read_text(stream: io.BufferedReader) -> Iterator[Text]:
    """A text as one document; one too long to be held is cut at line ends, and the pieces are neighbours."""
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
    """So many bytes, or those before the end, or before what fails: a text that is cut off is scanned up to there."""
    chunks: list[bytes] = []
    try:
        while size and (chunk := stream.read1(min(size, SKIP_BYTES))):
            chunks.append(chunk)
            size -= len(chunk)
    except Exception as error:  # it is raised again behind what was read
        return b"".join(chunks), error
    return b"".join(chunks), None


class Transcoded(io.RawIOBase):
    """Text of another encoding as UTF-8."""

    def __init__(self, stream: io.BufferedReader, encoding: str):
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._ready = b""
        self._ended = False

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # a buffer
        """Fill `buffer`, or less of it; how many bytes came."""
        while not self._ready and not self._ended:
            raw = self._stream.read(SKIP_BYTES)
            self._ended = not raw
            self._ready = self._decoder.decode(raw, final=self._ended).encode(errors="replace")
        into = memoryview(buffer).cast("B")
        chunk, self._ready = self._ready[: len(into)], self._ready[len(into) :]
        into[: len(chunk)] = chunk
        return len(chunk)


class _Joined(io.RawIOBase):
    """What was read of a stream, and the rest of it, or what failed there."""

    def __init__(self, start: bytes, stream: io.BufferedReader, failure: Exception | None):
        self._start: memoryview | None = memoryview(start)
        self._stream = stream
        self._failure = failure

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # a buffer
        into = memoryview(buffer).cast("B")
        if self._start:
            count = min(len(self._start), len(into))
            into[:count] = self._start[:count]
            self._start = self._start[count:] or None
            return count
        if self._failure:
            raise self._failure
        chunk = self._stream.read1(len(into))
        into[: len(chunk)] = chunk
        return len(chunk)


MAX_HEAD_BYTES = 2**20
MAX_LINE_BYTES = 2**16
VERSION = re.compile(rb"WARC/[01]\.\d+\s*$")
NO_TEXT_TYPES = {"warcinfo": "about the crawl", "request": "what the crawler asked", "revisit": "a page that stands elsewhere"}
ENCODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "zlib", "br": "brotli", "zstd": "zstd"}


class _Record(NamedTuple):
    heads: Mapping[str, str]
    block: "_Block"


def warc_records(file: WatchedFile, stream: io.BufferedReader) -> Iterator[Member]:
    """The records' blocks, in order; `name` is the address that was fetched, else the record's own.

    Raises:
        FileFault: what follows is no record, or the file ends inside one.
    """
    while (record := _next_record(stream)) is not None:
        heads = record.heads
        name = heads.get("warc-target-uri") or heads.get("warc-record-id") or "a record without a name"
        no_text = NO_TEXT_TYPES.get(heads.get("warc-type", ""), "")
        is_http = heads.get("content-type", "").lower().startswith("application/http")
        yield Member(name.strip("<>"), partial(_open_block, file, record.block, is_http=is_http), no_text)
        record.block.finish()


def _next_record(stream: io.BufferedReader) -> _Record | None:
    while (line := stream.readline(MAX_LINE_BYTES)) and not line.strip():
        pass
    if not line:
        return None
    if not VERSION.match(line):
        raise FileFault("unreadable", f"a record of a WARC begins with its version, found {line[:40]!r}")
    heads = _read_heads(stream)
    length = heads.get("content-length", "")
    if not length.isdecimal():
        raise FileFault("unreadable", f"a record of the WARC has a Content-Length of {length[:40]!r}")
    return _Record(heads, _Block(stream, int(length[:20])))


def _read_heads(stream: io.BufferedReader) -> dict[str, str]:
    """Names in small letters → values, up to the empty line. A line that begins with a space goes on with the one before."""
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
    if not line:
        raise FileFault("truncated", "the file ends inside a record's head")
    return heads


class _Block:
    """The next `size` bytes of a stream."""

    def __init__(self, stream: io.BufferedReader, size: int):
        self._stream = stream
        self._left = size

    def read(self, size: int) -> bytes:
        chunk = self._stream.read(min(size, self._left))
        if self._left and size and not chunk:
            raise FileFault("truncated", f"the file ends {self._left} bytes before the end of this record")
        self._left -= len(chunk)
        return chunk

    def finish(self) -> None:
        """Pass over what nobody has read."""
        while self._left:
            self.read(2**18)


def _open_block(file: WatchedFile, block: _Block, *, is_http: bool) -> io.RawIOBase:
    if not is_http:
        return Measured(file, block.read)
    message: io.BufferedReader = io.BufferedReader(Measured(file, block.read), BUFFER_BYTES)
    message.readline(MAX_LINE_BYTES)  # the status, or the request
    heads = _read_http_heads(message)
    body = message
    if "chunked" in heads.get("transfer-encoding", "").lower() and re.match(rb"[0-9A-Fa-f]+[ \t]*(?:;[^\n]*)?\r?\n", message.peek(64)[:64]):
        body: io.BufferedReader = io.BufferedReader(Measured(file, _Chunks(message).read), BUFFER_BYTES)
    encoding = ENCODINGS.get(heads.get("content-encoding", "").strip().lower(), "")
    if encoding == "brotli":  # the others say by their first bytes whether they are still packed
        return Measured(file, unpacking(body, encoding))
    return Measured(file, body.read1)


def _read_http_heads(message: io.BufferedReader) -> dict[str, str]:
    try:
        return _read_heads(message)
    except FileFault as fault:
        if fault.reason == "truncated" and "record's head" in str(fault):
            return {}  # an answer of heads alone: its block ends with them
        raise


class _Chunks:
    """A body that is sent in chunks, each after its length in hexadecimal digits."""

    def __init__(self, message: io.BufferedReader):
        self._message = message
        self._left = 0
        self._ended = False

    def read(self, size: int) -> bytes:
        while not self._left and not self._ended:
            line = self._message.readline(MAX_LINE_BYTES)
            digits = line.split(b";")[0].strip()
            if not line:
                raise FileFault("truncated", "the answer ends before its last chunk")
            if not re.fullmatch(rb"[0-9A-Fa-f]{0,15}", digits):
                raise FileFault("unreadable", f"a chunk begins with its length, found {line[:40]!r}")
            if digits:  # an empty line ends the chunk before
                self._left = int(digits, 16)
                self._ended = self._left == 0
        chunk = self._message.read1(min(size, self._left)) if self._left else b""
        if self._left and not chunk:
            raise FileFault("truncated", "the answer ends inside a chunk")
        self._left -= len(chunk)
        return chunk
