"""The program that reads untrusted Parquet and Arrow files with pyarrow, with limits on memory and processor time.

Damaged files can end pyarrow's process, and pyarrow allocates the memory that a file claims. `tables.py` starts this process and sends
byte ranges of the file. The answers are the schema and record batches of a few megabytes. A message is a line of JSON, then bytes.
"""

import io
import json
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from phasewise.tasks.data.findings import FileFault, check_expansion

MEMORY_BYTES = 3 * 2**28  # in addition to the memory of the libraries
CPU_SECONDS = 20.0  # limit of one answer
BATCH_BYTES, MAX_BATCH_ROWS, MAX_DELTA_ROWS = 2**23, 256, 64
MAX_INDEX_BYTES = 8  # for each value: a column with fewer is read as indices into its dictionary
BUFFER_BYTES = 2**18
FILE_START, END_OF_STREAM = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"
BINARY_OF: dict[pa.DataType, pa.DataType] = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
    pa.null(): pa.null(),
    **{binary: binary for binary in (pa.binary(), pa.large_binary(), pa.binary_view())},
}
TRUNCATED = ("Expected to be able to read", "Expected to read", "Corrupted message, only", "Corrupted metadata length, only")
"""Beginnings of pyarrow's errors about a truncated file."""


class _FileOfParent(io.RawIOBase):
    """The file, whose byte ranges the parent process sends."""

    def __init__(self, channel: Connection, size: int):
        self._channel, self._size, self._position = channel, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        self._channel.send_bytes(json.dumps(["bytes", self._position, len(buffer)]).encode())
        self._channel.send_bytes(b"")
        content = self._channel.recv_bytes()
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def _serve(channel: Connection) -> None:
    """Read one table."""

    def send(header: Sequence[object], content: Any = b"") -> None:
        channel.send_bytes(json.dumps(header).encode())
        channel.send_bytes(content)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)

    _, table_format, size = json.loads(channel.recv_bytes())
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    file: Any = io.BufferedReader(_FileOfParent(channel, size), BUFFER_BYTES)
    try:
        table = (_ParquetTable if table_format == "parquet" else _ArrowTable)(file, size)
        send(["table", table.largest_bytes], table.schema.serialize())
        _, columns, watched = json.loads(channel.recv_bytes())
        is_empty = True
        for whole, filled in table.batches(columns, watched):
            for batch in _cut(whole):
                is_empty = False
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batch.schema) as stream:
                    stream.write_batch(batch)
                send(["batch", filled], sink.getvalue())
        send(["fault", "empty file", "it has no rows"] if is_empty else ["end"])
    except FileFault as fault:
        send(["fault", fault.reason, str(fault)])
    except (pa.ArrowMemoryError, MemoryError):
        send(["fault", "expands too much", f"reading it takes more than {MEMORY_BYTES >> 20} MiB of memory"])
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # pyarrow raises many types of errors for damaged files
        send(["fault", "truncated" if str(error).startswith(TRUNCATED) else "unreadable", str(error) or type(error).__name__])


