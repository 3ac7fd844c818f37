"""Parquet and Arrow tables of strangers, read by pyarrow in a process of its own with bounded memory and processor time.

If the process (`table_process.py`) dies, the file has a fault. Texts are decoded row by row here, so one bad row costs no other row.
"""

import atexit
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from socket import socketpair
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from phasewise.tasks.data import table_process
from phasewise.tasks.data.findings import (
    MAX_DOCUMENT_BYTES,
    Fault,
    FileFault,
    Finding,
    Record,
    Sift,
    Taken,
    check_expansion,
    reason_against,
    sample_of,
)
from phasewise.tasks.data.table_process import BINARY_OF, CPU_SECONDS, is_in

TableFormat = Literal["parquet", "arrow"]
ColumnPath = tuple[str, ...]
TakeRow = Callable[[Mapping[str, object], str], Taken]
"""A row's columns by name, and where it is → what it holds."""
WALL_SECONDS = 300.0
"""Limit of one answer of the reader process, which also has a limit of processor time."""
MAX_BESIDE_BYTES = 2**25
MAGIC = {"parquet": b"PAR1", "arrow": b"ARROW1"}
NOT_LOOKED_AT = "a column that is not looked at"
"""Stands for the value of a column beside the conversation that is large, or holds bytes: an image, a sound."""
STRINGS = {pa.string(), pa.large_string(), pa.string_view()}
BYTES = {pa.binary(), pa.large_binary(), pa.binary_view()}


class ReaderKilled(MemoryError):
    """The reader process was killed from outside, for example by the system when memory is short. The file may be sound."""


class Batch(NamedTuple):
    """Some rows of a table; `filled` names the watched columns that are not null throughout these rows and their neighbours."""

    rows: pa.RecordBatch
    filled: tuple[str, ...]


class Table:
    """A table that is open in a reader process.

    Attributes:
        largest_bytes: of Parquet, leaf column → unpacked bytes of its largest row group, a dictionary's value counted each time.
    """

    def __init__(self, reader: "_Reader", file: io.BufferedReader, table_format: TableFormat, size: int):
        self._reader, self._file = reader, file
        header, content = reader.ask(file, ["open", table_format, size])
        self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(content))
        self.largest_bytes: dict[str, int] = header[1]

    def batches(self, columns: Sequence[str] | None, watched: Sequence[str] = ()) -> Iterator[Batch]:
        """All rows in order, at least one, once.

        Args:
            columns: names, with dots between the levels of structs; None reads all.
            watched: columns of text of which only `Batch.filled` is of interest.

        Raises:
            FileFault: the file is damaged or empty, expands too much, or ends the reader process.
        """
        answer, content = self._reader.ask(self._file, ["read", columns, watched])
        while answer[0] == "batch":
            batch = pa.ipc.open_stream(pa.py_buffer(content)).read_next_batch()
            yield Batch(batch, tuple(answer[1]))
            answer, content = self._reader.answer(self._file)


@contextmanager
def open_table(file: io.BufferedReader, table_format: TableFormat) -> Iterator[Table]:
    """Open a seekable file of this format in a reader process.

    Raises:
        FileFault: the file is empty, truncated or damaged, or its schema ends the reader process.
        ReaderKilled: the system ended the reader process.
    """
    size = file.seek(0, io.SEEK_END)
    if size == 0:
        raise FileFault("empty file", "it has no bytes")
    magic = MAGIC[table_format]
    file.seek(0)
    start = file.read(len(magic))
    file.seek(max(0, size - len(magic)))
    if magic.startswith(start) and (size < 2 * len(magic) or file.read() != magic):
        raise FileFault("truncated", f"the file begins with {start!r} and does not end with it")
    reader = _idle.pop() if _idle and _idle[-1].owner == os.getpid() else _Reader()
    try:
        yield Table(reader, file, table_format, size)
    finally:
        if reader.is_waiting:
            _idle.append(reader)
        else:
            reader.close()


