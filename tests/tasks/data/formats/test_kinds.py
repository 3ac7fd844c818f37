"""What a file is, by its first bytes: what people pack, what holds no text, and what nothing here reads."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from phasewise.tasks.data.formats.kinds import SNIFF_BYTES, Nature, kind_of

TABLE = pa.table({"text": ["a few words"] * 20})


def saved(save: Any, *arguments: Any) -> bytes:
    file = io.BytesIO()
    save(file, *arguments)
    return file.getvalue()


def tar(name: str, content: bytes, kind: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "words")
    return file.getvalue()


def arrow(new: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with new(sink, TABLE.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(TABLE)
    return sink.getvalue().to_pybytes()


SKIPPABLE = b"\x5a\x2a\x4d\x18\3\0\0\0abc"


@pytest.mark.parametrize(
    ("start", "nature", "name"),
    [
        (b"", "empty", "an empty file"),
        (gzip.compress(b"words"), "packed", "gzip"),
        (zstandard.compress(b"words"), "packed", "zstd"),
        (SKIPPABLE * 2 + zstandard.compress(b"words"), "packed", "zstd"),
        (SKIPPABLE + b"\x04\x22\x4d\x18", "packed", "lz4"),
        (bz2.compress(b"words"), "packed", "bzip2"),
        (bz2.compress(b""), "packed", "bzip2"),
        (lzma.compress(b"words"), "packed", "xz"),
        (zipped(), "archive", "zip"),
        (tar("a.txt", b"words"), "archive", "tar"),
        (saved(lambda file: pq.write_table(TABLE, file)), "parquet", None),
        (arrow(pa.ipc.new_file), "arrow", "an Arrow file"),
        (arrow(pa.ipc.new_stream), "arrow", "an Arrow stream"),
        (arrow(pa.ipc.new_stream, use_legacy_format=True), "arrow", "an Arrow stream"),
        (b"WARC/1.1\r\nWARC-Type: response\r\n", "warc", None),
        (b"WARC/1.1 is a format.", "text", None),
        ("Grüße".encode("utf-16"), "wide text", "utf-16"),
        ("Grüße".encode("utf-32"), "wide text", "utf-32"),
        (b"words without a mark".decode().encode("utf-16-le"), "wide text", "utf-16-le"),
        (b"words without a mark".decode().encode("utf-16-be"), "wide text", "utf-16-be"),
        (b"\xef\xbb\xbf{}", "text", None),
        ("日本語".encode("shift-jis"), "text", None),
        (b"\x89PNG\r\n\x1a\n", "no text", "a PNG image"),
        (saved(np.save, np.zeros(3)), "no text", "an array of numbers (NumPy)"),
        (saved(np.save, np.array(["a text"])), "unknown", "a NumPy array of texts or objects"),
        (b"%PDF-1.7 words", "unknown", "a PDF document"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "unknown", None),
        (b"PARE" + bytes(50), "unknown", "an encrypted Parquet file"),
        (b"BM is a shop, BZh a word, PK another one and PARIS a town", "text", None),
        (bytes(range(256)), "unknown", None),
        (b'{"a": 1}\n' + bytes(range(256)), "text", None),
        (b'{"a": 1}' + bytes(range(256)), "unknown", None),
        (b"a form feed\fand \x1b[1mcolours\x1b[0m", "text", None),
        (b"one stray \0 in a long line of words" * 20, "unknown", None),
        (b"one stray \0 in a long line of words" + b" and more of them" * 20, "text", None),
    ],
)
def test_the_first_bytes_say_what_a_file_is(start: bytes, nature: Nature, name: str | None):
    assert kind_of(start).nature == nature
    assert name in (None, kind_of(start).name)


def test_text_that_is_cut_within_a_character_is_text():
    text = "\1" + "é" * SNIFF_BYTES
    for length in (SNIFF_BYTES, SNIFF_BYTES + 1):
        assert kind_of(text.encode()[:length]).nature == "text"
    assert kind_of(b"\1\xc3" + b"a" * 99).nature == "unknown"
