"""Parquet and Arrow, a few rows at a time.

What a file claims is not believed: texts are decoded row by row, so that one bad row costs no other, offsets are checked before they are
followed, and what repeats one value a million times is not unrolled. Of Parquet one page is held (1 MiB as most writers make them), of
Arrow one record batch.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from phasewise.tasks.data.formats.arrow_messages import FILE_START, NO_MORE, check_next_batch
from phasewise.tasks.data.formats.expansion import check_expansion
from phasewise.tasks.data.formats.findings import MAX_DOCUMENT_BYTES, Fault, FileFault, Finding, Record, Sift, reason_against, sample_of
from phasewise.tasks.data.formats.kinds import PARQUET_MAGIC
from phasewise.tasks.data.formats.parquet_footer import Chunk, RowGroup, read_footer
from phasewise.tasks.data.formats.parquet_pages import check_pages
from phasewise.tasks.data.formats.streams import BUFFER_BYTES

BATCH_BYTES = 8 * 2**20
DELTA_BATCH_BYTES = 2**26  # at most, and seldom
MAX_BATCH_ROWS = 64
MAX_INDEX_ROWS = 4096
MAX_INDEX_BYTES = 8  # a value; more cannot be an index alone
MAX_HELD_BYTES = 2**28  # of the pages of a row group at once; or of one whose rows average above the longest document
ColumnPath = tuple[str, ...]


def read_parquet(file: io.BufferedReader, *, text_key: str, field_keys: Sequence[str], sift: Sift) -> Iterator[Finding]:
    """What the rows hold.

    Raises:
        FileFault: the file is truncated or has no row, a column is missing or holds no text, or it expands too much.
    """
    size = size_between(file, PARQUET_MAGIC, 8)
    groups = read_footer(file, size)
    check_has_rows(sum(group.num_rows for group in groups))
    table = pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
    rows = _Rows.build(table.schema_arrow, text_key=text_key, field_keys=field_keys, sift=sift, file_bytes=size)
    chunks = [_column_chunks(group, rows.columns) for group in groups]
    check_expansion(sum(chunk.unpacked_bytes for group in chunks for chunk in group.values()), size)
    indices = pq.ParquetFile(
        file, metadata=table.metadata, buffer_size=BUFFER_BYTES, pre_buffer=False, read_dictionary=[".".join(rows.text)]
    )  # fmt: skip
    unpacked_bytes = 0
    for number, group in enumerate(chunks):
        chunk = group[rows.columns[0]]
        rows.beside = _filled_beside(table, number, rows.text)
        if chunk.unpacked_bytes > max(MAX_HELD_BYTES, MAX_DOCUMENT_BYTES * chunk.num_values):
            yield from rows.passed_over(chunk)
            continue
        held_bytes, all_bytes = check_pages(file, group.values(), max_held_bytes=MAX_HELD_BYTES)
        unpacked_bytes += all_bytes
        check_expansion(unpacked_bytes, size)
        by_index = is_index(chunk)
        at_once = MAX_INDEX_ROWS if by_index else batch_rows(chunk.unpacked_bytes, chunk.num_values)
        if chunk.has_deltas:
            at_once = rows_of_deltas(at_once, held_bytes)
        reader = indices if by_index else table
        for batch in reader.iter_batches(at_once, row_groups=[number], columns=rows.columns, use_threads=False):
            yield from rows.findings(batch)


def read_arrow(file: io.BufferedReader, *, text_key: str, field_keys: Sequence[str], sift: Sift) -> Iterator[Finding]:
    """What the rows hold, of Arrow's file format and of its stream format: a file is a stream between a start and a table of contents.

    Raises:
        FileFault: as `read_parquet`.
    """
    stream = ArrowStream.open(file)
    rows = _Rows.build(stream.schema, text_key=text_key, field_keys=field_keys, sift=sift, file_bytes=stream.size_bytes)
    beside = text_columns(stream.schema, rows.text)
    for batch, step in stream.batches():
        rows.beside = tuple(name for name in beside if batch.column(name).null_count < batch.num_rows)
        for start in range(0, batch.num_rows, step):
            yield from rows.findings(batch.slice(start, step))
    check_has_rows(rows.row)


@dataclass(frozen=True)
class ArrowStream:
    """An open file in either of Arrow's formats, past its start. No message is read whose claims were not checked."""

    file: io.BufferedReader
    size_bytes: int
    reader: pa.ipc.RecordBatchStreamReader

    @classmethod
    def open(cls, file: io.BufferedReader) -> "ArrowStream":
        """Read up to the schema.

        Raises:
            FileFault: the file is truncated, or has no bytes.
        """
        is_file = FILE_START.startswith(file.read(len(FILE_START)) or b"none")
        size = size_between(file, FILE_START, 2 * len(FILE_START)) if is_file else file.seek(0, io.SEEK_END)
        if size == 0:
            raise FileFault("empty file", "it has no bytes")
        file.seek(8 if is_file else 0)
        check_next_batch(file, size)
        return cls(file, size, pa.ipc.open_stream(pa.PythonFile(file, "r")))

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self.reader.schema

    def batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Every record batch, and how many of its rows are looked at together.

        Raises:
            FileFault: a batch claims more than the file can hold.
        """
        while (batch_bytes := check_next_batch(self.file, self.size_bytes)) != NO_MORE:
            batch = self.reader.read_next_batch()
            batch.validate()
            yield batch, batch_rows(batch_bytes, batch.num_rows)


@dataclass
class _Rows:
    """The rows of one file, counted.

    Attributes:
        text, fields: where the text and the filters' fields are.
        row: rows that were read.
        text_bytes: of their texts.
        beside: the other columns of text that are not null throughout the row group, or the record batch.
    """

    text: ColumnPath
    fields: Mapping[str, ColumnPath]
    sift: Sift
    file_bytes: int
    row: int = 0
    text_bytes: int = 0
    beside: tuple[str, ...] = ()

    @classmethod
    def build(cls, schema: pa.Schema, *, text_key: str, field_keys: Sequence[str], sift: Sift, file_bytes: int) -> "_Rows":
        text, text_type = _find(schema, text_key)
        if not _is_text(text_type):
            raise FileFault("wrong type", f"column {text_key!r} holds {text_type}, not text")
        return cls(text, {key: _find(schema, key)[0] for key in field_keys}, sift, file_bytes)

    @property
    def columns(self) -> list[str]:
        """Their names in Parquet, the text's first."""
        return [".".join(path) for path in (self.text, *self.fields.values())]

    def findings(self, batch: pa.RecordBatch) -> Iterator[Finding]:
        texts = raw_values(_column(batch, self.text))
        self.text_bytes += sum(len(raw) for raw in texts if raw is not None)
        check_expansion(self.text_bytes, self.file_bytes)
        fields = [dict(zip(self.fields, values, strict=True)) for values in zip(*self._field_values(batch), strict=True)]
        for number, raw in enumerate(texts):
            where = f"row {self.row}"
            self.row += 1
            raw = raw or b""  # null is a text without characters
            if len(raw) > MAX_DOCUMENT_BYTES:
                yield Fault("too long", where, sample_of(raw))
            else:
                try:
                    text = raw.decode()
                except UnicodeDecodeError:
                    yield Fault(reason_against(raw), where, sample_of(raw))
                else:
                    found = self.sift(text, where, fields[number] if fields else {})
                    yield found._replace(beside=self.beside) if self.beside and isinstance(found, Record) else found

    def passed_over(self, chunk: Chunk) -> Iterator[Finding]:
        """A row group whose rows average above the longest document: to find a short one among them, all might have to be held."""
        for _ in range(chunk.num_values):
            yield Fault("too long", f"row {self.row}", f"{chunk.unpacked_bytes} bytes in {chunk.num_values} rows of its row group")
            self.row += 1

    def _field_values(self, batch: pa.RecordBatch) -> Iterator[Sequence[object]]:
        for path in self.fields.values():
            column = _column(batch, path)
            if _is_text(column.type):
                yield [raw if raw is None else raw.decode(errors="replace") for raw in raw_values(column)]
            else:
                column.validate(full=True)
                yield column.to_pylist()


