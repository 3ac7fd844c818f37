import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from phasewise.tasks.data import reading, tables
from phasewise.tasks.data.documents import read_to_parts, tally_of
from phasewise.tasks.data.findings import QUARANTINE_NAME, Tally, check_readable, left_out_of
from phasewise.tasks.data.listing import expand, fingerprint
from phasewise.tasks.data.reading import PIECE_BYTES, Fault, Record, pieces_of, read_piece
from phasewise.tasks.data.source import Piece, Source
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.data.manifest import SourceFile
from tests.hostile_makers import arrow, parquet, tar, zipped
from tests.tasks.data.builds import Failing, FailingFileSystem, bundles, write_documents

PACKED_TEXTS = ["One line.", "Grüße, 日本語", "and a third"]
Pack = Callable[[dict[str, bytes]], bytes]
TEXTS = ["One line.", 'Two lines\nand a "quote".', "Grüße, 日本語, 🌳", "cafe\u0301\r\nnot yet normalised"]
MANY = [f"Document number {number} of many." for number in range(60)]


def lines_of(texts: Sequence[str]) -> bytes:
    return "".join(json.dumps({"text": text, "lang": "en"}) + "\n" for text in texts).encode()


PACKED_LINES = lines_of(PACKED_TEXTS)
LINES = lines_of(TEXTS)
MANY_LINES = lines_of(MANY)


@pytest.mark.parametrize("pack", [tar, zipped])
def test_the_members_of_an_archive_are_its_documents_and_a_damaged_one_costs_no_other(tmp_path: Path, pack: Pack):
    (tmp_path / "0b5f").write_bytes(pack({"a/x.jsonl": PACKED_LINES, "y.jsonl.gz": gzip.compress(PACKED_LINES)}))
    found = read(tmp_path)
    assert ([finding.text for finding in found if isinstance(finding, Record)], found[0].where) == (2 * PACKED_TEXTS, "a/x.jsonl: byte 0")
    assert found[4].where == f"y.jsonl.gz: byte {PACKED_LINES.index(10) + 1}"
    files = {"a.gz": gzip.compress(PACKED_LINES)[:-9], "b.png": b"\x89PNG\r\n\x1a\n", "c.jsonl": PACKED_LINES}
    (tmp_path / "0b5f").write_bytes(pack(files))
    found = read(tmp_path)
    faults = [(fault.reason, fault.where) for fault in found if isinstance(fault, Fault)]
    assert faults == [("truncated", "a.gz"), ("other format", "b.png")]
    assert next(finding.where for finding in found[-3:] if isinstance(finding, Record)) == "c.jsonl: byte 0"


def test_packing_within_packing_has_a_bound(tmp_path: Path):
    packed = PACKED_LINES
    for _ in range(reading.MAX_LAYERS):
        packed = gzip.compress(packed)
    (tmp_path / "x").write_bytes(packed)
    assert [finding.text for finding in read(tmp_path) if isinstance(finding, Record)] == PACKED_TEXTS
    (tmp_path / "x").write_bytes(gzip.compress(packed))
    (fault,) = read(tmp_path)
    assert (type(fault), fault.reason, fault.whole_file) == (Fault, "other format", True)


@pytest.mark.parametrize(("file_format", "content", "what"), [
    ("jsonl", parquet(), "Parquet"), ("arrow", parquet(), "Parquet"), ("parquet", PACKED_LINES, "text"),
    ("jsonl", "{}".encode("utf-16"), "UTF-16 text"), ("text", b"%PDF-1.4", "a PDF document"),
    ("jsonl", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
])  # fmt: skip
def test_a_file_of_another_format_is_refused_by_name_whatever_the_limit(tmp_path: Path, file_format: str, content: bytes, what: str):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "good").write_bytes(parquet() if file_format == "parquet" else PACKED_LINES)
    (tmp_path / "a" / "wrong").write_bytes(content)
    wanted = source(str(tmp_path / "a"), file_format, max_bad_fraction=1.0)
    with pytest.raises(DataError, match=rf"web: .*wrong \(it is {what}.* Exclude them by a glob") as refusal:
        check_readable("web", wanted, tally(wanted, tmp_path / "out"), tmp_path / "out")
    assert QUARANTINE_NAME in str(refusal.value)
    assert (fingerprint(wanted).excluded, fingerprint(wanted.but(exclude=("wrong",))).excluded) == ((), ("wrong",))


