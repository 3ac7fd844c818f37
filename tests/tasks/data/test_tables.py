import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phasewise.tasks.data.findings import MAX_DOCUMENT_BYTES, Fault, LeftOut, Reason, Record
from phasewise.tasks.data.reading import read_piece
from phasewise.tasks.data.source import Piece, Source
from tests.hostile_makers import arrow, parquet
from tests.tasks.data.conftest import Read

LONGEST_MAGIC_BYTES = 6
TEXTS = ["One line.", 'Two lines\nand a "quote".', "Grüße, 日本語, 🌳"]
Write = Callable[..., Path]


def write_parquet(folder: Path, table: Any, **options: Any) -> Path:
    (folder / "a.parquet").write_bytes(parquet(table, **options))
    return folder / "a.parquet"


def write_stream(folder: Path, table: Any, rows: int = 1000) -> Path:
    (folder / "a.arrow").write_bytes(arrow(pa.ipc.new_stream, table, rows))
    return folder / "a.arrow"


def write_file(folder: Path, table: Any) -> Path:
    (folder / "b.arrow").write_bytes(arrow(pa.ipc.new_file, table, 1000))
    return folder / "b.arrow"


every_format = pytest.mark.parametrize("write", [write_parquet, write_stream, write_file])


def find(read: Read, path: Path, **changes: object) -> list[Any]:
    return read(path, path.suffix[1:], **changes)


def whole_file(found: list[Any]) -> Reason:
    (fault,) = found
    assert (type(fault), fault.whole_file, fault.where, fault.sample > "") == (Fault, True, "file", True)
    return fault.reason


@every_format
@pytest.mark.parametrize("column", [
    pa.array(TEXTS), pa.array(TEXTS, pa.large_string()), pa.array(TEXTS, pa.string_view()),
    pa.array([text.encode() for text in TEXTS], pa.binary()), pa.array([text.encode() for text in TEXTS], pa.large_binary()),
    pa.array(TEXTS).dictionary_encode(),
], ids=lambda column: str(column.type).partition("<")[0])  # fmt: skip
def test_every_kind_of_text_is_read(tmp_path: Path, read: Read, write: Write, column: pa.Array):
    path = write(tmp_path, pa.table({"id": [1, 2, 3], "content": column}))
    assert find(read, path, text_key="content") == [Record(text, f"row {row}") for row, text in enumerate(TEXTS)]


@every_format
def test_bad_rows_cost_no_others_and_other_columns_of_text_are_named(tmp_path: Path, read: Read, write: Write):
    raw = [b"good", b"caf\xe9", None, b"half \xed\xa0\xbc", b" ", b"good too"]
    column: Any = pa.array(raw, pa.binary()).view(pa.string())
    assert find(read, write(tmp_path, pa.table({"text": column}))) == [
        Record("good", "row 0"), Fault("not UTF-8", "row 1", "caf\ufffd"), LeftOut("empty text", "row 2"),
        Fault("half a surrogate pair", "row 3", "half \ufffd\ufffd\ufffd"), LeftOut("empty text", "row 4"), Record("good too", "row 5"),
    ]  # fmt: skip
    columns = {"text": ["a", "b"], "title": ["t", None], "none": pa.array([None, None], pa.string()), "n": [1, 2], "id": ["1", "2"]}
    found = find(read, write(tmp_path, pa.table(columns)))
    assert found == [Record("a", "row 0", beside=("title", "id")), Record("b", "row 1", beside=("title", "id"))]


@every_format
def test_keys_reach_into_structs_a_null_above_is_no_text_and_filters_look_at_columns(tmp_path: Path, read: Read, write: Write):
    rows = [{"document": {"body": "a", "n": 1}}, {"document": None}, {"document": {"body": None, "n": 2}}]
    left_out = [LeftOut("empty text", f"row {row}") for row in (1, 2)]
    assert find(read, write(tmp_path, pa.Table.from_pylist(rows)), text_key="document.body") == [Record("a", "row 0"), *left_out]
    metadata = [{"extension": "py"}, {"extension": "c"}, {"extension": None}, None]
    table = pa.table({"text": ["a", "b", "c", "d"], "metadata": metadata, "stars": [5] * 4})
    filters = [{"kind": "field", "key": "stars", "keep": ["5"]}, {"kind": "field", "key": "metadata.extension", "keep": ["py", "md"]}]
    left_out = [LeftOut("filter field metadata.extension", f"row {row}") for row in (1, 2, 3)]
    assert find(read, write(tmp_path, table), filters=filters) == [Record("a", "row 0"), *left_out]


