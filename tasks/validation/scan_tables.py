"""Rows of Parquet and Arrow as texts to be scanned: every column that may hold text, a few rows at a time, in bounded memory."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from phasewise.tasks.data.formats.arrow_messages import FILE_START, NO_MORE, check_next_batch
from phasewise.tasks.data.formats.expansion import check_expansion
from phasewise.tasks.data.formats.findings import FileFault
from phasewise.tasks.data.formats.kinds import PARQUET_MAGIC
from phasewise.tasks.data.formats.parquet_footer import RowGroup, read_footer
from phasewise.tasks.data.formats.parquet_pages import check_pages
from phasewise.tasks.data.formats.streams import BUFFER_BYTES
from phasewise.tasks.data.formats.tables import BATCH_BYTES, MAX_HELD_BYTES, is_index, rows_of_deltas, size_between
from phasewise.tasks.validation.scan_columns import Strings, may_hold_text, strings_of
from phasewise.tasks.validation.scan_values import ID_KEY, TEXT_KEY, Text, texts_of

MAX_BATCH_ROWS = 256
VALUE_BYTES = 16  # of an entry of a list: an index, its validity, its place
MAX_SHOWN_COLUMNS = 5


class NoText(FileFault):
    """What holds no text by its nature: an image, an array, a table of numbers."""

    def __init__(self, found: str):
        super().__init__("unreadable", found)


def parquet_texts(file: io.BufferedReader) -> Iterator[Text]:
    """The rows' texts.

    Raises:
        FileFault: the file is truncated, expands too much, or would take too much memory.
        NoText: no column may hold any.
    """
    size = size_between(file, PARQUET_MAGIC, 8)
    footer = read_footer(file, size)
    table = pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
    columns = _columns_of(table.schema_arrow)
    wanted = set(columns) if _are_distinct(table.schema_arrow.names) else None  # without distinct names all columns are read
    groups = [_TextChunks(group, wanted) for group in footer]
    check_expansion(sum(group.claimed_bytes for group in groups), size)
    readers: dict[frozenset[str], Any] = {frozenset(): table}
    unpacked_bytes = 0
    texts = _Texts(size)
    for number, group in enumerate(groups):
        held_bytes, all_bytes = check_pages(file, group.chunks, max_held_bytes=MAX_HELD_BYTES)
        unpacked_bytes += all_bytes
        check_expansion(unpacked_bytes, size)
        if group.indices not in readers:
            readers[group.indices] = _reader_of_indices(file, table, group.indices)
        batches = readers[group.indices].iter_batches(
            group.batch_rows(held_bytes), row_groups=[number], columns=columns if wanted else None, use_threads=False
        )
        for batch in batches:
            yield from texts.of_batch(batch)


def arrow_texts(file: io.BufferedReader) -> Iterator[Text]:
    """The rows' texts, of Arrow's file format and its stream format: a file is a stream between a start and a table of contents.

    Raises:
        FileFault, NoText: as `parquet_texts`.
    """
    is_file = file.read(len(FILE_START)) == FILE_START
    size = size_between(file, FILE_START, 2 * len(FILE_START)) if is_file else file.seek(0, io.SEEK_END)
    file.seek(8 if is_file else 0)
    check_next_batch(file, size)
    stream = pa.ipc.open_stream(pa.PythonFile(file, "r"))
    _columns_of(stream.schema)
    texts = _Texts(size)
    while (batch_bytes := check_next_batch(file, size)) != NO_MORE:
        batch = stream.read_next_batch()
        batch.validate()
        step = _batch_rows(batch_bytes, batch.num_rows)
        for start in range(0, batch.num_rows, step):
            yield from texts.of_batch(batch.slice(start, step))


def _columns_of(schema: pa.Schema) -> list[str]:
    """The columns that may hold text."""
    columns = [column.name for column in schema if may_hold_text(column.type)]
    if not columns:
        shown = ", ".join(schema.names[:MAX_SHOWN_COLUMNS]) or "none at all"
        raise NoText(f"no column may hold text: {shown}")
    return columns


def _are_distinct(names: Sequence[str]) -> bool:
    """Whether columns can be asked for by name."""
    return len(set(names)) == len(names) and not any("." in name for name in names)


def _reader_of_indices(file: io.BufferedReader, table: Any, paths: frozenset[str]) -> Any:
    """Reads these columns as indices into their dictionaries: a few bytes of index may stand for megabytes of text."""
    return pq.ParquetFile(file, metadata=table.metadata, buffer_size=BUFFER_BYTES, pre_buffer=False, read_dictionary=sorted(paths))


class _TextChunks:
    """What a row group says of the columns that are read.

    Attributes:
        chunks: the metadata of each.
        claimed_bytes: of them, unpacked.
        indices: the paths of those whose values are, or may be, no more than indices.
    """

    def __init__(self, group: RowGroup, wanted: set[str] | None):
        self._rows = group.num_rows
        self.chunks = [chunk for chunk in group.chunks if wanted is None or chunk.path.split(".")[0] in wanted]
        of_text = [chunk for chunk in self.chunks if chunk.is_text]
        self.indices = frozenset(chunk.path for chunk in of_text if is_index(chunk))
        entries = sum(VALUE_BYTES * chunk.num_values for chunk in self.chunks if chunk.num_values > self._rows)
        self.claimed_bytes: int = sum(chunk.unpacked_bytes for chunk in self.chunks) + entries
        self._deltas = any(chunk.has_deltas for chunk in of_text)

    def batch_rows(self, held_bytes: int) -> int:
        """How many rows are read at a time."""
        rows = _batch_rows(self.claimed_bytes, self._rows)
        return rows_of_deltas(rows, held_bytes) if self._deltas else rows


class _Texts:
    """Rows as texts, measured against the file that they come of."""

    def __init__(self, file_bytes: int):
        self._file_bytes = file_bytes
        self._text_bytes = 0

    def of_batch(self, batch: pa.RecordBatch) -> Iterator[Text]:
        names = batch.schema.names
        text = names.index(TEXT_KEY) if TEXT_KEY in names else None
        id = names.index(ID_KEY) if ID_KEY in names else None
        ids = _ids(batch.column(id)) if id is not None else [None] * batch.num_rows
        order = [] if text is None else [text]
        order += [place for place in range(len(names)) if place not in (text, id)]
        columns = [strings_of(batch.column(place)) for place in order]
        for row, own_id in enumerate(ids):
            found = [one for column in columns for one in column[row]]
            self._text_bytes += sum(map(len, found))
            check_expansion(self._text_bytes, self._file_bytes)
            yield from texts_of(own_id, found)


def _ids(column: Any) -> list[Any]:
    """Names and numbers as they are; of anything else its strings."""
    if pa.types.is_integer(column.type):
        return column.to_pylist()
    return [_id(found) for found in strings_of(column)]


def _id(found: Strings) -> Any:
    return found[0] if len(found) == 1 else list(found)


def _batch_rows(size_bytes: int, rows: int) -> int:
    return max(1, min(MAX_BATCH_ROWS, BATCH_BYTES * rows // max(1, size_bytes)))
