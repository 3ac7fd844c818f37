"""Parquet and Arrow whose rows are records with lists and objects in them, such as conversations: a few rows at a time.

Beside the columns that are asked for, those with text in them are read, so that what a conversation leaves out is known.

As in `tables.py` what a file claims is not believed, and one bad row costs no other. What is held is bounded by what the pages claim: a
value that a dictionary repeats counts each time.
"""

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from phasewise.tasks.data.formats.expansion import check_expansion
from phasewise.tasks.data.formats.findings import MAX_DOCUMENT_BYTES, Fault, FileFault, Taken, sample_of
from phasewise.tasks.data.formats.kinds import PARQUET_MAGIC
from phasewise.tasks.data.formats.parquet_footer import Chunk, RowGroup, read_footer
from phasewise.tasks.data.formats.parquet_pages import check_pages
from phasewise.tasks.data.formats.streams import BUFFER_BYTES
from phasewise.tasks.data.formats.tables import MAX_HELD_BYTES, ArrowStream, batch_rows, check_has_rows, is_index, size_between

NOT_LOOKED_AT = "a column that is not looked at"
"""Stands for the value of a column beside the conversation that is large, or holds bytes: an image, a sound."""
MAX_BESIDE_BYTES = MAX_HELD_BYTES // 8
STRINGS = {pa.string(), pa.large_string(), pa.string_view()}
BYTES = {pa.binary(), pa.large_binary(), pa.binary_view()}
TakeRow = Callable[[Mapping[str, object], str], Taken]
"""A row's columns by name, and where it is → what it holds."""


def read_parquet_records(file: io.BufferedReader, *, keys: Sequence[str], leave_out: Collection[str], take: TakeRow) -> Iterator[Taken]:
    """What the rows hold, of the columns that the keys are in, and of those beside them that hold text and are not to be left out.

    Raises:
        FileFault: the file is truncated or has no row, a column is missing, or it expands too much.
    """
    size = size_between(file, PARQUET_MAGIC, 8)
    groups = read_footer(file, size)
    check_has_rows(sum(group.num_rows for group in groups))
    table = pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
    columns = _columns(table.schema_arrow, keys)
    beside, bytes_beside = _beside(table.schema_arrow, {*columns, *leave_out})
    for name in list(beside):
        if any(sum(map(_most_bytes, _chunks(group, [name]))) > MAX_BESIDE_BYTES for group in groups):
            beside.remove(name)
            bytes_beside.append(name)
    columns += beside
    take = _with(bytes_beside, take)
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


def read_arrow_records(file: io.BufferedReader, *, keys: Sequence[str], leave_out: Collection[str], take: TakeRow) -> Iterator[Taken]:
    """What the rows hold, of Arrow's file format and of its stream format.

    Raises:
        FileFault: as `read_parquet_records`.
    """
    stream = ArrowStream.open(file)
    columns = _columns(stream.schema, keys)
    beside, bytes_beside = _beside(stream.schema, {*columns, *leave_out})
    columns += beside
    take = _with(bytes_beside, take)
    row = 0
    for batch, step in stream.batches():
        chosen = batch.select(columns)
        for start in range(0, batch.num_rows, step):
            yield from _findings(chosen.slice(start, step), row + start, take)
        row += batch.num_rows
    check_has_rows(row)


def _beside(schema: pa.Schema, named: Collection[str]) -> tuple[list[str], list[str]]:
    """The columns that nobody names and that hold text; and those that hold bytes."""
    found: tuple[list[str], list[str]] = [], []
    for field in schema:
        if field.name in named or schema.get_field_index(field.name) < 0:
            continue
        types = set(_leaves(field.type))
        if types & BYTES:
            found[1].append(field.name)
        elif types & STRINGS:
            found[0].append(field.name)
    return found


def _leaves(type_: Any) -> Iterator[pa.DataType]:
    if isinstance(type_, pa.DictionaryType | pa.BaseExtensionType):
        yield from _leaves(type_.value_type if isinstance(type_, pa.DictionaryType) else type_.storage_type)
    elif type_.num_fields:
        for number in range(type_.num_fields):
            yield from _leaves(type_.field(number).type)
    else:
        yield type_


def _with(names: Sequence[str], take: TakeRow) -> TakeRow:
    """Takes a record with columns that were not looked at."""
    more = dict.fromkeys(names, NOT_LOOKED_AT)
    return (lambda record, where: take({**record, **more}, where)) if more else take


class _Read(NamedTuple):
    record: Mapping[str, object] | None
    trouble: str


def _findings(batch: pa.RecordBatch, first_row: int, take: TakeRow) -> Iterator[Taken]:
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
