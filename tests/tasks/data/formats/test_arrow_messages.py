"""Sizes of record batches, known before they are read."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phasewise.tasks.data.formats import arrow_messages
from phasewise.tasks.data.formats.arrow_messages import NO_MORE, check_next_batch
from phasewise.tasks.data.formats.findings import FileFault, Finding

Read = Callable[..., list[Finding]]
TABLE = pa.table({"text": ["some words"] * 5000, "n": range(5000), "kind": pa.array(["a", "b"] * 2500).dictionary_encode()})


def write(path: Path, compression: Any = None, rows: int = 2000) -> Path:
    with pa.ipc.new_stream(str(path), TABLE.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(TABLE, max_chunksize=rows)
    return path


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_sizes_are_those_that_arrow_reads(tmp_path: Path, compression: str | None):
    path = write(tmp_path / "a.arrow", compression)
    with path.open("rb") as file:
        stream = pa.ipc.open_stream(pa.PythonFile(file, "r"))
        said: list[int] = []
        read: list[int] = []
        while (size := check_next_batch(file, path.stat().st_size)) != NO_MORE:
            said.append(size)
            read.append(stream.read_next_batch().get_total_buffer_size())
    assert len(said) == 3
    assert all(abs(size - here) < 256 for size, here in zip(said, read, strict=True)), "padding and the two words apart"


@pytest.mark.parametrize("name", ["MAX_BATCH_BYTES", "MAX_HEAD_BYTES"])
def test_what_is_too_large_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    path = write(tmp_path / "a.arrow", rows=5000)
    monkeypatch.setattr(arrow_messages, name, 100)
    with path.open("rb") as file, pytest.raises(FileFault, match="at most 100 are held") as fault:
        check_next_batch(file, path.stat().st_size)
    assert fault.value.reason == "unreadable"


def test_a_packed_buffer_is_believed_before_it_is_unpacked(tmp_path: Path, read: Read):
    path = write(tmp_path / "a.arrow", "zstd", rows=5000)
    content = path.read_bytes()
    honest = struct.pack("<q", 5000 * len("some words"))
    assert content.count(honest) == 1
    path.write_bytes(content.replace(honest, struct.pack("<q", 2**40)))
    (fault,) = read(path, "arrow")
    assert fault[0] == "expands too much"
