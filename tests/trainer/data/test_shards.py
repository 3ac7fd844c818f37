"""What is asked of a store for a batch's rows, and what is made of the answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.cache import MERGE_GAP_BYTES, TokenRange, fetch, sizes_in_bytes

TWO_BYTES, FOUR_BYTES = np.dtype("<u2"), np.dtype("<u4")


class Store(MemoryFileSystem):
    """A store in memory that notes what is asked of it."""

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
def store() -> Store:
    store = Store()
    store.pipe_file("/a", np.arange(50_000, dtype=TWO_BYTES).tobytes())
    store.pipe_file("/b", np.arange(70_000, 70_100, dtype=FOUR_BYTES).tobytes())
    return store


def wanted(store: Store, path: str, start: int, count: int) -> TokenRange:
    return TokenRange(store, path, TWO_BYTES if path == "/a" else FOUR_BYTES, start, np.zeros(count, np.int32))


def test_ranges_of_all_files_are_asked_for_at_once_and_neighbours_as_one(store: Store):
    far = 100 + MERGE_GAP_BYTES // 2 + 1
    ranges = [wanted(store, "/b", 10, 5), wanted(store, "/a", far, 3), wanted(store, "/a", 90, 10), wanted(store, "/a", 10, 8)]
    fetch(ranges)
    assert store.asked == [[("/a", 20, 200), ("/a", 2 * far, 2 * far + 6), ("/b", 40, 60)]]
    assert [ranged.target[0] for ranged in ranges] == [70_010, far, 90, 10]
    assert [len(ranged.target) for ranged in ranges] == [5, 3, 10, 8]
    for ranged in ranges:
        np.testing.assert_array_equal(np.diff(ranged.target), 1)


def test_a_range_within_another_and_the_same_one_twice_are_read_once(store: Store):
    ranges = [wanted(store, "/a", 0, 40_000), wanted(store, "/a", 5, 3), wanted(store, "/a", 5, 3), wanted(store, "/a", 40_010, 2)]
    fetch(ranges)
    assert store.asked == [[("/a", 0, 80_024)]]
    for ranged in ranges:
        np.testing.assert_array_equal(ranged.target, ranged.start + np.arange(len(ranged.target)))


def test_of_nothing_nothing_is_asked(store: Store):
    fetch([])
    assert store.asked == []


def test_a_file_that_is_shorter_than_it_was_or_gone_is_refused(store: Store):
    with pytest.raises(DataError, match=r"/b must have bytes 380 to 420, found 20 of these 40: it was changed while it was read"):
        fetch([wanted(store, "/b", 95, 10)])
    with pytest.raises(DataError, match=r"a shard of a cache that is being read is gone: .*/c"):
        fetch([wanted(store, "/c", 0, 1)])


def test_sizes_are_those_of_the_files_and_none_where_there_is_none(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "empty").write_bytes(b"")
    assert sizes_in_bytes(tmp_path, ["empty", "missing", "a"]) == [0, None, 3]


def test_sizes_on_a_store(gcs: Path):
    for name, content in (("a", b"123"), ("empty", b"")):
        (gcs / name).write_bytes(content)
    assert sizes_in_bytes(gcs, ["empty", "missing", "a"]) == [0, None, 3]
    assert sizes_in_bytes(gcs / "nowhere", ["a"]) == [None]
