"""Parquet and Arrow whose rows are records with lists and objects in them, such as conversations: some columns, a few rows at a time.

As in `tables.py` what a file claims is not believed, and one bad row costs no other. What is held is bounded by what the pages claim: a
value that a dictionary repeats counts each time.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.formats.expansion import check_expansion
from tasks.data.formats.findings import MAX_DOCUMENT_BYTES, Fault, FileFault, Finding, sample_of
from tasks.data.formats.kinds import PARQUET_MAGIC
from tasks.data.formats.parquet_footer import Chunk, RowGroup, read_footer
from tasks.data.formats.parquet_pages import check_pages
from tasks.data.formats.streams import BUFFER_BYTES
from tasks.data.formats.tables import MAX_HELD_BYTES, ArrowStream, batch_rows, is_index, size_between

TakeRow = Callable[[Mapping[str, object], str], Finding]
"""A row's columns by name, and where it is → what it holds."""


def read_parquet_records(file: io.BufferedReader, *, keys: Sequence[str], take: TakeRow) -> Iterator[Finding]:
    """What the rows hold, of the columns that the keys are in.

    Raises:
        FileFault: the file is truncated or has no row, a column is missing, or it expands too much.
    """
    size = size_between(file, PARQUET_MAGIC, 8)
    groups = read_footer(file, size)
    table = pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
    columns = _columns(table.schema_arrow, keys)
    chunks = [_chunks(group, columns) for group in groups]
    check_expansion(sum(chunk.unpacked_bytes for group in chunks for chunk in group), size)
    row = unpacked_bytes = 0
    for number, group in enumerate(chunks):
        num_rows, held = groups[number].num_rows, sum(_most_bytes(chunk) for chunk in group)
        if held > max(MAX_HELD_BYTES, MAX_DOCUMENT_BYTES * num_rows):
            yield from (Fault("too long", f"row {row + n}", f"{held} bytes in {num_rows} rows of its row group") for n in range(num_rows))
            row += num_rows
            continue
        unpacked_bytes += check_pages(file, group, max_held_bytes=MAX_HELD_BYTES)[1]
        check_expansion(unpacked_bytes, size)
        for batch in table.iter_batches(batch_rows(held, num_rows), row_groups=[number], columns=columns, use_threads=False):
            yield from _findings(batch, row, take)
            row += batch.num_rows
    _check_not_empty(row)


def read_arrow_records(file: io.BufferedReader, *, keys: Sequence[str], take: TakeRow) -> Iterator[Finding]:
    """What the rows hold, of Arrow's file format and of its stream format.

    Raises:
        FileFault: as `read_parquet_records`.
    """
    stream = ArrowStream.open(file)
    columns = _columns(stream.schema, keys)
    row = 0
    for batch, step in stream.batches():
        chosen = batch.select(columns)
        for start in range(0, batch.num_rows, step):
            yield from _findings(chosen.slice(start, step), row + start, take)
        row += batch.num_rows
    _check_not_empty(row)


class _Read(NamedTuple):
    record: Mapping[str, object] | None
    trouble: str


def _findings(batch: pa.RecordBatch, first_row: int, take: TakeRow) -> Iterator[Finding]:
    for number, (record, trouble) in enumerate(_records(batch)):
        where = f"row {first_row + number}"
        if record is None:
            yield Fault("not UTF-8", where, sample_of(trouble.encode(errors="replace")))
        else:
            yield take(record, where)


def _records(batch: pa.RecordBatch) -> Iterator[_Read]:
    """The rows, all at once where they are sound, else one by one.

    Raises:
        pa.ArrowInvalid: the file is damaged, and not only the text in it.
    """
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        if "utf8" not in str(error).lower():
            raise
        if batch.num_rows == 1:
            yield _Read(None, str(error))
            return
        for row in range(batch.num_rows):
            yield from _records(_alone(batch, row))
        return
    yield from (_Read(record, "") for record in batch.to_pylist())


def _alone(batch: pa.RecordBatch, row: int) -> pa.RecordBatch:
    """A row without the bytes of the others, which validation would look at."""
    return batch.take(pa.array([row]))


def _columns(schema: pa.Schema, keys: Sequence[str]) -> list[str]:
    """The columns that keys are in: one of that name, or the one whose object a dot reaches into."""
    names = [key if key in schema.names else key.split(".")[0] for key in keys]
    for key, name in zip(keys, names, strict=True):
        if schema.get_field_index(name) < 0:
            raise FileFault("missing key", f"no one column {key!r} among {', '.join(schema.names)}")
    return list(dict.fromkeys(names))


def _chunks(group: RowGroup, columns: Sequence[str]) -> list[Chunk]:
    """What is said of these columns in a row group, each with all that is nested in it."""
    found = {name: [chunk for chunk in group.chunks if chunk.path == name or chunk.path.startswith(f"{name}.")] for name in columns}
    if missing := [name for name, chunks in found.items() if not chunks]:
        raise FileFault("unreadable", f"its footer has no column {missing[0]!r} in every row group")
    return [chunk for chunks in found.values() for chunk in chunks]


def _most_bytes(chunk: Chunk) -> int:
    """What its values may take: of indices the dictionary each time."""
    return max(chunk.unpacked_bytes, chunk.num_values * (chunk.dictionary_bytes or 0) if chunk.is_text and is_index(chunk) else 0)


def _check_not_empty(rows: int) -> None:
    if rows == 0:
        raise FileFault("empty file", "it has no rows")
