"""WARC files record by record: what a crawler fetched, without the heads of its records and of HTTP, which are not what a page says.

The format is that of ISO 28500: a line with the version, lines `Name: value`, an empty line, a block of `Content-Length` bytes, two line
ends. Of HTTP the body is taken out of its chunks (RFC 9112, section 7.1) and unpacked as `Content-Encoding` says.
"""

import io
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from phasewise.tasks.data.archives import Member, unpacking
from phasewise.tasks.data.findings import FileFault
from phasewise.tasks.data.streams import BUFFER_BYTES, Measured, WatchedFile

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