def check_has_rows(count: int) -> None:
    """End the reading of a table without rows, whatever its columns are.

    Raises:
        FileFault: it has none.
    """
    if count == 0:
        raise FileFault("empty file", "it has no rows")


def size_between(file: io.BufferedReader, magic: bytes, least: int) -> int:
    """The size of a file that must begin and end with `magic`."""
    size = file.seek(0, io.SEEK_END)
    if size == 0:
        raise FileFault("empty file", "it has no bytes")
    file.seek(0)
    start = file.read(len(magic))
    file.seek(max(0, size - len(magic)))
    if magic.startswith(start) and (size < least or file.read() != magic):
        raise FileFault("truncated", f"the file begins with {start!r} and does not end with it")
    file.seek(0)
    return size


def _column_chunks(group: RowGroup, names: Sequence[str]) -> dict[str, Chunk]:
    """Name → what is said of that column in a row group, by name."""
    found = {chunk.path: chunk for chunk in group.chunks if chunk.path in names}
    if missing := [name for name in names if name not in found]:
        raise FileFault("unreadable", f"its footer has no column {missing[0]!r} in every row group")
    return found


def is_index(chunk: Chunk) -> bool:
    """Whether the values are, or may be, no more than indices into a dictionary: these are left as they are, for a few bytes of index may
    stand for megabytes of text. Others are not made into a dictionary, which takes ten times as long."""
    if chunk.dictionary_bytes is None:
        return False
    return chunk.packed_bytes - chunk.dictionary_bytes < MAX_INDEX_BYTES * chunk.num_values