def read_texts(
    file: io.BufferedReader, table_format: TableFormat, *, text_key: str, field_keys: Sequence[str], sift: Sift
) -> Iterator[Finding]:
    """The text of each row.

    Raises:
        FileFault: the file cannot be read on, a column is missing or holds no text, or it expands too much.
    """
    size = file.seek(0, io.SEEK_END)
    row = text_bytes = 0
    with open_table(file, table_format) as table:
        path, text_type = _find(table.schema, text_key)
        if not _is_text(text_type):
            raise FileFault("wrong type", f"column {text_key!r} holds {text_type}, not text")
        fields = {key: _find(table.schema, key)[0] for key in field_keys}
        types = {field.name: field.type.value_type if isinstance(field.type, pa.DictionaryType) else field.type for field in table.schema}
        others = [name for name, kind in types.items() if name != path[0] and kind in STRINGS and table.schema.get_field_index(name) >= 0]
        for batch, beside in table.batches([".".join(one) for one in (path, *fields.values())], others):
            texts = raw_values(_column(batch, path))
            text_bytes += sum(len(raw) for raw in texts if raw is not None)
            check_expansion(text_bytes, size)
            values = [_field_values(_column(batch, one)) for one in fields.values()]
            for number, raw in enumerate(texts):
                where = f"row {row}"
                row += 1
                raw = raw or b""  # null is a text without characters
                if len(raw) > MAX_DOCUMENT_BYTES:
                    yield Fault("too long", where, sample_of(raw))
                    continue
                try:
                    text = raw.decode()
                except UnicodeDecodeError:
                    yield Fault(reason_against(raw), where, sample_of(raw))
                    continue
                found = sift(text, where, {key: column[number] for key, column in zip(fields, values, strict=True)})
                yield found._replace(beside=beside) if beside and isinstance(found, Record) else found


def read_records(
    file: io.BufferedReader, table_format: TableFormat, *, keys: Sequence[str], leave_out: Collection[str], take: TakeRow
) -> Iterator[Taken]:
    """Each row as a record: the columns that the keys are in, and the other columns with text that are not to be left out.

    Of a column beside these that is large or holds bytes, a record has `NOT_LOOKED_AT`.

    Raises:
        FileFault: as `read_texts`.
    """
    with open_table(file, table_format) as table:
        schema = table.schema
        columns = [key if key in schema.names else key.split(".")[0] for key in keys]
        for key, name in zip(keys, columns, strict=True):
            if schema.get_field_index(name) < 0:
                raise FileFault("missing key", f"no one column {key!r} among {', '.join(schema.names)}")
        columns = list(dict.fromkeys(columns))
        not_looked_at: dict[str, object] = {}
        for field in schema:
            if field.name in (*columns, *leave_out) or schema.get_field_index(field.name) < 0:
                continue
            types = set(_leaves(field.type))
            largest = sum(size for path, size in table.largest_bytes.items() if is_in(path, [field.name]))
            if types & BYTES or (types & STRINGS and largest > MAX_BESIDE_BYTES):
                not_looked_at[field.name] = NOT_LOOKED_AT
            elif types & STRINGS:
                columns.append(field.name)
        row = 0
        for batch, _ in table.batches(columns):
            for record in _records(batch):
                where = f"row {row}"
                row += 1
                if isinstance(record, str):
                    yield Fault("not UTF-8", where, sample_of(record.encode(errors="replace")))
                else:
                    yield take(record | not_looked_at, where)


def raw_values(column: Any) -> list[bytes | None]:
    """The bytes of each value: Arrow decodes a column as a whole or not at all. Values of a dictionary are not copied."""
    if isinstance(column.type, pa.DictionaryType):
        values = raw_values(column.dictionary)
        indices = pa.DictionaryArray.from_arrays(column.indices, pa.nulls(len(values)), safe=True).indices  # which checks them
        return [None if index is None else values[index] for index in indices.to_pylist()]
    raw = column.view(BINARY_OF[column.type])
    raw.validate(full=True)
    return raw.to_pylist()


