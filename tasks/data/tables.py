"""Untrusted Parquet and Arrow tables, read by pyarrow in a separate process with limits on memory and processor time.

If the process (`table_process.py`) dies, the file has a fault. Texts are decoded here row by row, and a bad row affects no neighbour.
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

from phasewise.tasks.data import findings, table_process
from phasewise.tasks.data.table_process import BINARY_OF, CPU_SECONDS, is_in

TableFormat = Literal["parquet", "arrow"]
WALL_SECONDS = 300.0  # limit of one answer of the reader process, in addition to its limit of processor time
MAX_BESIDE_BYTES = 2**25
MAGIC = {"parquet": b"PAR1", "arrow": b"ARROW1"}
NOT_LOOKED_AT = "a column that is not looked at"  # value of a large or binary column outside the conversation, such as an image
STRINGS = {pa.string(), pa.large_string(), pa.string_view()}
BYTES = {pa.binary(), pa.large_binary(), pa.binary_view()}


class ReaderKilled(MemoryError):
    """Another process killed the reader process, for example the system for lack of memory. The file may be sound."""


class Batch(NamedTuple):
    """Rows of a table. `filled`: watched columns with a value in these rows or their neighbours."""

    rows: pa.RecordBatch
    filled: tuple[str, ...]


class Table(NamedTuple):
    """A table in a reader process. `largest_bytes`: Parquet's leaf column → unpacked bytes of its largest row group, with repetitions."""

    schema: pa.Schema
    largest_bytes: dict[str, int]
    reader: "_Reader"
    file: io.BufferedReader

    def batches(self, columns: Sequence[str] | None, watched: Sequence[str] = ()) -> Iterator[Batch]:
        """All rows in order. A table can be read once.

        `columns`: names, with dots between the levels of structs. None reads all. `watched`: text columns for `Batch.filled`. Raises
        FileFault if the file is damaged or empty, expands too much, or ends the reader process.
        """
        answer, content = self.reader.ask(self.file, ["read", columns, watched])
        while answer[0] == "batch":
            batch = pa.ipc.open_stream(pa.py_buffer(content)).read_next_batch()
            yield Batch(batch, tuple(answer[1]))
            answer, content = self.reader.answer(self.file)


@contextmanager
def open_table(file: io.BufferedReader, table_format: TableFormat) -> Iterator[Table]:
    """Open a seekable file in a reader process. Raises FileFault if the file is bad, ReaderKilled if another process killed the reader."""
    size = file.seek(0, io.SEEK_END)
    if size == 0:
        raise findings.FileFault("empty file", "it has no bytes")
    magic = MAGIC[table_format]
    file.seek(0)
    start = file.read(len(magic))
    file.seek(max(0, size - len(magic)))
    if magic.startswith(start) and (size < 2 * len(magic) or file.read() != magic):
        raise findings.FileFault("truncated", f"the file begins with {start!r} and does not end with it")
    reader = _idle.pop() if _idle and _idle[-1].owner == os.getpid() else _Reader()
    try:
        header, content = reader.ask(file, ["open", table_format, size])
        yield Table(pa.ipc.read_schema(pa.py_buffer(content)), header[1], reader, file)
    finally:
        if reader.is_waiting:
            _idle.append(reader)
        else:
            reader.close()


def read_texts(
    file: io.BufferedReader, table_format: TableFormat, *, text_key: str, field_keys: Sequence[str], sift: findings.Sift
) -> Iterator[findings.Finding]:
    """The text of each row. Raises FileFault if the file is damaged, expands too much, or lacks a column, or the column has no text."""
    size = file.seek(0, io.SEEK_END)
    row = text_bytes = 0
    with open_table(file, table_format) as table:
        schema = table.schema
        path, text_type = _find(schema, text_key)
        if _value_type(text_type) not in BINARY_OF:
            raise findings.FileFault("wrong type", f"column {text_key!r} holds {text_type}, not text")
        fields = {key: _find(schema, key)[0] for key in field_keys}
        others = [
            field.name
            for field in schema
            if field.name != path[0] and _value_type(field.type) in STRINGS and schema.get_field_index(field.name) >= 0
        ]
        for batch, beside in table.batches([".".join(one) for one in (path, *fields.values())], others):
            texts = raw_values(_column(batch, path))
            text_bytes += sum(len(raw) for raw in texts if raw is not None)
            findings.check_expansion(text_bytes, size)
            values: dict[str, Sequence[object]] = {}
            for key, path_of_key in fields.items():
                column = _column(batch, path_of_key)
                if _value_type(column.type) in BINARY_OF:
                    values[key] = [raw if raw is None else raw.decode(errors="replace") for raw in raw_values(column)]
                else:
                    column.validate(full=True)
                    values[key] = column.to_pylist()
            for number, raw in enumerate(texts):
                where = f"row {row}"
                row += 1
                raw = raw or b""  # null is an empty text
                if len(raw) > findings.MAX_DOCUMENT_BYTES:
                    yield findings.Fault("too long", where, findings.sample_of(raw))
                    continue
                try:
                    text = raw.decode()
                except UnicodeDecodeError:
                    yield findings.Fault(findings.reason_against(raw), where, findings.sample_of(raw))
                    continue
                found = sift(text, where, {key: column[number] for key, column in values.items()})
                yield found._replace(beside=beside) if beside and isinstance(found, findings.Record) else found


