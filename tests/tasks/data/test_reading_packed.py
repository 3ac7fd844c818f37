"""Packed files and archives of a source: read whatever their names are, and what is of another format is refused by name."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phasewise.tasks.data import reading
from phasewise.tasks.data.documents import QUARANTINE_NAME, check_readable, tally_of
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.parts import part_bytes, read_to_parts
from phasewise.tasks.data.reading import Fault, Finding, Record, pieces_of, read_piece
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.manifest import SourceFile
from tests.tasks.data.builds import bundles

TEXTS = ["One line.", "Grüße, 日本語", "and a third"]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
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
    pq.write_table(pa.table({"text": TEXTS}), file)
    return file.getvalue()


def read(folder: Path, file_format: str = "jsonl") -> list[Finding]:
    source = Source.model_validate({"url": str(folder), "include": ("*",), "format": file_format})
    files = [SourceFile(name=path.name, size_bytes=path.stat().st_size, digest="") for path in sorted(folder.iterdir())]
    return [finding for piece in pieces_of(source, files) for finding in read_piece(source, piece)]


@pytest.mark.parametrize("pack", [tar, zipped])
def test_the_members_of_an_archive_are_its_documents(tmp_path: Path, pack: Pack):
    (tmp_path / "0b5f").write_bytes(pack({"a/x.jsonl": LINES, "y.jsonl.gz": gzip.compress(LINES)}))
    found = read(tmp_path)
    assert [finding.text for finding in found if isinstance(finding, Record)] == 2 * TEXTS
    assert found[0].where == "a/x.jsonl: byte 0"
    assert found[4].where == f"y.jsonl.gz: byte {LINES.index(10) + 1}"


@pytest.mark.parametrize("pack", [tar, zipped])
def test_tables_in_archives_are_read(tmp_path: Path, pack: Pack):
    (tmp_path / "x").write_bytes(gzip.compress(pack({"a.parquet": parquet()})))
    assert read(tmp_path, "parquet") == [Record(text, f"a.parquet: row {row}") for row, text in enumerate(TEXTS)]


@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_damaged_member_costs_no_other(tmp_path: Path, pack: Pack):
    files = {"a.gz": gzip.compress(LINES)[:-9], "b.png": b"\x89PNG\r\n\x1a\n", "c.jsonl": LINES}
    (tmp_path / "x").write_bytes(pack(files))
    found = read(tmp_path)
    faults = [(fault.reason, fault.where) for fault in found if isinstance(fault, Fault)]
    assert faults == [("truncated", "a.gz"), ("other format", "b.png")]
    assert next(finding.where for finding in found[-3:] if isinstance(finding, Record)) == "c.jsonl: byte 0"


def test_a_packed_file_that_is_not_called_so_is_read_by_its_first_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x").write_bytes(gzip.compress(LINES))
    monkeypatch.setattr(reading, "PIECE_BYTES", 20)
    assert [finding.text for finding in read(tmp_path) if isinstance(finding, Record)] == TEXTS
    (tmp_path / "x").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    assert [fault.reason for fault in read(tmp_path) if isinstance(fault, Fault)] == ["other format"]


def test_packing_within_packing_has_a_bound(tmp_path: Path):
    packed = LINES
    for _ in range(reading.MAX_LAYERS):
        packed = gzip.compress(packed)
    (tmp_path / "x").write_bytes(packed)
    assert [finding.text for finding in read(tmp_path) if isinstance(finding, Record)] == TEXTS
    (tmp_path / "x").write_bytes(gzip.compress(packed))
    (fault,) = read(tmp_path)
    assert isinstance(fault, Fault)
    assert (fault.reason, fault.whole_file) == ("other format", True)


@pytest.mark.parametrize(
    ("file_format", "content", "what"),
    [
        ("jsonl", parquet(), "Parquet"),
        ("jsonl", "{}".encode("utf-16"), "UTF-16 text"),
        ("text", b"%PDF-1.4", "a PDF document"),
        ("parquet", LINES, "text"),
        ("arrow", parquet(), "Parquet"),
        ("jsonl", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
    ],
)
def test_a_file_of_another_format_is_refused_by_name_whatever_the_limit(tmp_path: Path, file_format: str, content: bytes, what: str):
    (tmp_path / "a").mkdir()
    for number in range(3):
        good = parquet() if file_format == "parquet" else LINES
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