def _find(schema: pa.Schema, key: str) -> tuple[ColumnPath, Any]:
    """The names that lead to a key's column, and its type. A column whose own name has the dots comes first."""
    path = (key,) if key in schema.names else tuple(key.split("."))
    level: Any = schema
    for name in path:
        place = level.get_field_index(name) if isinstance(level, pa.Schema | pa.StructType) else -1
        if place < 0:
            raise FileFault("missing key", f"no one column {key!r} among {', '.join(schema.names)}")
        level = level.field(place).type
    return path, level


def _column(batch: pa.RecordBatch, path: ColumnPath) -> Any:
    column: Any = batch.column(batch.schema.get_field_index(path[0]))
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _is_text(kind: Any) -> bool:
    return (kind.value_type if isinstance(kind, pa.DictionaryType) else kind) in BINARY_OF


def _field_values(column: Any) -> Sequence[object]:
    if _is_text(column.type):
        return [raw if raw is None else raw.decode(errors="replace") for raw in raw_values(column)]
    column.validate(full=True)
    return column.to_pylist()


def _leaves(kind: Any) -> Iterator[pa.DataType]:
    if isinstance(kind, pa.DictionaryType | pa.BaseExtensionType):
        yield from _leaves(kind.value_type if isinstance(kind, pa.DictionaryType) else kind.storage_type)
    elif kind.num_fields:
        for number in range(kind.num_fields):
            yield from _leaves(kind.field(number).type)
    else:
        yield kind


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | str]:
    """The rows, all at once if they are sound, else one by one, with the trouble instead of a row that is not UTF-8."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        if "utf8" not in str(error).lower():
            raise
        if batch.num_rows == 1:
            yield str(error)
            return
        for row in range(batch.num_rows):
            yield from _records(batch.take(pa.array([row])))  # without the bytes of the others, which validation would look at
        return
    yield from batch.to_pylist()


class _Reader:
    """A reader process, of one table at a time. A message is a line of JSON, and the bytes that belong to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.is_waiting = True
        ours, theirs = socketpair()
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-m", table_process.__name__, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=environment,
            )  # fmt: skip
        self._channel = Connection(ours.detach())

    def ask(self, file: io.BufferedReader, request: Sequence[object]) -> tuple[list[Any], bytes]:
        self.is_waiting = False
        with suppress(BrokenPipeError):  # the answer says why
            self._channel.send_bytes(json.dumps(request).encode())
        return self.answer(file)

    def answer(self, file: io.BufferedReader) -> tuple[list[Any], bytes]:
        """The next answer; meanwhile the process gets the bytes of the file that it asks for.

        Raises:
            FileFault, ReaderKilled: as `open_table`.
        """
        try:
            while self._channel.poll(WALL_SECONDS):
                kind, *about = json.loads(self._channel.recv_bytes())
                content = self._channel.recv_bytes()
                if kind == "bytes":
                    file.seek(about[0])
                    self._channel.send_bytes(file.read(about[1]))
                elif kind == "fault":
                    self.is_waiting = about[0] != "expands too much"  # memory that such a file left would count against the next one
                    raise FileFault(*about)
                else:
                    self.is_waiting = kind == "end"
                    return [kind, *about], content
        except (EOFError, ConnectionError):
            code = self._process.wait()
            if code == -signal.SIGKILL:
                raise ReaderKilled("the process that reads a table was killed: is memory short?") from None
            why = f"takes more than {CPU_SECONDS:g} s for some of its rows" if code == -signal.SIGPROF else f"ends pyarrow (code {code})"
            raise FileFault("unreadable", f"reading it {why}") from None
        raise FileFault("unreadable", f"reading it takes more than {WALL_SECONDS:g} s for some of its rows")

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


_idle: list[_Reader] = []


@atexit.register
def _close_idle() -> None:
    for reader in _idle:
        if reader.owner == os.getpid():
            reader.close()
