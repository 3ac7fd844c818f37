"""Files as people have them: shards without documents, NaN in other fields, lists of records, snapshots of a Hub cache."""

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phasewise.tasks.data.documents import check_readable, read_to_parts, tally_of
from phasewise.tasks.data.findings import Tally, left_out_of
from phasewise.tasks.data.listing import expand, fingerprint
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.errors import DataError
from tests.tasks.data.builds import bundles, write_documents

TEXTS = [f"Document number {number} of many." for number in range(60)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


def table(texts: Sequence[str | None], write: Callable[[pa.Table, io.BytesIO], None]) -> bytes:
    file = io.BytesIO()
    write(pa.table({"text": pa.array(texts, pa.string())}), file)
    return file.getvalue()


def write_arrow(data: pa.Table, file: io.BytesIO) -> None:
    with pa.ipc.new_stream(file, data.schema) as writer:
        writer.write_table(data)


def write_parquet(data: pa.Table, file: io.BytesIO) -> None:
    pq.write_table(data, file)


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def source(folder: Path, format: str = "jsonl", **fields: Any) -> Source:
    return Source.model_validate({"url": str(folder), "include": ("*",), "format": format, **fields})


def read(from_: Source, folder: Path) -> Tally:
    listing = fingerprint(from_)
    return tally_of([read_to_parts(bundle, 1 << 20, folder) for bundle in bundles(from_, listing)], listing)


def without_columns() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({}), file)
    return file.getvalue()


EMPTY: dict[str, tuple[str, bytes, bytes]] = {
    "no byte": ("jsonl", LINES, b""),
    "blank lines": ("jsonl", LINES, b"\n \r\n\n"),
    "gzip of nothing": ("jsonl", LINES, gzip.compress(b"")),
    "gzip of a blank line": ("jsonl", LINES, gzip.compress(b"\n")),
    "zip of nothing": ("jsonl", LINES, zipped()),
    "Parquet without rows": ("parquet", table(TEXTS, write_parquet), table([], write_parquet)),
    "Parquet without columns": ("parquet", table(TEXTS, write_parquet), without_columns()),
    "Parquet without a byte": ("parquet", table(TEXTS, write_parquet), b""),
    "Arrow without rows": ("arrow", table(TEXTS, write_arrow), table([], write_arrow)),
    "text without a byte": ("text", "\n".join(TEXTS).encode(), b""),
    "paragraphs without a byte": ("paragraphs", "\n\n".join(TEXTS * 99).encode(), b""),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_a_shard_without_documents_is_left_out_and_counted(tmp_path: Path, kind: str):
    """Half of the files may be such by default, and no broken document is allowed for that."""
    format_, good, empty = EMPTY[kind]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(good)
    (tmp_path / "in" / "b").write_bytes(empty)
    tally = read(source(tmp_path / "in", format_), tmp_path / "out")
    assert (tally.files, tally.empty_files, tally.bad_files, tally.bad_fraction, tally.empty_fraction) == (2, ("b",), {}, 0, 0.5)
    check_readable("web", source(tmp_path / "in", format_), tally, tmp_path)
    assert left_out_of(tally) == "1 of 2 files without documents (b)"
    with pytest.raises(DataError, match=r"at most 40\.0000% .* without text, found 50\.0000% .* empty file, 1 file, such as b: fetch"):
        check_readable("web", source(tmp_path / "in", format_, max_empty_fraction=0.4), tally, tmp_path)


NO_TEXT: dict[str, tuple[str, bytes]] = {
    "null": ("jsonl", b'{"text": null}\n' * 40),
    "nothing": ("jsonl", b'{"text": ""}\n' * 40),
    "space": ("jsonl", b'{"text": " \\n\\t"}\n' * 40),
    "NaN": ("jsonl", b'{"text": NaN}\n' * 40),
    "null in Parquet": ("parquet", table([None] * 40, write_parquet)),
    "nothing in Parquet": ("parquet", table([""] * 40, write_parquet)),
    "null in Arrow": ("arrow", table([None] * 40, write_arrow)),
    "members of an archive": ("text", zipped(**{str(number): b"" for number in range(40)})),
}


@pytest.mark.parametrize("kind", NO_TEXT)
def test_documents_without_text_are_left_out_in_every_form(tmp_path: Path, kind: str):
    """Forty of a hundred are within the limit, or forty of eighty and a few; a key that is missing is a fault, whatever the limit."""
    format_, content = NO_TEXT[kind]
    good = {"jsonl": LINES, "parquet": table(TEXTS, write_parquet), "arrow": table(TEXTS, write_arrow), "text": zipped(a=b"A text.")}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(good[format_])
    (tmp_path / "in" / "b").write_bytes(content)
    tally = read(source(tmp_path / "in", format_), tmp_path / "out")
    assert sum(tally.empty.values()) == 40
    assert (tally.bad_fraction, tally.empty_files) == (0, ())
    assert tally.empty_fraction == 40 / tally.documents
    with pytest.raises(DataError, match=r"may be without text, found .* empty (text|file), 40 documents: "):
        check_readable("web", source(tmp_path / "in", format_, max_empty_fraction=0.3), tally, tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A Hub cache with a data set whose files are links into its blobs, as `huggingface_hub` leaves it."""
    data_set = tmp_path / "hub" / "datasets--owner--name"
    (data_set / "blobs").mkdir(parents=True)
    snapshot = data_set / "snapshots" / ("c" * 40)
    (snapshot / "data").mkdir(parents=True)
    (data_set / "blobs" / "1f").write_bytes(LINES)
    (data_set / "blobs" / "2f").write_bytes(gzip.compress(LINES))
    (snapshot / "a.jsonl").symlink_to("../../blobs/1f")
    (snapshot / "data" / "b.jsonl.gz").symlink_to("../../../blobs/2f")
    return snapshot


def test_links_of_a_snapshot_into_its_blobs_are_read(cache: Path, tmp_path: Path):
    (tmp_path / "mine").symlink_to(cache)
    names = {
        cache: ["a.jsonl", "data/b.jsonl.gz"],
        cache / "data": ["b.jsonl.gz"],
        cache.parent: [f"{cache.name}/a.jsonl", f"{cache.name}/data/b.jsonl.gz"],
        tmp_path / "mine": ["a.jsonl", "data/b.jsonl.gz"],
    }
    for number, (root, expected) in enumerate(names.items()):
        from_ = source(root).but(include=("*.jsonl*",))
        found = expand(from_)
        assert (list(found.files), found.rejected) == (expected, ())
        manifest = write_documents(from_, tmp_path / f"out-{number}")
        assert manifest.train + manifest.held_out == 60


@pytest.mark.parametrize(
    "target",
    ["../../../datasets--other--name/blobs/3f", "../../refs/main", "../../secret.jsonl", "../../blobs/folder/deep", "/etc/hostname"],
)
def test_a_link_that_leads_anywhere_else_is_turned_away_with_what_to_do(cache: Path, tmp_path: Path, target: str):
    for path in ("../datasets--other--name/blobs/3f", "refs/main", "secret.jsonl", "blobs/folder/deep"):
        other = cache.parent.parent / path
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(LINES)
    (cache / "z.jsonl").symlink_to(target)
    from_ = source(cache)
    assert [(one.name, one.reason) for one in expand(from_).rejected] == [("z.jsonl", "outside the root")]
    with pytest.raises(DataError, match=r"outside the root, 1 file, such as z\.jsonl: the link leads out .* name in `url`") as said:
        check_readable("web", from_, read(from_, tmp_path / "out"), tmp_path)
    assert "max_bad_fraction" not in str(said.value)
