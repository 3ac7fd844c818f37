"""Pieces of a source: how files are split, what is the data's fault, and what is not."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from fsspec.implementations.memory import MemoryFileSystem

from phasewise.tasks.data import reading, tables
from phasewise.tasks.data.documents import QUARANTINE_NAME, check_readable, read_to_parts, tally_of
from phasewise.tasks.data.listing import fingerprint, part_bytes
from phasewise.tasks.data.reading import PIECE_BYTES, Fault, Finding, Record, pieces_of, read_piece
from phasewise.tasks.data.source import Piece, Source
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.data.manifest import SourceFile
from tests.tasks.data.builds import bundles

PACKED_TEXTS = ["One line.", "Grüße, 日本語", "and a third"]
PACKED_LINES = "".join(json.dumps({"text": text}) + "\n" for text in PACKED_TEXTS).encode()
Files = dict[str, bytes]
Pack = Callable[[Files], bytes]


def tar(files: Files) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def zipped(files: Files) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": PACKED_TEXTS}), file)
    return file.getvalue()


def read_packed(folder: Path, file_format: str = "jsonl") -> list[Finding]:
    source = Source.model_validate({"url": str(folder), "include": ("*",), "format": file_format})
    files = [SourceFile(name=path.name, size_bytes=path.stat().st_size, digest="") for path in sorted(folder.iterdir())]
    return [finding for piece in pieces_of(source, files) for finding in read_piece(source, piece)]


@pytest.mark.parametrize("pack", [tar, zipped])
def test_the_members_of_an_archive_are_its_documents(tmp_path: Path, pack: Pack):
    (tmp_path / "0b5f").write_bytes(pack({"a/x.jsonl": PACKED_LINES, "y.jsonl.gz": gzip.compress(PACKED_LINES)}))
    found = read_packed(tmp_path)
    assert [finding.text for finding in found if isinstance(finding, Record)] == 2 * PACKED_TEXTS
    assert found[0].where == "a/x.jsonl: byte 0"
    assert found[4].where == f"y.jsonl.gz: byte {PACKED_LINES.index(10) + 1}"


@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_damaged_member_costs_no_other(tmp_path: Path, pack: Pack):
    files = {"a.gz": gzip.compress(PACKED_LINES)[:-9], "b.png": b"\x89PNG\r\n\x1a\n", "c.jsonl": PACKED_LINES}
    (tmp_path / "x").write_bytes(pack(files))
    found = read_packed(tmp_path)
    faults = [(fault.reason, fault.where) for fault in found if isinstance(fault, Fault)]
    assert faults == [("truncated", "a.gz"), ("other format", "b.png")]
    assert next(finding.where for finding in found[-3:] if isinstance(finding, Record)) == "c.jsonl: byte 0"


def test_packing_within_packing_has_a_bound(tmp_path: Path):
    packed = PACKED_LINES
    for _ in range(reading.MAX_LAYERS):
        packed = gzip.compress(packed)
    (tmp_path / "x").write_bytes(packed)
    assert [finding.text for finding in read_packed(tmp_path) if isinstance(finding, Record)] == PACKED_TEXTS
    (tmp_path / "x").write_bytes(gzip.compress(packed))
    (fault,) = read_packed(tmp_path)
    assert isinstance(fault, Fault)
    assert (fault.reason, fault.whole_file) == ("other format", True)


@pytest.mark.parametrize(
    ("file_format", "content", "what"),
    [
        ("jsonl", parquet(), "Parquet"),
        ("jsonl", "{}".encode("utf-16"), "UTF-16 text"),
        ("text", b"%PDF-1.4", "a PDF document"),
        ("parquet", PACKED_LINES, "text"),
        ("arrow", parquet(), "Parquet"),
        ("jsonl", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
    ],
)
def test_a_file_of_another_format_is_refused_by_name_whatever_the_limit(tmp_path: Path, file_format: str, content: bytes, what: str):
    (tmp_path / "a").mkdir()
    for number in range(3):
        good = parquet() if file_format == "parquet" else PACKED_LINES
        (tmp_path / "a" / f"{number}").write_bytes(good)
    (tmp_path / "a" / "wrong").write_bytes(content)
    source = Source.model_validate({"url": str(tmp_path / "a"), "include": ("*",), "format": file_format, "max_bad_fraction": 1.0})
    listing = fingerprint(source)
    records = [read_to_parts(bundle, part_bytes(listing.files), tmp_path / "out") for bundle in bundles(source, listing)]
    with pytest.raises(DataError, match=rf"web: .*wrong \(it is {what}.* Exclude them by a glob") as refusal:
        check_readable("web", source, tally_of(records, listing), tmp_path / "out")
    assert QUARANTINE_NAME in str(refusal.value)
    assert (source.exclude, listing.excluded) == ((), ())
    without = source.but(exclude=("wrong",))
    assert fingerprint(without).excluded == ("wrong",)


TEXTS = ["One line.", 'Two lines\nand a "quote".', "Grüße, 日本語, 🌳", "cafe\u0301\r\nnot yet normalised"]
LINES = "".join(json.dumps({"text": text, "lang": "en"}) + "\n" for text in TEXTS).encode()
PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "a.jsonl": bytes,
    "a.jsonl.gz": gzip.compress,
    "a.json.gzip": gzip.compress,
    "a.jsonl.zst": zstandard.compress,
    "a.jsonl.zstd": zstandard.compress,
    "a.jsonl.bz2": bz2.compress,
    "a.jsonl.xz": lzma.compress,
}


def source(url: str, file_format: str = "jsonl", **changes: object) -> Source:
    return Source.model_validate({"url": url, "include": ("*",), "format": file_format, **changes})


def files(folder: Path) -> list[SourceFile]:
    return [SourceFile(name=path.name, size_bytes=path.stat().st_size, digest="") for path in sorted(folder.iterdir())]


def read(folder: Path, **changes: object) -> list[Finding]:
    """Every piece of every file in the folder."""
    read_from = source(folder.as_uri(), **changes)  # pyright: ignore[reportArgumentType]  # by name
    return [finding for piece in pieces_of(read_from, files(folder)) for finding in read_piece(read_from, piece)]


@pytest.mark.parametrize(("name", "pack"), PACKINGS.items())
def test_packed_or_not_the_texts_come_as_they_stand(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]):
    (tmp_path / name).write_bytes(pack(LINES))
    found = read(tmp_path)
    assert [finding.text for finding in found if isinstance(finding, Record)] == TEXTS
    assert found[1].where == f"byte {LINES.index(10) + 1}"


def test_plain_lines_are_split_by_bytes_and_all_else_is_whole():
    revised = source("hf://datasets/owner/name", revision="main")
    long = SourceFile(name="data/a.jsonl", size_bytes=2 * PIECE_BYTES + 5, digest="")
    url = "hf://datasets/owner/name@main/data/a.jsonl"
    assert pieces_of(revised, [long]) == (
        Piece(name="data/a.jsonl", url=url, start=0, stop=PIECE_BYTES),
        Piece(name="data/a.jsonl", url=url, start=PIECE_BYTES, stop=2 * PIECE_BYTES),
        Piece(name="data/a.jsonl", url=url, start=2 * PIECE_BYTES, stop=2 * PIECE_BYTES + 5),
    )
    packed = SourceFile(name="a.jsonl.GZ", size_bytes=2 * PIECE_BYTES, digest="")
    table = SourceFile(name="a.parquet", size_bytes=2 * PIECE_BYTES, digest="")
    assert pieces_of(source("gs://bucket/x/"), [packed]) == (Piece(name="a.jsonl.GZ", url="gs://bucket/x/a.jsonl.GZ"),)
    assert pieces_of(source("/x", "parquet"), [table]) == (Piece(name="a.parquet", url="/x/a.parquet"),)


def test_pieces_of_a_long_file_give_its_documents_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.jsonl").write_bytes(LINES * 50)
    whole = read(tmp_path)
    monkeypatch.setattr(reading, "PIECE_BYTES", 777)
    assert len(pieces_of(source(str(tmp_path)), files(tmp_path))) > 10
    assert read(tmp_path) == whole
    assert len(whole) == 200


@pytest.mark.parametrize("file_format", ["text", "markdown"])
def test_a_filter_by_field_needs_fields(tmp_path: Path, file_format: str):
    (tmp_path / "a.txt").write_bytes(LINES)
    with pytest.raises(ConfigError, match="filters by lang need documents with fields"):
        read(tmp_path, file_format=file_format, filters=[{"kind": "field", "key": "lang", "keep": ["en"]}])


@pytest.mark.parametrize("file_format", ["jsonl", "parquet", "arrow", "text"])
def test_a_file_that_is_gone_is_refused(tmp_path: Path, file_format: str):
    piece = Piece(name="a", url=(tmp_path / "a").as_uri())
    with pytest.raises(DataError, match="was listed as a source file and is gone"):
        list(read_piece(source(str(tmp_path), file_format), piece))


def test_a_file_that_shrinks_is_refused(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (piece,) = pieces_of(source(str(tmp_path)), files(tmp_path))
    (tmp_path / "a.jsonl").write_bytes(LINES[:100])
    with pytest.raises(DataError, match=f"has 100 bytes, and {len(LINES)} were listed"):
        list(read_piece(source(str(tmp_path)), piece))


class Failing(io.BytesIO):
    """A file of a store that fails at the second read."""

    failure: Exception

    def readinto(self, buffer: object, /) -> int:
        if self.tell() >= 4:
            raise self.failure
        return super().readinto(memoryview(buffer)[:4])  # pyright: ignore[reportArgumentType]  # a buffer


class FailingFileSystem(MemoryFileSystem):
    protocol = "failing"
    content = b""

    def _open(self, path: str, *_: object, **__: object) -> Failing:
        return Failing(self.content)


@pytest.fixture
def store() -> type[FailingFileSystem]:
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    return FailingFileSystem


@pytest.mark.parametrize(
    ("file_format", "name", "content"),
    [
        ("jsonl", "a.jsonl", LINES),
        ("jsonl", "a.jsonl.gz", gzip.compress(LINES)),
        ("jsonl", "a.jsonl.zst", zstandard.compress(LINES)),
        ("jsonl", "a.jsonl.xz", lzma.compress(LINES)),
        ("text", "a.txt", LINES),
        ("parquet", "a.parquet", b"PAR1" + bytes(100) + b"PAR1"),
        ("arrow", "a.arrow", b"\xff\xff\xff\xff" + bytes(100)),
    ],
)
def test_a_store_that_fails_is_no_fault_of_the_data(store: type[FailingFileSystem], file_format: str, name: str, content: bytes):
    store.content = content
    piece = Piece(name=name, url=f"failing://{name}")
    Failing.failure = ConnectionResetError("connection lost")
    with pytest.raises(ConnectionResetError, match="connection lost"):
        list(read_piece(source("failing://", file_format), piece))
    Failing.failure = PermissionError("no longer allowed")
    with pytest.raises(DataError, match="no longer allowed"):
        list(read_piece(source("failing://", file_format), piece))


def test_a_worker_short_of_memory_is_no_fault_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The system ends the process that reads."""
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet")
    monkeypatch.setattr(tables.Table, "batches", lambda table, *_: table._reader._process.kill() or table._reader.answer(table._file))
    with pytest.raises(MemoryError, match="was killed: is memory short"):
        read(tmp_path, file_format="parquet")
