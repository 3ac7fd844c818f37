"""Files as documents for the scan. The first bytes of a file decide its format, not its name.

A document is a line of JSON lines, an element of a JSON list, a row of a table, a record of a WARC, or a whole text, also in packed files
and archives. Its text is all strings of the line or row. Unparsable input is scanned unchanged, and unread files are reported.

`tasks/data/reading.py` is another reader, for training: it takes one key of a row and rejects damaged rows. Both share the code for
formats, packing, archives, footers and limits (`tasks/data`).
"""

import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from phasewise.tasks.data.archives import MAX_LAYERS, members, unpack
from phasewise.tasks.data.findings import FileFault, check_expansion
from phasewise.tasks.data.listing import matches
from phasewise.tasks.data.streams import Recognised, WatchedFile, is_text, open_watched, recognise
from phasewise.tasks.data.tables import TableFormat, open_table
from phasewise.tasks.data.text_files import BYTE_ORDER_MARK
from phasewise.tasks.validation.scan_texts import (
    ID_KEY,
    PEEK_BYTES,
    TEXT_KEY,
    Text,
    read_json,
    read_lines,
    read_text,
    texts_of,
    transcoded,
    warc_records,
)
from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.leakage.scan import Document

MAX_SHOWN_COLUMNS, FIELD_PEEK_BYTES = 5, 2**14
Strings = Sequence[str]
NONE: Strings = ()
_RAW_TYPES: dict[pa.DataType, pa.DataType] = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
_BINARY_TYPES = (pa.binary(), pa.large_binary(), pa.binary_view())


class NoText(FileFault):
    """A file without text: an image, an array, a table of numbers."""


def may_hold_text(type_: pa.DataType) -> bool:
    """Return whether a column of this type has strings, or bytes that may be text."""
    if isinstance(type_, pa.DictionaryType | pa.RunEndEncodedType):
        return may_hold_text(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return may_hold_text(type_.storage_type)
    if pa.types.is_nested(type_):
        return any(may_hold_text(type_.field(place).type) for place in range(type_.num_fields))
    return type_ in _RAW_TYPES or type_ in _BINARY_TYPES or pa.types.is_fixed_size_binary(type_)


def strings_of(column: Any) -> list[Strings]:
    """Return the strings of each row, in order."""
    type_ = column.type
    if not may_hold_text(type_):
        return [NONE] * len(column)
    if isinstance(type_, pa.BaseExtensionType):
        return strings_of(column.storage)
    if pa.types.is_run_end_encoded(type_):
        column.validate(full=True)
        return strings_of(pc.run_end_decode(column))  # pyright: ignore[reportAttributeAccessIssue]  # the stubs lack it
    if pa.types.is_dictionary(type_):
        # rows share values, and every batch has all values, so only used values are decoded
        checked = pa.DictionaryArray.from_arrays(column.indices, pa.nulls(len(column.dictionary)), safe=True).indices
        used = checked.unique().drop_null()
        values = dict(zip(used.to_pylist(), strings_of(column.dictionary.take(used)), strict=True))
        return [NONE if index is None else values[index] for index in checked.to_pylist()]
    if pa.types.is_struct(type_):
        column.validate()
        return [list(chain.from_iterable(row)) for row in zip(*(strings_of(child) for child in column.flatten()), strict=True)]
    if pa.types.is_union(type_):
        column.validate(full=True)
        children = {code: strings_of(column.field(place)) for place, code in enumerate(type_.type_codes)}
        codes = _numbers(column, pa.int8(), 1)
        rows = _numbers(column, pa.int32(), 2) if type_.mode == "dense" else range(len(column))
        return [children[code][row] for code, row in zip(codes, rows, strict=True)]
    if pa.types.is_nested(type_):
        values, spans = _spans(column)
        found, valid = strings_of(values), column.is_valid().to_pylist()
        return [
            list(chain.from_iterable(found[start:stop])) if is_valid else NONE for (start, stop), is_valid in zip(spans, valid, strict=True)
        ]
    is_binary = type_ not in _RAW_TYPES
    raw = column if is_binary else column.view(_RAW_TYPES[type_])
    raw.validate(full=True)
    return [
        NONE
        if value is None or (is_binary and not is_text(value[:FIELD_PEEK_BYTES], cut=len(value) > FIELD_PEEK_BYTES))
        else (value.decode(errors="replace"),)
        for value in raw.to_pylist()
    ]


def _spans(column: Any) -> tuple[Any, list[tuple[int, int]]]:
    """Return the values of lists or maps, and the span of each row. The keys of a map count as values, because a key may be a question."""
    type_, count = column.type, len(column)
    if pa.types.is_fixed_size_list(type_):
        column.validate()
        size = type_.list_size
        return column.values.slice(column.offset * size, count * size), [(row * size, (row + 1) * size) for row in range(count)]
    if pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_):  # spans in any order, which may overlap
        column.validate(full=False)
        spans = [(start, start + size) for start, size in zip(column.offsets.to_pylist(), column.sizes.to_pylist(), strict=True)]
        if any(not 0 <= start <= stop <= len(column.values) for start, stop in spans):
            raise pa.ArrowInvalid("the offsets of a list view lead out of its values")
        return column.values, spans
    column.validate()
    is_map = pa.types.is_map(type_)
    values: Any = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"]) if is_map else column.values
    offsets: list[int] = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    if any(earlier > later for earlier, later in pairwise(offsets)) or not 0 <= first <= last <= len(values):
        raise pa.ArrowInvalid("the offsets of a list lead out of its values")
    return values.slice(first, last - first), [(start - first, stop - first) for start, stop in pairwise(offsets)]