def read_records(
    file: io.BufferedReader,
    table_format: TableFormat,
    *,
    keys: Sequence[str],
    leave_out: Collection[str],
    take: Callable[[Mapping[str, object], str], findings.Taken],
) -> Iterator[findings.Taken]:
    """The finding of each row by `take`. Further columns with large or binary values are `NOT_LOOKED_AT`. Raises as `read_texts`."""
    with open_table(file, table_format) as table:
        schema = table.schema
        columns: list[str] = []
        for key in keys:
            name = key if key in schema.names else key.split(".")[0]
            if schema.get_field_index(name) < 0:
                raise findings.FileFault("missing key", f"no one column {key!r} among {', '.join(schema.names)}")
            if name not in columns:
                columns.append(name)
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
                    yield findings.Fault("not UTF-8", where, findings.sample_of(record.encode(errors="replace")))
                else:
                    yield take(record | not_looked_at, where)


def raw_values(column: Any) -> list[bytes | None]:
    """The bytes of each value, because Arrow decodes only whole columns. Values of a dictionary are shared."""
    if isinstance(column.type, pa.DictionaryType):
        values = raw_values(column.dictionary)
        indices = pa.DictionaryArray.from_arrays(column.indices, pa.nulls(len(values)), safe=True).indices  # checks the indices
        return [None if index is None else values[index] for index in indices.to_pylist()]
    raw = column.view(BINARY_OF[column.type])
    raw.validate(full=True)
    return raw.to_pylist()


def _find(schema: pa.Schema, key: str) -> tuple[tuple[str, ...], Any]:
    """The path of a key's column and its type. A column whose own name has the dots takes precedence."""
    path = (key,) if key in schema.names else tuple(key.split("."))
    level: Any = schema
    for name in path:
        index = level.get_field_index(name) if isinstance(level, pa.Schema | pa.StructType) else -1
        if index < 0:
            raise findings.FileFault("missing key", f"no one column {key!r} among {', '.join(schema.names)}")
        level = level.field(index).type
    return path, level


def _column(batch: pa.RecordBatch, path: tuple[str, ...]) -> Any:
    column: Any = batch.column(batch.schema.get_field_index(path[0]))
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _value_type(kind: Any) -> Any:
    return kind.value_type if isinstance(kind, pa.DictionaryType) else kind


def _leaves(kind: Any) -> Iterator[pa.DataType]:
    if isinstance(kind, pa.DictionaryType | pa.BaseExtensionType):
        yield from _leaves(kind.value_type if isinstance(kind, pa.DictionaryType) else kind.storage_type)
    elif kind.num_fields:
        for number in range(kind.num_fields):
            yield from _leaves(kind.field(number).type)
    else:
        yield kind


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | str]:
    """The rows of a sound batch. Otherwise row by row, with the error text instead of a row that is not UTF-8."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        if "utf8" not in str(error).lower():
            raise
        if batch.num_rows == 1:
            yield str(error)
            return
        for row in range(batch.num_rows):
            yield from _records(batch.take(pa.array([row])))  # `take` copies, so validation ignores the bytes of other rows
        return
    yield from batch.to_pylist()


class _Reader:
    """A reader process, for one table at a time. A message is a line of JSON followed by its bytes."""

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
        with suppress(BrokenPipeError):  # `answer` raises the reason
            self._channel.send_bytes(json.dumps(request).encode())
        return self.answer(file)

    def answer(self, file: io.BufferedReader) -> tuple[list[Any], bytes]:
        """Receive the next answer, and send the byte ranges that the process requests. Raises as `open_table`."""
        try:
            while self._channel.poll(WALL_SECONDS):
                kind, *details = json.loads(self._channel.recv_bytes())
                content = self._channel.recv_bytes()
                if kind == "bytes":
                    file.seek(details[0])
                    self._channel.send_bytes(file.read(details[1]))
                elif kind == "fault":
                    self.is_waiting = details[0] != "expands too much"  # memory of such a file would count against the next
                    raise findings.FileFault(*details)
                else:
                    self.is_waiting = kind == "end"
                    return [kind, *details], content
        except (EOFError, ConnectionError):
            code = self._process.wait()
            if code == -signal.SIGKILL:
                raise ReaderKilled("the process that reads a table was killed: is memory short?") from None
            why = f"takes more than {CPU_SECONDS:g} s for some of its rows" if code == -signal.SIGPROF else f"ends pyarrow (code {code})"
            raise findings.FileFault("unreadable", f"reading it {why}") from None
        raise findings.FileFault("unreadable", f"reading it takes more than {WALL_SECONDS:g} s for some of its rows")

    def close(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()


_idle: list[_Reader] = []


@atexit.register
def _close_idle() -> None:
    for reader in _idle:
        if reader.owner == os.getpid():
            reader.close()