def rows_of_deltas(rows: int, page_bytes: int) -> int:
    """Of at most `rows` how many are read at once where a page of this size may hold the longest value in each."""
    return max(1, min(rows, DELTA_BATCH_BYTES // max(1, page_bytes)))


def batch_rows(size_bytes: int, rows: int) -> int:
    """How many rows of this average size are read at once."""
    return max(1, min(MAX_BATCH_ROWS, BATCH_BYTES * rows // max(1, size_bytes)))


def _find(schema: pa.Schema, key: str) -> tuple[ColumnPath, pa.DataType]:
    """Where a key's column is, by names, and its type. A column whose own name has the dots comes first."""
    path = (key,) if key in schema.names else tuple(key.split("."))
    level: Any = schema
    for name in path:
        place = level.get_field_index(name) if isinstance(level, pa.Schema | pa.StructType) else -1
        if place < 0:
            raise FileFault("missing key", f"no one column {key!r} among {', '.join(schema.names)}")
        level = level.field(place) if isinstance(level, pa.Schema) else level[place]
        level = level.type
    return path, level


def text_columns(schema: pa.Schema, text: ColumnPath) -> list[str]:
    """The columns of text but the one that `text` names or lies in."""
    types = {field.name: field.type.value_type if isinstance(field.type, pa.DictionaryType) else field.type for field in schema}
    strings = (pa.string(), pa.large_string(), pa.string_view())
    return [name for name, type_ in types.items() if name != text[0] and type_ in strings and schema.get_field_index(name) >= 0]


def _filled_beside(table: pq.ParquetFile, group: int, text: ColumnPath) -> tuple[str, ...]:
    """The other columns of text that are not null throughout a row group, as far as its statistics say."""
    names = set(text_columns(table.schema_arrow, text))
    row_group = table.metadata.row_group(group)
    filled: list[str] = []
    for number in range(row_group.num_columns) if names else ():
        column = row_group.column(number)
        statistics: Any = column.statistics if column.is_stats_set else None
        is_null = statistics is not None and statistics.has_null_count and statistics.null_count >= row_group.num_rows
        if column.path_in_schema in names and not is_null:
            filled.append(column.path_in_schema)
    return tuple(filled)


def _column(batch: pa.RecordBatch, path: ColumnPath) -> pa.Array:
    column: Any = batch.column(batch.schema.get_field_index(path[0]))
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


_TEXT_TYPES: dict[pa.DataType, pa.DataType] = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.large_binary(),
    pa.binary_view(): pa.binary_view(),
    pa.null(): pa.null(),
}


def _is_text(type_: pa.DataType) -> bool:
    return (type_.value_type if isinstance(type_, pa.DictionaryType) else type_) in _TEXT_TYPES


def raw_values(column: Any) -> list[bytes | None]:
    """Bytes as they are: Arrow decodes a column as a whole or not at all. Values of a dictionary are not unrolled."""
    if isinstance(column.type, pa.DictionaryType):
        values = raw_values(column.dictionary)
        indices = pa.DictionaryArray.from_arrays(column.indices, pa.nulls(len(values)), safe=True).indices  # checked against the values
        return [None if index is None else values[index] for index in indices.to_pylist()]
    raw = column.view(_TEXT_TYPES[column.type])
    raw.validate(full=True)
    return raw.to_pylist()
