"""Rows of Parquet and Arrow as texts to be scanned: every column that may hold text, a few rows at a time, in bounded memory."""

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from phasewise.tasks.data.findings import FileFault, check_expansion
from phasewise.tasks.data.tables import TableFormat, open_table
from phasewise.tasks.validation.scan_columns import Strings, may_hold_text, strings_of
from phasewise.tasks.validation.scan_values import ID_KEY, TEXT_KEY, Text, texts_of

MAX_SHOWN_COLUMNS = 5


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
