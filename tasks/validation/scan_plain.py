"""Plain text, lines and JSON values as texts to be scanned, a bounded piece at a time."""

import codecs
import io
import sys
from collections.abc import Iterator
from typing import cast

import orjson

from phasewise.tasks.data.findings import MAX_DOCUMENT_BYTES, FileFault
from phasewise.tasks.data.streams import is_text
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
