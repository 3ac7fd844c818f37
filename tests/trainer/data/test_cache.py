"""Rows and documents of a cache against the tokens it was written from, and caches that are not what they claim."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from trainer.data.cache import TokenCache
from trainer.data.manifest import read_manifest
from trainer.errors import DataError

WriteCache = Callable[..., Path]


def numbered(*lengths: int, start: int = 0) -> list[np.ndarray]:
    """Documents whose tokens count on, so that every token says where it stands."""
    ends = np.cumsum([start, *lengths])
    return [np.arange(begin, end) for begin, end in pairwise(ends)]


@pytest.fixture
def folder(tmp_path: Path, write_cache: WriteCache) -> Path:
    """Tokens 0 … 99 over shards of 30, 0, 25 and 45, none of which is a multiple of a row."""
    shards = [numbered(10, 20), [], numbered(25, start=30), numbered(5, 40, start=55)]
    return write_cache(tmp_path / "numbers", shards)


@pytest.mark.parametrize("seq_len", [7, 8, 32, 100])
def test_rows_are_those_of_the_concatenation(folder: Path, seq_len: int):
    cache = TokenCache.open(folder)
    expected = np.arange(100 // seq_len * seq_len).reshape(-1, seq_len)
    assert cache.num_rows(seq_len) == len(expected)
    rows = cache.rows(np.arange(len(expected)), seq_len)
    np.testing.assert_array_equal(rows, expected)
    assert rows.dtype == np.int32


def test_rows_come_in_the_order_asked_for(folder: Path):
    rows = TokenCache.open(folder).rows(np.array([5, 0, 5, 3]), 8)
    np.testing.assert_array_equal(rows[:, 0], [40, 0, 40, 24])


def test_documents_come_back_in_order_with_their_tokens(folder: Path):
    documents = list(TokenCache.open(folder).documents())
    assert [document.id for document in documents] == ["shard-00000 0", "shard-00000 1", "shard-00002 0", "shard-00003 0", "shard-00003 1"]
    for document, expected in zip(documents, numbered(10, 20, 25, 5, 40), strict=True):
        np.testing.assert_array_equal(document.tokens, expected)
        assert document.source_file == "by hand"


def test_ids_beyond_16_bits_are_kept(tmp_path: Path, write_cache: WriteCache):
    folder = write_cache(tmp_path / "large", [numbered(64, start=40_000)], dtype="uint32")
    np.testing.assert_array_equal(TokenCache.open(folder).rows(np.array([1]), 32)[0], 40_032 + np.arange(32))


@pytest.mark.parametrize("change", ["shorter", "longer", "gone"])
def test_a_shard_of_another_length_is_refused(folder: Path, change: str):
    shard = folder / "shard-00002.bin"
    content = shard.read_bytes()
    shard.unlink()
    if change != "gone":
        shard.write_bytes(content[:-2] if change == "shorter" else content + b"\0\0")
    found = {"shorter": "48", "longer": "52", "gone": "None"}[change]
    with pytest.raises(
        DataError, match=rf"shard-00002\.bin: the manifest says 50 bytes, found {found}\. Delete .* and prepare the data again"
    ):
        TokenCache.open(folder)


def test_a_folder_without_a_manifest_is_no_cache(folder: Path):
    (folder / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"is not a finished token cache: it has no manifest\.json\. Build it with"):
        TokenCache.open(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"format_version": 1, "compo', r"does not read as a manifest"),
        (b'{"format_version": 1}', r"does not read as a manifest: .*(\n.*)*Field required"),
        (None, r"has format version 2, this program reads 1: build the cache again"),
    ],
    ids=["torn", "empty", "future"],
)
def test_a_manifest_that_does_not_read_is_refused(folder: Path, content: bytes | None, message: str):
    path = folder / "manifest.json"
    path.write_bytes(content or json.dumps({**json.loads(path.read_bytes()), "format_version": 2}).encode())
    with pytest.raises(DataError, match=message):
        read_manifest(folder)


def test_the_manifest_s_digest_knows_the_shards_digests(folder: Path):
    before = read_manifest(folder).digest
    path = folder / "manifest.json"
    values = json.loads(path.read_bytes())
    values["shards"][0]["digest"] = "0" * 64
    path.write_text(json.dumps(values))
    assert read_manifest(folder).digest != before