def source(url: str, file_format: str = "jsonl", **changes: object) -> Source:
    return Source.model_validate({"url": url, "include": ("*",), "format": file_format, **changes})


def files(folder: Path) -> list[SourceFile]:
    return [SourceFile(name=path.name, size_bytes=path.stat().st_size, digest="") for path in sorted(folder.iterdir())]


def tally(from_: Source, folder: Path) -> Tally:
    listing = fingerprint(from_)
    return tally_of([read_to_parts(bundle, 1 << 20, folder) for bundle in bundles(from_, listing)], listing)


def read(folder: Path, **changes: Any) -> list[Any]:
    read_from = source(folder.as_uri(), **changes)
    return [finding for piece in pieces_of(read_from, files(folder)) for finding in read_piece(read_from, piece)]


@pytest.mark.parametrize(("name", "pack"), [
    ("a.jsonl", bytes), ("a.json.gzip", gzip.compress), ("a.jsonl.zst", zstandard.compress), ("a.jsonl.bz2", bz2.compress),
    ("a.xz", lzma.compress),
])  # fmt: skip
def test_packed_or_not_the_texts_come_as_they_stand(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]):
    (tmp_path / name).write_bytes(pack(LINES))
    found = read(tmp_path)
    assert ([finding.text for finding in found if isinstance(finding, Record)], found[1].where) == (TEXTS, f"byte {LINES.index(10) + 1}")


def test_plain_lines_are_split_by_bytes_and_all_else_is_whole():
    long = SourceFile(name="data/a.jsonl", size_bytes=2 * PIECE_BYTES + 5, digest="")
    url, edges = "hf://datasets/owner/name@main/data/a.jsonl", (0, PIECE_BYTES, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 5)
    pieces = tuple(Piece(name="data/a.jsonl", url=url, start=start, stop=stop) for start, stop in pairwise(edges))
    assert pieces_of(source("hf://datasets/owner/name", revision="main"), [long]) == pieces
    packed, table = (SourceFile(name=name, size_bytes=2 * PIECE_BYTES, digest="") for name in ("a.jsonl.GZ", "a.parquet"))
    assert pieces_of(source("gs://bucket/x/"), [packed]) == (Piece(name="a.jsonl.GZ", url="gs://bucket/x/a.jsonl.GZ"),)
    assert pieces_of(source("/x", "parquet"), [table]) == (Piece(name="a.parquet", url="/x/a.parquet"),)


def test_pieces_of_a_long_file_give_its_documents_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.jsonl").write_bytes(LINES * 50)
    whole = read(tmp_path)
    monkeypatch.setattr(reading, "PIECE_BYTES", 777)
    assert len(pieces_of(source(str(tmp_path)), files(tmp_path))) > 10
    assert (read(tmp_path), len(whole)) == (whole, 200)


def test_a_filter_by_field_needs_fields_and_a_file_that_is_gone_or_shrinks_is_refused(tmp_path: Path):
    for file_format in ("jsonl", "parquet", "arrow", "text"):
        with pytest.raises(DataError, match="was listed as a source file and is gone: put it back"):
            list(read_piece(source(str(tmp_path), file_format), Piece(name="a", url=(tmp_path / "a").as_uri())))
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (piece,) = pieces_of(source(str(tmp_path)), files(tmp_path))
    (tmp_path / "a.jsonl").write_bytes(LINES[:100])
    with pytest.raises(DataError, match=f"has 100 bytes, and {len(LINES)} were listed"):
        list(read_piece(source(str(tmp_path)), piece))
    (tmp_path / "a.txt").write_bytes(LINES)
    for file_format in ("text", "markdown"):
        with pytest.raises(ConfigError, match="filters by lang need documents with fields"):
            read(tmp_path, file_format=file_format, filters=[{"kind": "field", "key": "lang", "keep": ["en"]}])


