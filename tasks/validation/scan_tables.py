"""Rows of Parquet and Arrow files as texts for the scan: every column with possible text, a few rows at a time, in bounded memory.

A column may have lists, structs, maps, unions, dictionaries or runs. Offsets and indices are checked before use. Texts are decoded one by
one, because Arrow decodes a column completely or fails. Fields are accessed by index, because names may repeat.
"""

import io
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phasewise.tasks.data.findings import FileFault, check_expansion
from phasewise.tasks.data.streams import is_text
from phasewise.tasks.data.tables import TableFormat, open_table
from phasewise.tasks.validation.scan_texts import ID_KEY, TEXT_KEY, Text, texts_of

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
        if value is None or (is_binary and not is_text(value[:PEEK_BYTES], cut=len(value) > PEEK_BYTES))
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