class _ParquetTable:
    """A Parquet file."""

    def __init__(self, file: Any, size: int):
        self._file, self._size = file, size
        self._table = pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
        self.schema = self._table.schema_arrow
        metadata = self._table.metadata
        if metadata.num_rows == 0:
            raise FileFault("empty file", "it has no rows")
        self._groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        self.largest_bytes: dict[str, int] = {}
        for group in self._groups:
            for chunk in _chunks(group):
                self.largest_bytes[chunk.path_in_schema] = max(_measured(chunk)[1], self.largest_bytes.get(chunk.path_in_schema, 0))

    def batches(self, columns: list[str] | None, watched: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, list[str]]]:
        wanted = [[chunk for chunk in _chunks(group) if columns is None or is_in(chunk.path_in_schema, columns)] for group in self._groups]
        check_expansion(sum(chunk.total_uncompressed_size for chunks in wanted for chunk in chunks), self._size)
        readers: dict[tuple[str, ...], Any] = {(): self._table}
        for number, (group, chunks) in enumerate(zip(self._groups, wanted, strict=True)):
            paths = {chunk.path_in_schema for chunk in chunks if _measured(chunk)[0]}
            indices = tuple(sorted(paths.intersection(self.schema.names)))
            if indices not in readers:
                readers[indices] = pq.ParquetFile(
                    self._file, metadata=self._table.metadata, buffer_size=BUFFER_BYTES, pre_buffer=False, read_dictionary=list(indices)
                )
            most = MAX_DELTA_ROWS if any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks) else MAX_BATCH_ROWS
            held = sum(_measured(chunk)[1] for chunk in chunks if chunk.path_in_schema not in indices)
            rows = max(1, min(most, BATCH_BYTES * group.num_rows // max(1, held)))
            nulls: dict[str, int] = {}
            for chunk in _chunks(group):
                statistics = chunk.statistics if chunk.is_stats_set else None
                nulls.setdefault(chunk.path_in_schema, statistics.null_count if statistics and statistics.has_null_count else 0)
            filled = [name for name in watched if nulls.get(name, group.num_rows) < group.num_rows]
            for batch in readers[indices].iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
                yield batch, filled


class _ArrowTable:
    """Arrow's stream format, or its file format: a stream between a start and a table of contents."""

    def __init__(self, file: Any, size: int):
        is_file = file.read(len(FILE_START)) == FILE_START
        start = 8 if is_file else 0
        file.seek(start)
        self._has_mark = file.read(4) == END_OF_STREAM[:4]  # older writers omit it
        file.seek(start)
        self._file, self._size = file, size
        self._stream = pa.ipc.open_stream(pa.PythonFile(file, "r"))
        self.schema = self._stream.schema
        self.largest_bytes: dict[str, int] = {}

    def batches(self, columns: list[str] | None, watched: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, list[str]]]:
        own = self.schema.names
        names = list(dict.fromkeys(name if name in own else name.split(".")[0] for name in columns or ()))
        unpacked_bytes = 0
        for batch in self._stream:
            batch.validate()
            unpacked_bytes += batch.nbytes
            check_expansion(unpacked_bytes, self._size)
            filled = [name for name in watched if batch.column(name).null_count < len(batch)]
            yield batch.select(names) if columns else batch, filled
        self._file.seek(max(0, self._file.tell() - len(END_OF_STREAM)))
        if not self._file.read(len(END_OF_STREAM)).endswith(END_OF_STREAM if self._has_mark else END_OF_STREAM[4:]):
            raise FileFault("truncated", "the file ends without the mark of the stream's end")


def _chunks(group: Any) -> Iterator[Any]:
    return (group.column(number) for number in range(group.num_columns))


def _measured(chunk: Any) -> tuple[bool, int]:
    """Whether the values of a text column are indices, and its most unpacked bytes: few bytes of indices may select megabytes of text."""
    has_dictionary, offset = chunk.has_dictionary_page, chunk.dictionary_page_offset
    dictionary_bytes = max(0, chunk.data_page_offset - offset) if has_dictionary and offset is not None else 0
    is_text = chunk.physical_type == "BYTE_ARRAY" and has_dictionary
    is_index = is_text and chunk.total_compressed_size - dictionary_bytes < MAX_INDEX_BYTES * chunk.num_values
    return is_index, max(chunk.total_uncompressed_size, chunk.num_values * dictionary_bytes if is_index else 0)


def is_in(path: str, columns: Sequence[str]) -> bool:
    """Whether a leaf column is among the columns or nested in a column."""
    return any(path == name or path.startswith(f"{name}.") for name in columns)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of bounded size without dictionaries of texts. Each repetition of a dictionary's value counts."""
    sizes = np.full(len(batch), batch.nbytes // max(1, len(batch)), np.int64)
    columns: list[Any] = []
    types: list[Any] = []
    given: list[Any] = batch.columns
    for column in given:
        is_dictionary = isinstance(column.type, pa.DictionaryType)
        types.append(column.type.value_type if is_dictionary else None)
        if is_dictionary and column.type.value_type in BINARY_OF:
            values = column.dictionary.view(BINARY_OF[column.type.value_type])
            column = pa.DictionaryArray.from_arrays(column.indices, values, safe=True)  # checks the indices
            sizes += np.asarray(pc.take(pc.binary_length(values), column.indices).fill_null(0), np.int64)
        columns.append(column)
    ends = np.cumsum(sizes)
    start = 0
    while start < len(batch):
        limit = (ends[start - 1] if start else 0) + BATCH_BYTES
        stop = max(start + 1, min(start + MAX_BATCH_ROWS, int(np.searchsorted(ends, limit, side="right"))))
        slices = [column.slice(start, stop - start) for column in columns]
        plain = [one if kind is None else one.dictionary_decode().view(kind) for one, kind in zip(slices, types, strict=True)]
        yield pa.RecordBatch.from_arrays(plain, names=batch.schema.names)
        start = stop


def main() -> None:
    """Read tables until the parent closes the channel."""
    channel = Connection(int(sys.argv[1]))
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process, and the parent decides the end
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with suppress(OSError), open("/proc/self/statm", encoding="ascii") as statm:
        most = int(statm.read().split()[0]) * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(EOFError, ConnectionError):
        while True:
            _serve(channel)


if __name__ == "__main__":
    main()