@pytest.mark.parametrize(("file_format", "name", "content"), [
    ("jsonl", "a.jsonl", LINES), ("jsonl", "a.jsonl.gz", gzip.compress(LINES)), ("jsonl", "a.jsonl.zst", zstandard.compress(LINES)),
    ("jsonl", "a.jsonl.xz", lzma.compress(LINES)), ("text", "a.txt", LINES),
    ("parquet", "a.parquet", b"PAR1" + bytes(100) + b"PAR1"), ("arrow", "a.arrow", b"\xff\xff\xff\xff" + bytes(100)),
])  # fmt: skip
def test_a_store_that_fails_is_no_fault_of_the_data(file_format: str, name: str, content: bytes):
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    FailingFileSystem.content = content
    for failure, kind in ((ConnectionResetError("connection lost"), ConnectionResetError), (PermissionError("not allowed"), DataError)):
        Failing.failure = failure
        with pytest.raises(kind, match=str(failure)):
            list(read_piece(source("failing://", file_format), Piece(name=name, url=f"failing://{name}")))


def test_a_worker_short_of_memory_is_no_fault_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet")
    monkeypatch.setattr(tables.Table, "batches", lambda table, *_: table.reader._process.kill() or table.reader.answer(table.file))
    with pytest.raises(MemoryError, match="was killed: is memory short"):
        read(tmp_path, file_format="parquet")


def texts(values: Sequence[str | None]) -> pa.Table:
    return pa.table({"text": pa.array(values, pa.string())})


EMPTY: dict[str, tuple[str, bytes, bytes]] = {
    "no byte": ("jsonl", MANY_LINES, b""), "blank lines": ("jsonl", MANY_LINES, b"\n \r\n\n"),
    "gzip of nothing": ("jsonl", MANY_LINES, gzip.compress(b"")), "gzip of a blank line": ("jsonl", MANY_LINES, gzip.compress(b"\n")),
    "zip of nothing": ("jsonl", MANY_LINES, zipped({})), "Parquet without rows": ("parquet", parquet(texts(MANY)), parquet(texts([]))),
    "Parquet without columns": ("parquet", parquet(texts(MANY)), parquet(pa.table({}))),
    "Parquet without a byte": ("parquet", parquet(texts(MANY)), b""),
    "Arrow without rows": ("arrow", arrow(pa.ipc.new_stream, texts(MANY)), arrow(pa.ipc.new_stream, texts([]))),
    "text without a byte": ("text", "\n".join(MANY).encode(), b""),
    "paragraphs without a byte": ("paragraphs", "\n\n".join(MANY * 99).encode(), b""),
}  # fmt: skip
NO_TEXT: dict[str, tuple[str, bytes]] = {
    "null": ("jsonl", b'{"text": null}\n' * 40), "nothing": ("jsonl", b'{"text": ""}\n' * 40),
    "space": ("jsonl", b'{"text": " \\n\\t"}\n' * 40), "NaN": ("jsonl", b'{"text": NaN}\n' * 40),
    "null in Parquet": ("parquet", parquet(texts([None] * 40))), "nothing in Parquet": ("parquet", parquet(texts([""] * 40))),
    "null in Arrow": ("arrow", arrow(pa.ipc.new_stream, texts([None] * 40))),
    "members of an archive": ("text", zipped({str(number): b"" for number in range(40)})),
}  # fmt: skip


