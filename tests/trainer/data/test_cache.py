import ctypes
import mmap
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.base.storage import read_json, write_atomically
from phasewise.trainer.data import cache as cache_module
from phasewise.trainer.data.cache import MERGE_GAP_BYTES, TokenCache, TokenRange, fetch, sizes_in_bytes
from phasewise.trainer.data.manifest import read_manifest, write_manifest
from tests.trainer.token_caches import write_token_cache

TWO_BYTES, FOUR_BYTES = np.dtype("<u2"), np.dtype("<u4")


class Store(MemoryFileSystem):
    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012  # this is how fsspec keeps it, by class

    def __init__(self) -> None:
        super().__init__()
        self.store.clear()
        self.asked: list[list[tuple[str, int, int]]] = []

    def cat_ranges(self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, on_error: str = "return", **kwargs: Any) -> Any:
        self.asked.append(list(zip(paths, starts, ends, strict=True)))
        return super().cat_ranges(paths, starts, ends, max_gap=max_gap, on_error=on_error, **kwargs)


@pytest.fixture
def noted() -> Store:
    noted = Store()
    noted.pipe_file("/a", np.arange(50_000, dtype=TWO_BYTES).tobytes())
    noted.pipe_file("/b", np.arange(70_000, 70_100, dtype=FOUR_BYTES).tobytes())
    return noted


def wanted(noted: Store, path: str, start: int, count: int) -> TokenRange:
    return TokenRange(noted, path, TWO_BYTES if path == "/a" else FOUR_BYTES, start, np.zeros(count, np.int32))


def test_ranges_of_all_files_are_asked_for_at_once_and_neighbours_as_one_and_none_twice(noted: Store):
    far = 100 + MERGE_GAP_BYTES // 2 + 1
    first = [wanted(noted, "/b", 10, 5), wanted(noted, "/a", far, 3), wanted(noted, "/a", 90, 10), wanted(noted, "/a", 10, 8)]
    second = [wanted(noted, "/a", 0, 40_000), wanted(noted, "/a", 5, 3), wanted(noted, "/a", 5, 3), wanted(noted, "/a", 40_010, 2)]
    fetch(first)
    fetch(second)
    assert noted.asked == [[("/a", 20, 200), ("/a", 2 * far, 2 * far + 6), ("/b", 40, 60)], [("/a", 0, 80_024)]]
    for ranged in first + second:
        start = ranged.start + (70_000 if ranged.path == "/b" else 0)
        np.testing.assert_array_equal(ranged.target, start + np.arange(len(ranged.target)))


def test_a_file_that_is_shorter_than_it_was_or_gone_is_refused(noted: Store):
    for path, start, message in (
        ("/b", 95, r"/b must have bytes 380 to 420, found 20 of these 40: it was changed while it was read"),
        ("/c", 0, r"a shard of a cache that is being read is gone: .*/c"),
    ):
        with pytest.raises(DataError, match=message):
            fetch([wanted(noted, path, start, 10)])


def test_sizes_are_those_of_the_files_and_none_where_there_is_none(store: Path):
    for name, content in (("a", b"123"), ("empty", b"")):
        write_atomically(store / name, content)
    assert sizes_in_bytes(store, ["empty", "missing", "a"]) == [0, None, 3]
    assert sizes_in_bytes(store / "nowhere", ["a"]) == [None]


