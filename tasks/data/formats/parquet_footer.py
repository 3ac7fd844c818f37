"""What a Parquet file says of its columns, read from its last bytes (`FileMetaData` of parquet.thrift).

pyarrow gives the same, but ends the process over a column whose own metadata are encrypted or missing: it is asked nothing about columns.
"""

import io
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from phasewise.tasks.data.formats.findings import FileFault
from phasewise.tasks.data.formats.kinds import PARQUET_MAGIC
from phasewise.tasks.data.formats.thrift import Struct, read_struct

MAX_FOOTER_BYTES = 8 * 2**20  # its values take some thirty times as much
TAIL_BYTES = 4 + len(PARQUET_MAGIC)
ENCRYPTED = "it is encrypted"
BYTE_ARRAY, DELTA_BYTE_ARRAY = 6, 7
ROW_GROUPS, ENCRYPTION = 4, 8  # fields of FileMetaData
COLUMNS, NUM_ROWS = 1, 3  # of RowGroup
METADATA, CRYPTO_METADATA = 3, 8  # of ColumnChunk
PHYSICAL_TYPE, ENCODINGS, PATH, NUM_VALUES, UNPACKED, PACKED, DATA_PAGE, DICTIONARY_PAGE = 1, 2, 3, 5, 6, 7, 9, 11  # of ColumnMetaData


class Chunk(NamedTuple):
    """A column in a row group.

    Attributes:
        path: its names from the outside in, with dots between.
        is_text: strings or bytes of any length.
        has_deltas: some values are given by how much of the one before they begin with.
        start: of its first page; the dictionary is one.
        dictionary_bytes: how far the first page of data is behind the dictionary, None without one.
    """

    path: str
    is_text: bool
    has_deltas: bool
    num_values: int
    unpacked_bytes: int
    packed_bytes: int
    start: int
    dictionary_bytes: int | None


class RowGroup(NamedTuple):
    """A row group's columns."""

    num_rows: int
    chunks: tuple[Chunk, ...]


def read_footer(file: io.BufferedReader, file_bytes: int) -> list[RowGroup]:
    """The row groups of a file that begins and ends as Parquet does. The file's position moves.

    Raises:
        FileFault: it is damaged, encrypted, or its footer is too large.
    """
    file.seek(file_bytes - TAIL_BYTES)
    footer_bytes = int.from_bytes(file.read(4), "little")
    if footer_bytes > MAX_FOOTER_BYTES:
        raise FileFault("unreadable", f"its footer has {footer_bytes} bytes, at most {MAX_FOOTER_BYTES} are held: write larger row groups")
    start = file_bytes - TAIL_BYTES - footer_bytes
    if start < len(PARQUET_MAGIC):
        raise FileFault("truncated", f"its footer is to have {footer_bytes} bytes, of a file of {file_bytes}")
    file.seek(start)
    try:
        about, _ = read_struct(file.read(footer_bytes))
        if ENCRYPTION in about:
            raise FileFault("other format", ENCRYPTED)
        return [_row_group(group) for group in _list(about, ROW_GROUPS)]
    except (IndexError, ValueError) as error:
        raise FileFault("unreadable", f"its footer is no Parquet footer: {error}") from error


def _row_group(group: Any) -> RowGroup:
    if not isinstance(group, dict):
        raise ValueError("a row group that is none")
    return RowGroup(_number(group, NUM_ROWS), tuple(_chunk(column) for column in _list(group, COLUMNS)))


def _chunk(column: Any) -> Chunk:
    if not isinstance(column, dict):
        raise ValueError("a column that is none")
    if CRYPTO_METADATA in column:
        raise FileFault("other format", ENCRYPTED)
    about = column.get(METADATA)
    if not isinstance(about, dict):
        raise ValueError("a column without metadata")
    about = cast("Struct", about)
    data = _number(about, DATA_PAGE)
    dictionary = _number(about, DICTIONARY_PAGE) if DICTIONARY_PAGE in about else None
    return Chunk(
        path=".".join(name.decode(errors="replace") for name in _list(about, PATH) if isinstance(name, bytes)),
        is_text=_number(about, PHYSICAL_TYPE) == BYTE_ARRAY,
        has_deltas=DELTA_BYTE_ARRAY in _list(about, ENCODINGS),
        num_values=_number(about, NUM_VALUES),
        unpacked_bytes=_number(about, UNPACKED),
        packed_bytes=_number(about, PACKED),
        start=dictionary if dictionary and dictionary < data else data,
        dictionary_bytes=None if dictionary is None else max(0, data - dictionary),
    )


def _list(struct: Struct, field: int) -> Sequence[Any]:
    found = struct.get(field)
    if not isinstance(found, list):
        raise ValueError(f"field {field} is no list")
    return cast("list[Any]", found)


def _number(struct: Struct, field: int) -> int:
    found = struct.get(field)
    if not isinstance(found, int) or found < 0:
        raise ValueError(f"field {field} is {found}")
    return found