@every_format
@pytest.mark.parametrize(("reason", "changes"), [
    *(("missing key", {"text_key": key}) for key in ("body", "meta.body", "text.body")),
    *(("wrong type", {"text_key": key}) for key in ("n", "meta")),
    ("missing key", {"filters": [{"kind": "field", "key": "lang", "keep": ["en"]}]}),
])  # fmt: skip
def test_a_missing_column_or_one_without_text_is_a_fault(tmp_path: Path, read: Read, write: Write, reason: Reason, changes: Any):
    path = write(tmp_path, pa.table({"text": ["a"], "n": [1], "meta": [{"x": "y"}]}))
    assert whole_file(find(read, path, **changes)) == reason


@every_format
def test_no_row_or_no_byte_is_an_empty_file_and_a_cut_is_noticed_wherever_it_is(tmp_path: Path, read: Read, write: Write):
    path = write(tmp_path, pa.table({"text": pa.array([], pa.string())}))
    for content in (path.read_bytes(), b""):
        path.write_bytes(content)
        assert find(read, path) == [LeftOut("empty file", "file", whole_file=True)]
    path = write(tmp_path, pa.table({"text": [f"Document {number}." for number in range(100)]}))
    content = path.read_bytes()
    for length in (1, 3, *range(LONGEST_MAGIC_BYTES, 9), *range(9, len(content), 11), *range(len(content) - 9, len(content))):
        path.write_bytes(content[:length])
        *records, fault = find(read, path)
        said = "truncated" if length >= LONGEST_MAGIC_BYTES else "other format"
        assert (type(fault), fault.reason, fault.whole_file) == (Fault, said, True), length
        assert not records or len(records) == 100


def test_rows_before_a_cut_stand_and_bombs_and_long_rows_are_faults(tmp_path: Path, read: Read):
    path = write_stream(tmp_path, pa.table({"text": [f"Document {number}." for number in range(100)]}), 30)
    path.write_bytes(path.read_bytes()[:-8])
    *records, fault = find(read, path)
    assert (len(records), isinstance(fault, Fault) and fault.reason) == (100, "truncated")
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 500_000]))
    path = write_parquet(tmp_path, pa.table({"text": column}), store_schema=False)  # or it would be read as a dictionary anyway
    assert path.stat().st_size < 100_000
    last = find(read, path)[-1]
    assert (type(last), last.reason) == (Fault, "expands too much")
    path = write_parquet(tmp_path, pa.table({"text": ["x" * 110_000] * 1000}), compression="zstd", use_dictionary=False)
    assert whole_file(find(read, path)) == "expands too much"
    path = write_parquet(tmp_path, pa.table({"text": ["short", "x" * (MAX_DOCUMENT_BYTES + 1), "last"]}), compression="none")
    assert find(read, path) == [Record("short", "row 0"), Fault("too long", "row 1", "x" * 200), Record("last", "row 2")]


@every_format
def test_damage_is_a_fault_and_no_crash(tmp_path: Path, read: Read, write: Write):
    table = pa.table({"text": [f"Document {number}." for number in range(100)], "lang": pa.array(["en", "de"] * 50).dictionary_encode()})
    path, rng = write(tmp_path, table), random.Random(0)
    content = path.read_bytes()
    for _ in range(20):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 20))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        found = find(read, path, filters=[{"kind": "field", "key": "lang", "keep": ["en"]}])
        assert found
        assert sum(isinstance(finding, Fault) and finding.whole_file for finding in found) <= 1


@pytest.mark.parametrize("write", [write_parquet, write_stream])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, write: Write):
    raw = random.Random(0).randbytes(16_000_000).hex()
    path = write(tmp_path, pa.table({"text": [raw[start : start + 4000] for start in range(0, len(raw), 4000)]}))
    source = Source.model_validate({"url": str(path.parent), "include": ("*",), "format": path.suffix[1:]})
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        findings = read_piece(source, Piece(name=path.name, url=str(path)))
        characters = sum(len(finding.text) for finding in findings if isinstance(finding, Record))
        peak_bytes = (pool.max_memory() or 0) + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert characters == 32_000_000
    assert peak_bytes < 16 * 2**20