def numbered(*lengths: int, start: int = 0) -> list[np.ndarray]:
    """Documents whose tokens count on, so that every token says where it is."""
    ends = np.cumsum([start, *lengths])
    return [np.arange(begin, end) for begin, end in pairwise(ends)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tokens 0 … 99 over shards of 30, 0, 25 and 45, none of which is a multiple of a row."""
    return write_token_cache(tmp_path / "numbers", [numbered(10, 20), [], numbered(25, start=30), numbered(5, 40, start=55)])


@pytest.mark.parametrize("found", [48, 52, None])
def test_a_shard_of_another_length_is_refused(folder: Path, found: int | None):
    shard = folder / "shard-00002.bin"
    content = shard.read_bytes() + b"\0\0"
    shard.unlink()
    if found:
        shard.write_bytes(content[:found])
    with pytest.raises(DataError, match=rf"shard-00002\.bin: the manifest says 50 bytes, found {found}\. Delete .* and prepare the data"):
        TokenCache.open(folder)


def test_a_manifest_that_is_missing_or_does_not_read_or_says_other_counts_is_refused(folder: Path):
    write_manifest(folder, read_manifest(folder).but(tokens=164))
    with pytest.raises(DataError, match=r"numbers: the manifest says 164 tokens, and its shards have 100"):
        TokenCache.open(folder)
    for content, message in (
        (b'{"format_version": 2, "compo', r"does not read as a manifest"),
        (b'{"format_version": 2}', r"has no digest of its own fields"),
        (b'{"format_version": 9}', r"has format version 9, this program reads 2 \(plain text\) and 3: build it again"),
    ):
        (folder / "manifest.json").write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_manifest(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"is not a finished token cache: it has no manifest\.json\. Build it with"):
        TokenCache.open(folder)


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any), seq_len=st.integers(2, 50), data=st.data())
def test_rows_across_shards_are_those_of_the_concatenation(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seq_len: int, data: st.DataObject
):
    cache = TokenCache.open(write_token_cache(tmp_path_factory.mktemp("shards") / "any", [[tokens] for tokens in numbered(*lengths)]))
    expected = np.arange(sum(lengths) // seq_len * seq_len).reshape(-1, seq_len)
    numbers = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=6)) if len(expected) else []
    np.testing.assert_array_equal(cache.rows(np.array(numbers, np.int64), seq_len), expected[numbers])


@pytest.fixture
def many(store: Path) -> Path:
    """Forty shards of five tokens, here or on a store."""
    return write_token_cache(store / "many", [[tokens] for tokens in numbered(*[5] * 40)])


def test_a_shard_that_goes_before_it_is_read_is_refused(folder: Path):
    cache = TokenCache.open(folder)
    (folder / "shard-00002.bin").unlink()
    np.testing.assert_array_equal(cache.rows(np.array([0]), 30), [np.arange(30)])
    with pytest.raises(DataError, match=r"a shard of a cache that is being read is gone: .*shard-00002\.bin"):
        cache.rows(np.array([1]), 30)


def test_of_many_shards_only_so_many_are_open_at_a_time(many: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phasewise.trainer.data.cache.MAX_OPEN_SHARDS", 3)
    cache = TokenCache.open(many)
    np.testing.assert_array_equal(cache.rows(np.arange(24), 8), np.arange(192).reshape(-1, 8))
    if cache.is_local:
        opened: list[Path] = []
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # closed by another thread meanwhile
                opened.append(Path("/proc/self/fd", number).readlink())
        assert len([path for path in opened if many in path.parents]) == 3
        assert len({line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(many) in line}) == 3


@pytest.mark.parametrize("num_shards", [1, 2])
def test_of_a_large_file_rows_are_read_and_not_what_lies_around_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_shards: int):
    seq_len, in_a_shard, drawn = 4096, 2**23 // num_shards, [700, 1500, 20]
    tokens = np.arange(in_a_shard * num_shards, dtype=np.uint16)
    folder = write_token_cache(tmp_path / "large", [[of_shard] for of_shard in tokens.reshape(num_shards, -1)])
    files = sorted(folder.glob("*.bin"))
    for file in files:
        forget(file)
    if any(map(pages_in_memory, files)):
        pytest.skip("this file system holds its files in memory")
    monkeypatch.setattr("phasewise.trainer.data.cache.READ_AROUND_BYTES", 2**20)
    rows = TokenCache.open(folder).rows(np.array(drawn), seq_len)
    np.testing.assert_array_equal(rows, tokens.reshape(-1, seq_len)[drawn])
    assert sum(map(pages_in_memory, files)) <= 4 * len(drawn) * seq_len * tokens.itemsize // mmap.PAGESIZE


def forget(file: Path) -> None:
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def pages_in_memory(file: Path) -> int:
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        held = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
        content = np.frombuffer(mapped, np.uint8)
        refused = ctypes.CDLL(None).mincore(*map(ctypes.c_void_p, (content.ctypes.data, len(mapped), held.ctypes.data)))
        del content
        assert not refused
    return int((held & 1).sum())


def test_documents_are_read_a_few_at_a_time(many: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_token_cache(many.parent / "uneven", [numbered(3, 9, 2, 0, 30, 1), [], numbered(4, 4, start=45)])
    monkeypatch.setattr(cache_module, "DOCUMENTS_AT_ONCE", 4)
    monkeypatch.setattr(cache_module, "TOKENS_AT_ONCE", 10)
    cache = TokenCache.open(folder)
    expected = [*numbered(3, 9, 2, 0, 30, 1), *numbered(4, 4, start=45)]
    found = list(cache.documents())
    assert [document.id for document in found] == [f"shard-00000 {n}" for n in range(6)] + [f"shard-00002 {n}" for n in range(2)]
    for document, tokens in zip(found, expected, strict=True):
        np.testing.assert_array_equal(document.tokens, tokens)
    assert {document.source_file for document in found} == {"by hand"}
    assert all(document.tokens.base is None or document.tokens.base.size <= 30 for document in found) or cache.is_local


def test_a_shard_that_changes_while_it_is_read_is_refused(gcs: Path):
    folder = write_token_cache(gcs / "numbers", [numbered(10), numbered(20, start=10)])
    cache = TokenCache.open(folder)
    (folder / "shard-00001.bin").write_bytes(b"\0" * 30)
    with pytest.raises(DataError, match=r"shard-00001\.bin must have bytes 0 to 40, found 30 of these 40: it was changed while"):
        cache.rows(np.array([0]), 30)
    (folder / "shard-00001.bin").unlink()
    with pytest.raises(DataError, match=r"a shard of a cache that is being read is gone: .*shard-00001\.bin"):
        cache.rows(np.array([0]), 30)


def test_a_cache_of_the_format_before_conversations_is_read_as_it_is(folder: Path):
    manifest = read_manifest(folder)
    older = manifest.but(format_version=2)
    write_manifest(folder, older)
    written = read_json(folder / "manifest.json")
    assert not {"spans", "spans_digest", "template"} & {*written["shards"][0], *written}
    assert written["digest"] == digest_of_json({name: value for name, value in written.items() if name != "digest"})
    assert (read_manifest(folder), older.content, TokenCache.open(folder).spans()) == (older, manifest.content, None)
    with pytest.raises(ValidationError, match="format version 2 has no conversations"):
        older.but(template="a digest")