def _numbers(column: Any, type_: pa.DataType, buffer: int) -> list[int]:
    """Return a union's buffer of a slice: pyarrow's `type_codes` and `offsets` ignore the slice."""
    numbers: Any = pa.Array.from_buffers(type_, len(column), [None, column.buffers()[buffer]], offset=column.offset)
    return numbers.to_pylist()


def table_texts(file: io.BufferedReader, table_format: TableFormat) -> Iterator[Text]:
    """Yield the rows of a table as texts."""
    file_bytes, text_bytes = file.seek(0, io.SEEK_END), 0
    with open_table(file, table_format) as table:
        names = table.schema.names
        columns = [column.name for column in table.schema if may_hold_text(column.type)]
        if not columns:
            raise NoText("unreadable", f"no column may hold text: {', '.join(names[:MAX_SHOWN_COLUMNS]) or 'none at all'}")
        are_distinct = len(set(names)) == len(names) and not any("." in name for name in names)
        for batch, _ in table.batches(columns if are_distinct else None):
            names = batch.schema.names
            text, id = (names.index(key) if key in names else None for key in (TEXT_KEY, ID_KEY))
            ids: list[Any] = [None] * batch.num_rows
            if id is not None:  # numbers, and the strings of other values
                column: Any = batch.column(id)
                is_number = pa.types.is_integer(column.type)
                ids = column.to_pylist() if is_number else [one[0] if len(one) == 1 else list(one) for one in strings_of(column)]
            order = [*([] if text is None else [text]), *(place for place in range(len(names)) if place not in (text, id))]
            found = [strings_of(batch.column(place)) for place in order]
            for row, own_id in enumerate(ids):
                strings = [one for column in found for one in column[row]]
                text_bytes += sum(map(len, strings))
                check_expansion(text_bytes, file_bytes)
                yield from texts_of(own_id, strings)


DAMAGE = (FileFault, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException, OverflowError, RecursionError)
INSIDE, MAX_UNREAD = "!/", 1000
LINE_ENDINGS = (".jsonl", ".ndjson", ".jsonlines")


class FilePiece(NamedTuple):
    """A part of a file for one worker."""

    name: str  # for people
    url: str
    below: str  # the path below the given folder, for globs
    size_bytes: int
    start: int = 0  # start, stop: the byte range of plain JSON lines. `stop` is None for a whole file.
    stop: int | None = None
    exclude: tuple[str, ...] = ()  # globs over names of files and of archive members


class Unread(NamedTuple):
    """An unread file or member with the reason. Files without text and excluded files are not faults."""

    file: str
    reason: str
    is_fault: bool
    excluded_by: str | None = None


def excluded(name: str, below: str, globs: tuple[str, ...]) -> Unread | None:
    """Return an `Unread` if one of the globs matches."""
    glob = next((glob for glob in globs if matches(glob, below)), None)
    return Unread(name, f"excluded by {glob}", is_fault=False, excluded_by=glob) if glob else None


