"""What Parquet says of itself, against pyarrow; what it may not claim; and what ends a process when pyarrow is asked."""

import io
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phasewise.tasks.data.formats import parquet_footer
from phasewise.tasks.data.formats.findings import FileFault
from phasewise.tasks.data.formats.parquet_footer import read_footer
from phasewise.tasks.data.formats.parquet_pages import check_pages, pages_of
from phasewise.tasks.data.formats.tables import DELTA_BATCH_BYTES, rows_of_deltas
from phasewise.tasks.data.formats.thrift import read_struct
from tests.hostile_makers import parquet, table

KINDS: dict[str, dict[str, Any]] = {
    "usual": {},
    "groups": {"row_group_size": 7},
    "plain": {"use_dictionary": False, "compression": "none"},
    "pages": {"data_page_size": 100, "data_page_version": "2.0", "compression": "zstd", "write_page_index": True},
    "deltas": {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
}


def stream(content: bytes) -> Any:
    return io.BufferedReader(io.BytesIO(content))  # pyright: ignore[reportArgumentType]  # bytes in memory are a raw stream, too


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_the_footer_says_what_pyarrow_says(options: dict[str, Any]):
    content = parquet(table(), **options)
    expected = pq.ParquetFile(io.BytesIO(content)).metadata
    groups = read_footer(stream(content), len(content))
    assert len(groups) == expected.num_row_groups
    for number, group in enumerate(groups):
        shown = expected.row_group(number)
        assert (group.num_rows, len(group.chunks)) == (shown.num_rows, shown.num_columns)
        for place, chunk in enumerate(group.chunks):
            other = shown.column(place)
            assert chunk.path == other.path_in_schema
            assert (chunk.num_values, chunk.unpacked_bytes) == (other.num_values, other.total_uncompressed_size)
            assert (chunk.packed_bytes, chunk.is_text) == (other.total_compressed_size, other.physical_type == "BYTE_ARRAY")
            assert (chunk.dictionary_bytes is not None, chunk.has_deltas) == (
                other.has_dictionary_page,
                "DELTA_BYTE_ARRAY" in other.encodings,
            )


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_pages_add_up_to_their_column(options: dict[str, Any]):
    content = parquet(table(), **options)
    for group in read_footer(stream(content), len(content)):
        for chunk in group.chunks:
            pages = list(pages_of(stream(content), chunk))
            heads_bytes = chunk.packed_bytes - sum(page.packed_bytes for page in pages)
            assert heads_bytes > 0
            assert sum(page.unpacked_bytes for page in pages) + heads_bytes == chunk.unpacked_bytes


def test_a_page_that_claims_more_than_may_be_held_is_refused():
    """Whatever the footer says: Arrow allocates what the page's head claims."""
    content = parquet(pa.table({"text": ["x" * 300_000] * 3}), use_dictionary=False, compression="zstd")
    (group,) = read_footer(stream(content), len(content))
    held_bytes, all_bytes = check_pages(stream(content), group.chunks, max_held_bytes=10**6)
    assert held_bytes == all_bytes > 900_000
    lying = [group.chunks[0]._replace(unpacked_bytes=10)]
    with pytest.raises(FileFault, match="at most 500000 are: write smaller pages") as fault:
        check_pages(stream(content), lying, max_held_bytes=500_000)
    assert fault.value.reason == "expands too much"


COLUMN_METADATA = b"\x15\x0c\x19\x15\x00\x19\x18\x01t\x15\x00\x16\x02\x16\x02\x16\x02\x26\x08\x00"


def footer(column: bytes, behind: bytes = b"") -> bytes:
    """A file with one row group of one column."""
    group = b"\x19\x1c" + column + b"\x16\x02\x16\x02\x00"
    about = b"\x15\x02\x19\x0c\x16\x02\x19\x1c" + group + behind + b"\x00"
    return b"PAR1" + about + len(about).to_bytes(4, "little") + b"PAR1"


GOOD_COLUMN = b"\x26\x08\x1c" + COLUMN_METADATA + b"\x00"


def test_a_made_footer_is_read():
    content = footer(GOOD_COLUMN)
    ((chunk,),) = [group.chunks for group in read_footer(stream(content), len(content))]
    assert (chunk.path, chunk.num_values, chunk.start) == ("t", 1, 4)


@pytest.mark.parametrize(
    ("content", "reason", "said"),
    [
        (footer(b"\x26\x08\x6c\x1c\x00\x00\x00"), "other format", "encrypted"),
        (footer(b"\x26\x08\x1c" + COLUMN_METADATA + b"\x5c\x1c\x00\x00\x00"), "other format", "encrypted"),
        (footer(GOOD_COLUMN, b"\x4c\x1c\x00\x00"), "other format", "encrypted"),
        (footer(b"\x26\x08\x00"), "unreadable", "a column without metadata"),
        (footer(b"\x26\x08\x1c\x00\x00"), "unreadable", "no Parquet footer"),
        (b"PAR1" + b"\x7f" * 20 + b"\x14\0\0\0PAR1", "unreadable", "no Parquet footer"),
        (b"PAR1" + b"\xff\xff\0\0PAR1", "truncated", "65535 bytes"),
        (b"PAR1" + b"\xff\xff\xff\x7fPAR1", "unreadable", "at most 8388608 are held"),
    ],
)
def test_what_is_encrypted_or_makes_no_sense_is_refused(content: bytes, reason: str, said: str):
    with pytest.raises(FileFault, match=said) as fault:
        read_footer(stream(content), len(content))
    assert fault.value.reason == reason


def test_numbers_have_signs_and_bytes_have_an_end():
    assert read_struct(b"\x15\x01\x16\x02\x00")[0] == {1: -1, 2: 1}
    with pytest.raises(IndexError):
        read_struct(b"\x18\x05abc\x00")


def test_any_bytes_end_as_a_struct_or_as_a_refusal():
    rng = Random(0)
    whole = parquet(table())
    about = whole[-8 - int.from_bytes(whole[-8:-4], "little") : -8]
    assert read_struct(about)[1] == len(about)
    refused = 0
    for _ in range(2000):
        raw = bytearray(about)
        for _ in range(rng.choice((1, 5))):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            found, end = read_struct(bytes(raw))
            assert isinstance(found, dict)
            assert end <= len(raw)
        except (IndexError, ValueError):
            refused += 1
    assert 0 < refused < 2000


def test_a_column_that_ends_behind_the_file_is_refused():
    content = footer(GOOD_COLUMN)
    ((chunk,),) = [group.chunks for group in read_footer(stream(content), len(content))]
    for far in (chunk._replace(packed_bytes=2**63 - 1), chunk._replace(start=2**63 - 1)):
        with pytest.raises(FileFault, match="ends at byte"):
            check_pages(stream(content), [far], max_held_bytes=1)


def test_where_a_page_may_hold_the_longest_value_in_each_row_few_are_read_at_once():
    assert rows_of_deltas(64, DELTA_BATCH_BYTES) == 1
    assert rows_of_deltas(64, DELTA_BATCH_BYTES // 10) == 10
    assert rows_of_deltas(64, 0) == 64


def test_the_largest_footer_is_a_limit(monkeypatch: pytest.MonkeyPatch):
    content = parquet(table())
    monkeypatch.setattr(parquet_footer, "MAX_FOOTER_BYTES", 100)
    with pytest.raises(FileFault, match="at most 100 are held"):
        read_footer(stream(content), len(content))
