import bz2
import gzip
import io
import lzma
import random
import tracemalloc
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import zstandard

from phasewise.tasks.data.archives import unpack
from phasewise.tasks.data.findings import MAX_EXPANSION, FileFault
from phasewise.tasks.data.streams import Nature, WatchedFile, kind_of, open_watched, recognise
from tests.hostile_makers import arrow, lz4, parquet, tar, zipped
from tests.tasks.data.builds import Failing, FailingFileSystem

SKIPPABLE = b"\x5a\x2a\x4d\x18\3\0\0\0abc"
Pack = Callable[[bytes], bytes]
PACKINGS: dict[str, Pack] = {
    "x.GZIP": gzip.compress, "x.zst": zstandard.compress, "x.bz2": bz2.compress, "x.xz": lzma.compress, "x.lz4": lz4,
    "without-ending": gzip.compress,
}  # fmt: skip
LONGEST_MAGIC_BYTES = 10  # bzip2's; of fewer nobody can say what they were to become
CONTENT = random.Random(0).randbytes(100_000).hex().encode()


def array(values: Any) -> bytes:
    np.save(file := io.BytesIO(), np.array(values))
    return file.getvalue()


@pytest.mark.parametrize(("start", "nature", "name"), [
    (b"", "empty", "an empty file"),
    (gzip.compress(b"words"), "packed", "gzip"), (zstandard.compress(b"words"), "packed", "zstd"),
    (SKIPPABLE * 2 + zstandard.compress(b"words"), "packed", "zstd"), (SKIPPABLE + b"\x04\x22\x4d\x18", "packed", "lz4"),
    (bz2.compress(b"words"), "packed", "bzip2"), (bz2.compress(b""), "packed", "bzip2"), (lzma.compress(b"words"), "packed", "xz"),
    (zipped({"a.txt": b"words"}), "archive", "zip"), (tar({"a.txt": b"words"}), "archive", "tar"), (parquet(), "parquet", None),
    (arrow(pa.ipc.new_file), "arrow", "an Arrow file"), (arrow(pa.ipc.new_stream), "arrow", "an Arrow stream"),
    (arrow(pa.ipc.new_stream, use_legacy_format=True), "arrow", "an Arrow stream"),
    (b"WARC/1.1\r\nWARC-Type: response\r\n", "warc", None), (b"WARC/1.1 is a format.", "text", None),
    ("Grüße".encode("utf-16"), "wide text", "utf-16"), ("Grüße".encode("utf-32"), "wide text", "utf-32"),
    ("words without a mark".encode("utf-16-le"), "wide text", "utf-16-le"),
    ("words without a mark".encode("utf-16-be"), "wide text", "utf-16-be"),
    (b"\xef\xbb\xbf{}", "text", None), ("日本語".encode("shift-jis"), "text", None),
    (b"\x89PNG\r\n\x1a\n", "no text", "a PNG image"), (array([0.0]), "no text", "an array of numbers (NumPy)"),
    (array(["a text"]), "unknown", "a NumPy array of texts or objects"), (b"%PDF-1.7 words", "unknown", "a PDF document"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "unknown", None),
    (b"PARE" + bytes(50), "unknown", "an encrypted Parquet file"),
    (b"BM is a shop, BZh a word, PK another one and PARIS a town", "text", None),
    (bytes(range(256)), "unknown", None),
    (b'{"a": 1}\n' + bytes(range(256)), "text", None), (b'{"a": 1}' + bytes(range(256)), "unknown", None),
    (b"a form feed\fand \x1b[1mcolours\x1b[0m", "text", None), (b"one stray \0 in a long line of words" * 20, "unknown", None),
    (b"one stray \0 in a long line of words" + b" and more of them" * 20, "text", None),
])  # fmt: skip
def test_the_first_bytes_say_what_a_file_is(start: bytes, nature: Nature, name: str | None):
    assert kind_of(start).nature == nature
    assert name in (None, kind_of(start).name)


def unpacked(file: WatchedFile) -> io.BufferedReader:
    kind, stream = recognise(file)
    return io.BufferedReader(unpack(file, stream, kind.name)) if kind.nature == "packed" else stream


def read(path: Path) -> bytes:
    with open_watched(path.as_uri()) as file:
        return unpacked(file).read()


@pytest.mark.parametrize(("name", "pack"), PACKINGS.items())
def test_members_in_a_row_are_one_stream_and_a_bomb_goes_off_in_little_memory(tmp_path: Path, name: str, pack: Pack):
    path = tmp_path / name
    path.write_bytes(pack(CONTENT) + pack(b"") + pack(b"and more"))
    assert read(path) == CONTENT + b"and more"
    path = tmp_path / name
    path.write_bytes(pack(bytes(16 * 2**20)) * 20)
    tracemalloc.start()
    try:
        with open_watched(path.as_uri()) as file, pytest.raises(FileFault, match=f"at most {MAX_EXPANSION} of one") as fault:
            deque(iter(partial(unpacked(file).read, 2**20), b""), maxlen=0)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fault.value.reason == "expands too much"
    assert peak_bytes < 16 * 2**20


def test_a_cut_at_every_byte_is_noticed(tmp_path: Path):
    for name, pack in PACKINGS.items():
        packed = pack(b"a few words to be cut\n")
        for length in range(LONGEST_MAGIC_BYTES, len(packed)):
            (tmp_path / name).write_bytes(packed[:length])
            with pytest.raises(FileFault) as fault:
                read(tmp_path / name)
            assert fault.value.reason == "truncated", (name, length)


def test_what_the_file_system_fails_with_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Failing, "after", 50_000)
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    FailingFileSystem.content, Failing.failure = CONTENT, ConnectionResetError("connection lost")
    with open_watched("failing://x") as file:
        with pytest.raises(ConnectionResetError):
            unpacked(file).read()
        assert isinstance(file.failure, ConnectionResetError)
        assert 0 < file.taken_bytes < len(CONTENT)
