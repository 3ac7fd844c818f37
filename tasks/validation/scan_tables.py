"""Rows of Parquet and Arrow as texts to be scanned: every column that may hold text, a few rows at a time, in bounded memory.

A column may be lists, structs, maps, unions, dictionaries or runs. Offsets and indices are checked before they are followed, and texts are
decoded one by one: Arrow decodes a column as a whole or not at all. Fields are taken by their place, for names may repeat.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phasewise.tasks.data.findings import FileFault, check_expansion
from phasewise.tasks.data.streams import is_text
from phasewise.tasks.data.tables import TableFormat, open_table
from phasewise.tasks.validation.scan_values import ID_KEY, TEXT_KEY, Text, texts_of

MAX_SHOWN_COLUMNS = 5
PEEK_BYTES = 2**14
Strings = Sequence[str]
NONE: Strings = ()
_RAW_TYPES: dict[pa.DataType, pa.DataType] = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
_BINARY_TYPES = (pa.binary(), pa.large_binary(), pa.binary_view())


def may_hold_text(type_: pa.DataType) -> bool:
    """Whether a column of this type has strings, or bytes that may be some."""
    if isinstance(type_, pa.DictionaryType | pa.RunEndEncodedType):
        return may_hold_text(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return may_hold_text(type_.storage_type)
    if pa.types.is_nested(type_):
        return any(may_hold_text(type_.field(place).type) for place in range(type_.num_fields))
    return type_ in _RAW_TYPES or type_ in _BINARY_TYPES or pa.types.is_fixed_size_binary(type_)


def strings_of(column: Any) -> list[Strings]:
    """The strings of each row, in order.

    Raises:
        pa.ArrowInvalid: an offset or an index leads nowhere.
    """
    type_ = column.type
    if not may_hold_text(type_):
        return [NONE] * len(column)
    for is_kind, read in _READERS:
        if is_kind(type_):
            return read(column)
    return _texts(column)


def _texts(column: Any) -> list[Strings]:
    """Of strings, and of bytes that read as text."""
    is_binary = column.type not in _RAW_TYPES
    raw = column if is_binary else column.view(_RAW_TYPES[column.type])
    raw.validate(full=True)
    values: list[bytes | None] = raw.to_pylist()
    if is_binary:
        return [
            NONE if value is None or not is_text(value[:PEEK_BYTES], cut=len(value) > PEEK_BYTES) else _decoded(value) for value in values
        ]
    return [NONE if value is None else _decoded(value) for value in values]


def _decoded(value: bytes) -> Strings:
    return (value.decode(errors="replace"),)


def _of_dictionary(column: Any) -> list[Strings]:
    """Values of a dictionary are not unrolled: rows share them. Those that no row has are not looked at, for every batch has them all."""
    checked = pa.DictionaryArray.from_arrays(column.indices, pa.nulls(len(column.dictionary)), safe=True).indices
    used = checked.unique().drop_null()
    values = dict(zip(used.to_pylist(), strings_of(column.dictionary.take(used)), strict=True))
    return [NONE if index is None else values[index] for index in checked.to_pylist()]


def _of_list(column: Any) -> list[Strings]:
    column.validate()
    offsets: list[int] = column.offsets.to_pylist()
    is_rising = all(earlier <= later for earlier, later in pairwise(offsets))
    if not is_rising or not 0 <= offsets[0] <= offsets[-1] <= len(column.values):
        raise pa.ArrowInvalid("the offsets of a list lead out of its values")
    return _of_spans(column, column.values.slice(offsets[0], offsets[-1] - offsets[0]), [offset - offsets[0] for offset in offsets])


def _of_map(column: Any) -> list[Strings]:
    """Keys with their values: a map may have the question for a key."""
    column.validate()
    pairs = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
    found = _of_list(pa.ListArray.from_arrays(column.offsets, pairs))
    return [row if is_valid else NONE for row, is_valid in zip(found, column.is_valid().to_pylist(), strict=True)]


def _of_spans(column: Any, values: Any, offsets: Sequence[int]) -> list[Strings]:
    found = strings_of(values)
    valid: list[bool] = column.is_valid().to_pylist()
    return [
        _together(found[offsets[row] : offsets[row + 1]]) if is_valid else NONE for row, is_valid in enumerate(valid)
    ]  # fmt: skip


def _of_fixed_list(column: Any) -> list[Strings]:
    column.validate()
    size = column.type.list_size
    values = column.values.slice(column.offset * size, len(column) * size)
    return _of_spans(column, values, [row * size for row in range(len(column) + 1)])


def _of_list_view(column: Any) -> list[Strings]:
    """Stretches of the values in any order; some may be in several rows."""
    column.validate(full=False)
    offsets, sizes = column.offsets.to_pylist(), column.sizes.to_pylist()
    length = len(column.values)
    if any(size < 0 or not 0 <= offset <= offset + size <= length for offset, size in zip(offsets, sizes, strict=True)):
        raise pa.ArrowInvalid("the offsets of a list view lead out of its values")
    found, valid = strings_of(column.values), column.is_valid().to_pylist()
    return [
        _together(found[offset : offset + size]) if is_valid else NONE for offset, size, is_valid in zip(offsets, sizes, valid, strict=True)
    ]


def _of_struct(column: Any) -> list[Strings]:
    column.validate()
    return [_together(row) for row in zip(*(strings_of(child) for child in column.flatten()), strict=True)]


def _of_union(column: Any) -> list[Strings]:
    column.validate(full=True)
    places = {code: place for place, code in enumerate(column.type.type_codes)}
    children = [strings_of(column.field(place)) for place in range(column.type.num_fields)]
    codes = _numbers(column, pa.int8(), 1)
    rows = _numbers(column, pa.int32(), 2) if column.type.mode == "dense" else range(len(column))
    return [children[places[code]][row] for code, row in zip(codes, rows, strict=True)]


def _numbers(column: Any, type_: pa.DataType, buffer: int) -> list[int]:
    """One of a union's buffers, of its own rows: pyarrow's `type_codes` and `offsets` are those of the array that it is a slice of."""
    numbers: Any = pa.Array.from_buffers(type_, len(column), [None, column.buffers()[buffer]], offset=column.offset)
    return numbers.to_pylist()


def _of_runs(column: Any) -> list[Strings]:
    column.validate(full=True)
    return strings_of(pc.run_end_decode(column))  # pyright: ignore[reportAttributeAccessIssue]  # the stubs lack it


def _of_extension(column: Any) -> list[Strings]:
    return strings_of(column.storage)


def _together(rows: Iterable[Strings]) -> Strings:
    return [one for row in rows for one in row]


def _is_list(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) or pa.types.is_large_list(type_)


def _is_list_view(type_: pa.DataType) -> bool:
    return pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_)


_READERS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], list[Strings]]]] = (
    (pa.types.is_dictionary, _of_dictionary),
    (_is_list, _of_list),
    (pa.types.is_map, _of_map),
    (pa.types.is_fixed_size_list, _of_fixed_list),
    (_is_list_view, _of_list_view),
    (pa.types.is_struct, _of_struct),
    (pa.types.is_union, _of_union),
    (pa.types.is_run_end_encoded, _of_runs),
    (lambda type_: isinstance(type_, pa.BaseExtensionType), _of_extension),
)


class NoText(FileFault):
    """What holds no text by its nature: an image, an array, a table of numbers."""

    def __init__(self, found: str):
        super().__init__("unreadable", found)


def table_texts(file: io.BufferedReader, table_format: TableFormat) -> Iterator[Text]:
    """The rows' texts.

    Raises:
        FileFault: the file is truncated, expands too much, or would take too much memory.
        NoText: no column may hold any.
    """
    texts = _Texts(file.seek(0, io.SEEK_END))
    with open_table(file, table_format) as table:
        columns = [column.name for column in table.schema if may_hold_text(column.type)]
        if not columns:
            shown = ", ".join(table.schema.names[:MAX_SHOWN_COLUMNS]) or "none at all"
            raise NoText(f"no column may hold text: {shown}")
        names = table.schema.names
        are_distinct = len(set(names)) == len(names) and not any("." in name for name in names)
        for batch, _ in table.batches(columns if are_distinct else None):
            yield from texts.of_batch(batch)


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
