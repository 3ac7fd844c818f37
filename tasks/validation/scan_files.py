"""Plain files as documents to be scanned: what is there is read, whatever its fields are called.

A document is a line of JSON lines, an element of a JSON list, a row of a table, or a whole text. Its text is every string of the line or
row, the field `text` first, with line ends between: an item whose question and answer stand in fields of their own is whole again. What
does not parse is scanned as it stands, so that a damaged line hides nothing.
"""

import io
import lzma
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.formats.arrow_messages import FILE_START, NO_MORE, check_next_batch
from tasks.data.formats.findings import MAX_DOCUMENT_BYTES, FileFault
from tasks.data.formats.streams import BUFFER_BYTES, open_watched, unpack
from validations.evidence.leakage.scan import Document

Format = Literal["jsonl", "json", "parquet", "arrow", "text"]
TEXT_KEY = "text"
MAX_JSON_BYTES = 64 * 2**20
BATCH_BYTES = 8 * 2**20
MAX_BATCH_ROWS = 256
SKIP_BYTES = 2**20
PEEK_BYTES = 2**14
DAMAGE = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException)
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class FilePiece(NamedTuple):
    """A stretch of a file that one worker scans: bytes `[start, stop)` of plain JSON lines, otherwise the whole file (`None`)."""

    name: str
    url: str
    format: Format
    size_bytes: int
    start: int = 0
    stop: int | None = None


class Unread(NamedTuple):
    """What could not be read, and why: nothing is passed over in silence. A file without text is no fault."""

    file: str
    reason: str
    is_fault: bool


@dataclass
class Reading:
    """Goes through the documents of a piece once; numbers count from its start.

    Attributes:
        documents: how many there were so far.
        unread: why the rest was not read, if it was not.
    """

    piece: FilePiece
    documents: int = 0
    unread: list[Unread] = field(default_factory=list)

    def __iter__(self) -> Iterator[Document]:
        with open_watched(self.piece.url) as file:
            try:
                for id, text in _texts(self.piece, file):
                    yield Document(self.piece.name, self.documents, id, text)
                    self.documents += 1
            except (FileFault, *DAMAGE) as error:
                if isinstance(error, pa.ArrowMemoryError) or file.failure is not None:
                    raise
                self.unread.append(Unread(self.piece.name, str(error) or type(error).__name__, not isinstance(error, _NoText)))


class _NoText(FileFault):
    """An image, an archive, an array …"""


def format_of(name: str) -> Format:
    """How a file is read, by its name without what says that it is packed. What is not known is text."""
    parts = name.lower().rsplit("/", 1)[-1].split(".")
    while len(parts) > 1 and f".{parts[-1]}" in (".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz"):
        parts.pop()
    kinds: dict[str, Format] = {"jsonl": "jsonl", "ndjson": "jsonl", "jsonlines": "jsonl", "json": "json"}
    kinds |= {"parquet": "parquet", "pq": "parquet", "arrow": "arrow", "feather": "arrow"}
    return kinds.get(parts[-1], "text") if len(parts) > 1 else "text"


def _texts(piece: FilePiece, file: Any) -> Iterator[tuple[str, bytes]]:
    """The id, if it has one, and the text of each document."""
    match piece.format:
        case "jsonl":
            return map(_of_line, _lines(unpack(file, piece.url), piece.start, piece.stop))
        case "json":
            return _json(piece, unpack(file, piece.url))
        case "parquet":
            return map(_of_value, _parquet_rows(io.BufferedReader(file, BUFFER_BYTES)))
        case "arrow":
            return map(_of_value, _arrow_rows(io.BufferedReader(file, BUFFER_BYTES)))
        case "text":
            return (("", text) for text in _plain(unpack(file, piece.url)))