def is_called_lines(name: str) -> bool:
    """Return whether a name has an extension of JSON lines."""
    parts = name.lower().rsplit("/", 1)[-1].split(".")
    return any(f".{part}" in LINE_ENDINGS for part in parts[1:][-2:])


@dataclass
class Reading:
    """An iterable of the documents of a piece, which are numbered from its start."""

    piece: FilePiece
    documents: int = 0
    unread: list[Unread] = field(default_factory=list)
    _more: int = 0

    def __iter__(self) -> Iterator[Document]:
        piece = self.piece
        try:
            with open_watched(piece.url) as file:
                yield from self._guarded(file, piece.name, lambda: recognise(file), 0)
        except DataError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise
            self._say(Unread(piece.name, str(error), is_fault=True))

    def _guarded(self, file: WatchedFile, name: str, look: Callable[[], Recognised], depth: int) -> Iterator[Document]:
        """Yield the documents of a file or member, and report an error that is a fault of the file."""
        try:
            yield from self._documents(file, name, look(), depth)
        except NoText as found:
            self._say(Unread(name, str(found), is_fault=False))
        except DAMAGE as error:
            if isinstance(error, pa.ArrowMemoryError) or file.failure is not None:
                raise
            self._say(Unread(name, str(error) or type(error).__name__, is_fault=True))

    def _documents(self, file: WatchedFile, name: str, layer: Recognised, depth: int) -> Iterator[Document]:
        (kind, stream), piece = layer, self.piece
        if piece.stop is not None:
            yield from self._numbered(name, read_lines(stream, piece.start, piece.stop))
            return
        if kind.nature in ("packed", "archive", "warc") and depth == MAX_LAYERS:
            raise FileFault("other format", f"it is packed more than {MAX_LAYERS} times, one in the other: unpack it")
        match kind.nature:
            case "packed":
                yield from self._documents(file, name, recognise(unpack(file, stream, kind.name)), depth + 1)
            case "archive" | "warc":
                member = None
                for member in members(kind.name, file, stream) if kind.nature == "archive" else warc_records(file, stream):
                    inner = f"{name}{INSIDE}{member.name}"
                    if is_out := excluded(inner, f"{piece.below}{inner.removeprefix(piece.name)}", piece.exclude):
                        self._say(is_out)
                    elif member.no_text:
                        self._say(Unread(inner, member.no_text, is_fault=False))
                    else:
                        yield from self._guarded(file, inner, lambda member=member: recognise(member.open()), depth + 1)
                if member is None:
                    raise NoText("unreadable", f"the {kind.name} has no file in it")
            case "text" | "wide text":
                stream = transcoded(stream, kind.name) if kind.nature == "wide text" else stream
                texts = read_lines(stream) if is_called_lines(name) else None
                if texts is None:  # JSON may have any name
                    is_json = stream.peek(PEEK_BYTES).removeprefix(BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"[")
                    texts = read_json(stream) if is_json else read_text(stream)
                yield from self._numbered(name, texts)
            case "parquet" | "arrow":
                with file.spooled(stream) as table:
                    yield from self._numbered(name, table_texts(table, kind.nature))
            case "empty":
                return
            case "no text":
                raise NoText("unreadable", f"{kind.name} holds no text")
            case _:
                raise FileFault("other format", f"not read: it is {kind.name}. Unpack or convert it, or exclude it with --exclude")

    def _numbered(self, name: str, texts: Iterator[Text]) -> Iterator[Document]:
        """Yield texts as numbered documents of the piece. Report documents that are not readable, and files without any text."""
        garbled = with_text = count = 0
        for text in texts:
            yield Document(name, self.documents, text.id, text.text)
            self.documents += 1
            count += 1
            garbled += not text.readable
            with_text += bool(text.text)
        if garbled:
            what = f"{garbled} of its {count} documents are neither text nor anything else that is known: scanned as they stand"
            self._say(Unread(name, what, is_fault=True))
        if count and not with_text:
            self._say(Unread(name, f"none of its {count} documents has any text", is_fault=False))

    def _say(self, unread: Unread) -> None:
        if len(self.unread) < MAX_UNREAD:
            self.unread.append(unread)
            return
        self._more += 1
        is_fault = unread.is_fault or (self._more > 1 and self.unread[-1].is_fault)
        self.unread[MAX_UNREAD:] = [Unread(self.piece.name, f"{self._more} more of its members", is_fault)]