@pytest.mark.parametrize("kind", EMPTY)
def test_a_shard_without_documents_is_left_out_and_counted(tmp_path: Path, kind: str):
    format_, good, empty = EMPTY[kind]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(good)
    (tmp_path / "in" / "b").write_bytes(empty)
    wanted = source(str(tmp_path / "in"), format_)
    found = tally(wanted, tmp_path / "out")
    assert (found.files, found.empty_files, found.bad_files, found.bad_fraction, found.empty_fraction) == (2, ("b",), {}, 0, 0.5)
    check_readable("web", wanted, found, tmp_path)
    assert left_out_of(found) == "1 of 2 files without documents (b)"
    with pytest.raises(DataError, match=r"at most 40\.0000% .* without text, found 50\.0000% .* empty file, 1 file, such as b: fetch"):
        check_readable("web", wanted.but(max_empty_fraction=0.4), found, tmp_path)


@pytest.mark.parametrize("kind", NO_TEXT)
def test_documents_without_text_are_left_out_in_every_form(tmp_path: Path, kind: str):
    format_, content = NO_TEXT[kind]
    good = {
        "jsonl": MANY_LINES, "parquet": parquet(texts(MANY)), "arrow": arrow(pa.ipc.new_stream, texts(MANY)),
        "text": zipped({"a": b"A text."}),
    }  # fmt: skip
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(good[format_])
    (tmp_path / "in" / "b").write_bytes(content)
    wanted = source(str(tmp_path / "in"), format_)
    found = tally(wanted, tmp_path / "out")
    assert (sum(found.empty.values()), found.bad_fraction, found.empty_files, found.empty_fraction) == (40, 0, (), 40 / found.documents)
    with pytest.raises(DataError, match=r"may be without text, found .* empty (text|file), 40 documents: "):
        check_readable("web", wanted.but(max_empty_fraction=0.3), found, tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A Hub cache with a data set whose files are links into its blobs, as `huggingface_hub` leaves it."""
    data_set = tmp_path / "hub" / "datasets--owner--name"
    (data_set / "blobs").mkdir(parents=True)
    snapshot = data_set / "snapshots" / ("c" * 40)
    (snapshot / "data").mkdir(parents=True)
    (data_set / "blobs" / "1f").write_bytes(MANY_LINES)
    (data_set / "blobs" / "2f").write_bytes(gzip.compress(MANY_LINES))
    (snapshot / "a.jsonl").symlink_to("../../blobs/1f")
    (snapshot / "data" / "b.jsonl.gz").symlink_to("../../../blobs/2f")
    return snapshot


def test_links_of_a_snapshot_into_its_blobs_are_read(cache: Path, tmp_path: Path):
    (tmp_path / "mine").symlink_to(cache)
    names = {
        cache: ["a.jsonl", "data/b.jsonl.gz"], cache / "data": ["b.jsonl.gz"],
        cache.parent: [f"{cache.name}/a.jsonl", f"{cache.name}/data/b.jsonl.gz"], tmp_path / "mine": ["a.jsonl", "data/b.jsonl.gz"],
    }  # fmt: skip
    for number, (root, expected) in enumerate(names.items()):
        from_ = source(str(root)).but(include=("*.jsonl*",))
        found = expand(from_)
        assert (list(found.files), found.rejected) == (expected, ())
        manifest = write_documents(from_, tmp_path / f"out-{number}")
        assert manifest.train + manifest.held_out == 60


@pytest.mark.parametrize("target", [
    "../../../datasets--other--name/blobs/3f", "../../refs/main", "../../secret.jsonl", "../../blobs/folder/deep", "/etc/hostname",
])  # fmt: skip
def test_a_link_that_leads_anywhere_else_is_turned_away_with_what_to_do(cache: Path, tmp_path: Path, target: str):
    for path in ("../datasets--other--name/blobs/3f", "refs/main", "secret.jsonl", "blobs/folder/deep"):
        other = cache.parent.parent / path
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(MANY_LINES)
    (cache / "z.jsonl").symlink_to(target)
    from_ = source(str(cache))
    assert [(one.name, one.reason) for one in expand(from_).rejected] == [("z.jsonl", "outside the root")]
    with pytest.raises(DataError, match=r"outside the root, 1 file, such as z\.jsonl: the link leads out .* name in `url`") as said:
        check_readable("web", from_, tally(from_, tmp_path / "out"), tmp_path)
    assert "max_bad_fraction" not in str(said.value)