def _lines(stream: io.BufferedReader, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
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
            yield line


def _json(piece: FilePiece, stream: io.BufferedReader) -> Iterator[tuple[str, bytes]]:
    """A list's elements, else one value, else lines: files that are called .json are any of these."""
    content = stream.read(MAX_JSON_BYTES + 1)
    if len(content) <= MAX_JSON_BYTES:
        try:
            value = orjson.loads(content.removeprefix(b"\xef\xbb\xbf"))
        except orjson.JSONDecodeError:
            yield from map(_of_line, _lines(io.BufferedReader(io.BytesIO(content))))  # pyright: ignore[reportArgumentType]
        else:
            yield from map(_of_value, cast("list[object]", value) if isinstance(value, list) else [value])
        return
    del content
    with open_watched(piece.url) as again:
        yield from map(_of_line, _lines(unpack(again, piece.url)))


def _of_line(line: bytes) -> tuple[str, bytes]:
    try:
        return _of_value(orjson.loads(line.removeprefix(b"\xef\xbb\xbf")))
    except orjson.JSONDecodeError:
        return "", _as_utf8(line)


def _of_value(value: object) -> tuple[str, bytes]:
    """A row's own id, if it has one, and all its strings."""
    if not isinstance(value, dict):
        return "", "\n".join(_strings(value)).encode(errors="replace")
    row = cast("dict[str, object]", value)
    id, first = row.get("id"), row.get(TEXT_KEY)
    rest = {name: found for name, found in row.items() if name not in ("id", TEXT_KEY) or (name == TEXT_KEY and not isinstance(first, str))}
    strings = [first, *_strings(rest)] if isinstance(first, str) else list(_strings(rest))
    return str(id) if isinstance(id, str | int) else "", "\n".join(strings).encode(errors="replace")


def _strings(value: object) -> Iterator[str]:
    """Every string in a value, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        if b"\0" not in value[:PEEK_BYTES]:
            yield value.decode(errors="replace")
    elif isinstance(value, dict):
        for each in cast("dict[object, object]", value).values():
            yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in cast("list[object]", value):
            yield from _strings(each)


def _parquet_rows(file: io.BufferedReader) -> Iterator[object]:
    table = pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
    columns = [column.name for column in table.schema_arrow if _may_hold_text(column.type)]
    for number in range(table.num_row_groups if columns else 0):
        group = table.metadata.row_group(number)
        rows = _batch_rows(group.total_byte_size, group.num_rows)
        for batch in table.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
            yield from _rows(batch)


def _arrow_rows(file: io.BufferedReader) -> Iterator[object]:
    """Arrow's file format and its stream format: a file is a stream between a start and a table of contents."""
    is_file = file.read(len(FILE_START)) == FILE_START
    size = file.seek(0, io.SEEK_END)
    file.seek(8 if is_file else 0)
    check_next_batch(file, size)
    stream = pa.ipc.open_stream(pa.PythonFile(file, "r"))
    while (batch_bytes := check_next_batch(file, size)) != NO_MORE:
        batch = stream.read_next_batch()
        step = _batch_rows(batch_bytes, batch.num_rows)
        columns = [column.name for column in batch.schema if _may_hold_text(column.type)]
        for start in range(0, batch.num_rows if columns else 0, step):
            yield from _rows(batch.slice(start, step).select(columns))


def _rows(batch: pa.RecordBatch) -> Iterator[object]:
    """Rows as objects. Texts stay bytes until they are decoded one by one: Arrow decodes a column as a whole or not at all."""
    values: list[Sequence[object]] = []
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            raw: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
            values.append([None if text is None else text.decode(errors="replace") for text in raw])
        else:
            values.append(column.to_pylist())
    for row in zip(*values, strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))


def _may_hold_text(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.DictionaryType):
        return _may_hold_text(type_.value_type)
    if pa.types.is_nested(type_):
        return any(_may_hold_text(type_.field(place).type) for place in range(type_.num_fields))
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(type_) for is_kind in kinds) or pa.types.is_binary(type_) or pa.types.is_large_binary(type_)


def _batch_rows(size_bytes: int, rows: int) -> int:
    return max(1, min(MAX_BATCH_ROWS, BATCH_BYTES * rows // max(1, size_bytes)))


def _plain(stream: io.BufferedReader) -> Iterator[bytes]:
    """A text as one document; one too long to be held is cut at line ends, and the pieces are neighbours.

    Raises:
        _NoText: it is none.
    """
    if (start := stream.peek(PEEK_BYTES)[:PEEK_BYTES])[:2] in UTF_16_MARKS:
        yield stream.read(MAX_DOCUMENT_BYTES).decode("utf-16", errors="replace").encode()
        return
    if b"\0" in start:
        raise _NoText("unreadable", "it is not text")
    rest = b""
    while chunk := stream.read(MAX_DOCUMENT_BYTES - len(rest)):
        content = rest + chunk
        cut = content.rfind(b"\n") + 1 if len(content) == MAX_DOCUMENT_BYTES else 0
        content, rest = (content[:cut], content[cut:]) if cut else (content, b"")
        yield _as_utf8(content)
    if rest:
        yield _as_utf8(rest)


def _as_utf8(raw: bytes) -> bytes:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="replace").encode()
    return raw
