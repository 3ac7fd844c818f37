"""Texts, JSON and WARC files as texts to be scanned: what does not parse is scanned as it is.

A WARC is read record by record: what a crawler fetched, without the heads of its records and of HTTP, which are not what a page says. The
format is that of ISO 28500: a line with the version, lines `Name: value`, an empty line, a block of `Content-Length` bytes, two line ends.
Of HTTP the body is taken out of its chunks (RFC 9112, section 7.1) and unpacked as `Content-Encoding` says.
"""

import codecs
import io
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import orjson

from phasewise.tasks.data.archives import Member, unpacking
from phasewise.tasks.data.findings import MAX_DOCUMENT_BYTES, FileFault
from phasewise.tasks.data.streams import BUFFER_BYTES, Measured, WatchedFile, is_text
from phasewise.tasks.data.text_files import BYTE_ORDER_MARK, SKIP_BYTES, loads
from phasewise.tasks.validation.scan_values import Text, as_utf8, text_of_line, text_of_value

MAX_JSON_BYTES = MAX_DOCUMENT_BYTES
PEEK_BYTES = 2**16
MAX_HEAD_BYTES = 2**20
MAX_LINE_BYTES = 2**16
VERSION = re.compile(rb"WARC/[01]\.\d+\s*$")
CHUNK = re.compile(rb"[0-9A-Fa-f]+[ \t]*(?:;[^\n]*)?\r?\n")
NO_TEXT_TYPES = {"warcinfo": "about the crawl", "request": "what the crawler asked", "revisit": "a page that stands elsewhere"}
ENCODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "zlib", "br": "brotli", "zstd": "zstd"}


def has_lines_of_json(start: bytes) -> bool:
    """Return whether the first line that is not blank, which is in `start`, is JSON."""
    line, end, _ = start.removeprefix(BYTE_ORDER_MARK).lstrip().partition(b"\n")
    if not end or line[:1] not in (b"{", b"["):
        return False
    try:
        loads(line)
    except (orjson.JSONDecodeError, FileFault):
        return False
    return True


def read_lines(stream: io.BufferedReader, start: int = 0, stop: int | None = None) -> Iterator[Text]:
    """Yield the lines that begin in `[start, stop)`. One that is too long to be held comes in pieces."""
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
    """Yield a list's elements, else one value, else lines, else a text: files that are called .json are any of these."""
    content, failure = _read_up_to(stream, MAX_JSON_BYTES + 1)
    left = memoryview(content)

    def read(size: int) -> bytes:
        """What was read, and the rest of the stream, or what failed there."""
        nonlocal left
        if left:
            chunk, left = bytes(left[:size]), left[size:] or memoryview(b"")  # which lets go of the content
            return chunk
        if failure:
            raise failure
        return stream.read1(size)

    if len(content) <= MAX_JSON_BYTES and not failure:
        try:
            value = loads(content.removeprefix(BYTE_ORDER_MARK))
        except (orjson.JSONDecodeError, FileFault):
            pass
        else:
            yield from map(text_of_value, cast("list[object]", value) if isinstance(value, list) else [value])
            return
    again: io.BufferedReader = io.BufferedReader(_Fed(read))
    is_lines = has_lines_of_json(content[:MAX_DOCUMENT_BYTES])
    del content
    yield from read_lines(again) if is_lines else read_text(again)


def read_text(stream: io.BufferedReader) -> Iterator[Text]:
    """Yield a text as one document; one too long to be held is cut at line ends, and the pieces are neighbours."""
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
    """Return so many bytes, or those before the end, or before what fails: a text that is cut off is scanned up to there."""
    chunks: list[bytes] = []
    try:
        while size and (chunk := stream.read1(min(size, SKIP_BYTES))):
            chunks.append(chunk)
            size -= len(chunk)
    except Exception as error:  # it is raised again behind what was read
        return b"".join(chunks), error
    return b"".join(chunks), None


def transcoded(stream: io.BufferedReader, encoding: str) -> io.BufferedReader:
    """Return text of another encoding as UTF-8."""
    decoder, ready, has_ended = codecs.getincrementaldecoder(encoding)(errors="replace"), b"", False

    def read(size: int) -> bytes:
        nonlocal ready, has_ended
        while not ready and not has_ended:
            raw = stream.read(SKIP_BYTES)
            has_ended = not raw
            ready = decoder.decode(raw, final=has_ended).encode(errors="replace")
        chunk, ready = ready[:size], ready[size:]
        return chunk

    return io.BufferedReader(_Fed(read), BUFFER_BYTES)


class _Fed(io.RawIOBase):
    """What `read` gives as a stream."""

    def __init__(self, read: Callable[[int], bytes]):
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # a buffer
        into = memoryview(buffer).cast("B")
        chunk = self._read(len(into))
        into[: len(chunk)] = chunk
        return len(chunk)


def warc_records(file: WatchedFile, stream: io.BufferedReader) -> Iterator[Member]:
    """Yield the records' blocks, in order; `name` is the address that was fetched, else the record's own."""
    left = 0

    def read(size: int) -> bytes:
        """What is left of the block of this record."""
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
        while left:  # what nobody has read
            read(2**18)


def _read_heads(stream: io.BufferedReader, *, may_end: bool = False) -> dict[str, str]:
    """Return names in small letters → values, up to the empty line. A line that begins with a space goes on with the one before.

    Args:
        may_end: whether the stream may end before that line: there are no heads then.
    """
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
    message.readline(MAX_LINE_BYTES)  # the status, or the request
    heads = _read_heads(message, may_end=True)  # of an answer of heads alone the block ends with them
    left, has_ended = 0, False

    def read_chunked(size: int) -> bytes:
        """The body, which is sent in chunks, each after its length in hexadecimal digits."""
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
    if encoding == "brotli":  # the others say by their first bytes whether they are still packed
        return Measured(file, unpacking(body, encoding))
    return Measured(file, body.read1)
