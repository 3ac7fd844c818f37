"""Good files of every kind, mutations of them by seed, and files that break readers by design."""

import bz2
import gzip
import io
import json
import lzma
import os
import socket
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

ROWS = 40
ABSURD = (b"\xff\xff\xff\x7f", b"\xff" * 8, b"\0\0\0\x80", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\0" * 8, b"\0\0\0\0\x01\0\0\0")
MIB = 2**20


def rows(count: int = ROWS) -> list[dict[str, Any]]:
    """Rows with text in a field, in a list and in an object."""
    texts = [f"Document {number} tells of {pow(7, number, 10**30)} things." for number in range(count)]
    return [{"id": f"row-{number}", "text": text, "tags": ["a", "b"], "of": {"n": "x"}} for number, text in enumerate(texts)]


def lines(count: int = ROWS) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows(count)).encode()


def table(count: int = ROWS) -> pa.Table:
    return pa.Table.from_pylist(rows(count))


def parquet(content: Any = None, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table() if content is None else content, file, **options)
    return file.getvalue()


def arrow(new: Callable[..., Any], content: pa.Table | None = None, rows: int = 15, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    content = table() if content is None else content
    with new(sink, content.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(content, max_chunksize=rows)
    return sink.getvalue().to_pybytes()


def lz4(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def tar(files: Mapping[str, bytes], kind: int = tarfile.DEFAULT_FORMAT, **heads: Any) -> bytes:
    """A tar; `heads` are set on every member's head."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in heads.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def zipped(files: Mapping[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packing) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=packing)
    return file.getvalue()


def warc(pages: Mapping[str, bytes], http_heads: bytes = b"Content-Type: text/html\r\n") -> bytes:
    """Answers of a server, each a record."""
    records = [b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 4\r\n\r\na: b\r\n\r\n"]
    for address, body in pages.items():
        block = b"HTTP/1.1 200 OK\r\n" + http_heads + b"\r\n" + body
        head = f"WARC-Type: response\r\nWARC-Target-URI: {address}\r\nContent-Type: application/http\r\nContent-Length: {len(block)}"
        records.append(b"WARC/1.0\r\n" + head.encode() + b"\r\n\r\n" + block + b"\r\n\r\n")
    return b"".join(records)


def good_files() -> dict[str, bytes]:
    """Name → content of a file of each kind that is read."""
    members = {"a/x.jsonl": lines(), "y.txt": b"a few words", "z.parquet": parquet()}
    half = len(lines()) // 2
    return {
        "a.jsonl": lines(),
        "a.json": json.dumps(rows(), indent=1).encode(),
        "a.txt": b"Words and more words.\n" * 50,
        "utf16.txt": "Wörter und noch mehr.\n".encode("utf-16") * 20,
        "a.jsonl.gz": gzip.compress(lines()),
        "members.jsonl.gz": gzip.compress(lines()[:half]) + gzip.compress(lines()[half:]),
        "a.jsonl.zst": zstandard.compress(lines()),
        "a.jsonl.xz": lzma.compress(lines()),
        "a.jsonl.bz2": bz2.compress(lines()),
        "a.jsonl.lz4": lz4(lines()),
        "a.parquet": parquet(),
        "plain.parquet": parquet(use_dictionary=False, compression="none"),
        "deltas.parquet": parquet(table().select(["text"]), use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}),
        "pages.parquet": parquet(compression="zstd", data_page_version="2.0", data_page_size=200, row_group_size=15),
        "file.arrow": arrow(pa.ipc.new_file),
        "packed.arrow": arrow(pa.ipc.new_file, compression="lz4"),
        "stream.arrow": arrow(pa.ipc.new_stream, compression="zstd"),
        "old.arrow": arrow(pa.ipc.new_stream, use_legacy_format=True),
        "a.zip": zipped(members),
        "stored.zip": zipped(members, zipfile.ZIP_STORED),
        "a.tar": tar(members),
        "a.tar.gz": gzip.compress(tar(members)),
        "tar.zip": zipped({"in.tar": tar(members)}),
        "a.warc": warc({"http://x/1": b"<p>words", "http://x/2": lines()}),
        "a.warc.gz": gzip.compress(warc({"http://x/1": b"<p>words"})) + gzip.compress(warc({"http://x/2": lines()})),
    }


PACKERS: tuple[Callable[[bytes], bytes], ...] = (
    gzip.compress, zstandard.compress, lambda raw: tar({"in": raw}), lambda raw: zipped({"in": raw}),
)  # fmt: skip


def mutations(folder: Path, count: int, seed: int) -> Iterator[Path]:
    """Good files, damaged; each is gone when the next is asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    good = good_files()
    rng = Random(seed)
    for number in range(count):
        name = rng.choice(list(good))
        content = mutated(good[name], rng, others=list(good.values()))
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            content = rng.choice(PACKERS)(content)
        path = folder / f"{number:05d}-{name if rng.random() < 0.5 else name.replace('.', '-')}"
        path.write_bytes(content)
        yield path
        path.unlink()


def mutated(content: bytes, rng: Random, *, others: list[bytes]) -> bytes:
    """One to three changes: bits, bytes, lengths, cuts, splices, repeats."""
    raw = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(raw)) if raw else 0
        match rng.randrange(7):
            case 0:
                for _ in range(rng.choice((1, 8, 64))):
                    if raw:
                        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            case 1:
                raw[at : at + 8] = rng.choice(ABSURD)
            case 2:
                del raw[at:]
            case 3:
                del raw[at : at + rng.choice((1, 7, 100, 1000))]
            case 4:
                raw[at:at] = rng.choice(others)[: rng.choice((16, 500, 10**6))]
            case 5:
                raw[at:at] = raw[at : at + rng.choice((16, 500))] * rng.choice((1, 30))
            case _:
                raw[at : at + 16] = rng.randbytes(rng.randrange(64))
    return bytes(raw)


def designed(folder: Path, mib: int = 256) -> list[Path]:
    """Files that break readers: bombs that open to `mib` MiB and more, lies, links, and what is no file at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {**_bombs(mib), **_lies(), **_oddities()}.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        try:
            os.chdir(folder)  # the path of a socket must be short
            listening.bind("socket.jsonl")
        finally:
            os.chdir(here)
    (folder / "to nowhere.jsonl").symlink_to(folder / "nowhere")
    (folder / "link.jsonl").symlink_to(folder / "bom.jsonl")
    (folder / "folder.jsonl").mkdir()
    (folder / "folder.jsonl" / "a").write_bytes(lines())
    return sorted(folder.iterdir())


def _bombs(mib: int) -> dict[str, bytes]:
    words = b"word " * (MIB // 5)
    piece = gzip.compress(b"word " * (mib * MIB // 5), compresslevel=6)
    flat = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * (mib * 4), pa.int32()), pa.array(["x" * MIB]))})
    lists = pa.ListArray.from_arrays(pa.array([0, mib * 4], pa.int32()), flat["text"].combine_chunks())
    deltas = pa.table({"text": pa.array(["x" * (MIB - 8) + f"{number:08d}" for number in range(min(mib, 128))])})
    sheet = dict.fromkeys((f"{number}.zip" for number in range(mib // 8)), zipped({"a": words * 16}))
    return {
        "bomb.gz": piece,
        "bomb.gz.gz": gzip.compress(piece),
        "bomb.zst": zstandard.compress(words * mib),
        "bomb.xz": lzma.compress(words * mib, preset=0),
        "bomb.lz4": lz4(words * mib),
        "bombs.zip": zipped(sheet),
        "bomb.json": b"[" + b"[]," * (mib * MIB // 24) + b"0]",
        "bomb.jsonl": b'{"text": [' + b"{}," * (mib * MIB // 24) + b"0]}\n",
        "deep.json": b"[" * 10**6,
        "nested.json": b"[" * 1000 + b'"words"' + b"]" * 1000,
        "one line.json": b'["' + b"word " * (mib * MIB // 20) + b'"]',
        "indices.parquet": parquet(flat),
        "lists of indices.parquet": parquet(pa.table({"text": lists})),
        "deltas.parquet": parquet(deltas, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}, compression="zstd"),
        "page.parquet": parquet(pa.table({"text": ["x" * mib * MIB]}), use_dictionary=False, compression="zstd"),
    }


def _lies() -> dict[str, bytes]:
    good = zipped({"a.jsonl": lines()})
    encrypted = bytearray(good)
    for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        encrypted[good.index(mark) + flags] |= 1
    entries = good.rindex(b"PK\5\6")
    members = {"/etc/x.jsonl": lines(), "../../y.jsonl": lines()}
    pax = tar({"a": b"size=99999999999999"})
    return {
        "encrypted.zip": bytes(encrypted),
        "two.zip": good + good,
        "table.zip": good[: entries + 12] + struct.pack("<II", 2**31, 0) + good[entries + 20 :],
        "outside.tar": tar(members),
        "links.tar": tar({"to x": b""}, type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        "devices.tar": tar({"x": b""}, type=tarfile.CHRTYPE),
        "sparse.tar": tar({"x": b"words"}, type=tarfile.GNUTYPE_SPARSE),
        "two.tar": tar(members) + tar(members),
        "sizes.tar": pax.replace(b"a\0", b"x\0", 1),
        "cut.tar": tar({"a.txt": b"word " * 1000})[:3000],
        "negative.warc": warc({"http://x": b"words"}).replace(b"Content-Length: 4", b"Content-Length: -9"),
        "long.warc": warc({"http://x": b"words"}).replace(b"Content-Length: 4", b"Content-Length: 99999999999"),
        "garbage behind.gz": gzip.compress(lines()) + b"garbage",
    }


def _oddities() -> dict[str, bytes]:
    np.save(numbers := io.BytesIO(), np.zeros(100))
    np.save(text := io.BytesIO(), np.array(["a text"]))
    twice = pa.table([pa.array(["one"]), pa.array(["two"])], names=["text", "text"])
    return {
        "empty.jsonl": b"",
        "empty.gz": gzip.compress(b""),
        "bom.jsonl": b"\xef\xbb\xbf" + lines(),
        "utf-16.jsonl": lines().decode().encode("utf-16"),
        "zeros": bytes(10**5),
        "numbers.npy": numbers.getvalue(),
        "texts.npy": text.getvalue(),
        "image.jsonl": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "twice.parquet": parquet(twice),
        "pointer.parquet": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "b10b": parquet(),
        "one huge line.jsonl": b'{"text": "' + b"word " * (8 * MIB) + b'"}',
    }
