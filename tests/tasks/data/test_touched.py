"""Files of a cache that were changed since it was written: named by their bytes, and read only where their times are later."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.data.digests import KnownDigests
from tasks.data.touched import changed_files
from trainer.data.manifest import MANIFEST_NAME, read_manifest


@pytest.fixture
def cache(prepared: Any, tmp_path: Path) -> Path:
    (folder,) = (prepared.home.root / "tokens" / "web").glob("train-*")
    return Path(shutil.copytree(folder, tmp_path / folder.name))


def later(path: Path) -> None:
    """As where it is written to an hour after the cache."""
    changed = path.stat().st_mtime_ns + 3_600 * 10**9
    os.utime(path, ns=(changed, changed))


def other_byte(path: Path) -> None:
    """One byte is another, and the size is the same."""
    before = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_was_not_touched_is_not_read(cache: Path):
    digests = KnownDigests()
    assert (changed_files(cache, digests), digests.bytes_read) == ([], 0)


@pytest.mark.parametrize("suffix", [".bin", ".parquet"])
def test_another_byte_of_a_file_of_the_same_size_is_named(cache: Path, suffix: str):
    changed = next(cache.glob(f"*{suffix}"))
    other_byte(changed)
    later(changed)
    digests = KnownDigests()
    assert changed_files(cache, digests) == [changed.name]
    assert digests.bytes_read == changed.stat().st_size, "the others are not read"


def test_a_later_time_alone_is_no_change(cache: Path):
    for path in cache.glob("*.bin"):
        later(path)
    digests = KnownDigests()
    assert changed_files(cache, digests) == []
    assert digests.bytes_read == sum(path.stat().st_size for path in cache.glob("*.bin"))


def test_who_sets_the_time_back_is_left_to_data_verify(cache: Path):
    other_byte(next(cache.glob("*.bin")))
    assert changed_files(cache, KnownDigests()) == []


def test_a_file_that_is_gone_and_a_manifest_that_was_edited_are_named(cache: Path):
    shard = read_manifest(cache).shards[0]
    (cache / f"{shard.name}.bin").unlink()
    assert changed_files(cache, KnownDigests()) == [f"{shard.name}.bin"]
    (cache / MANIFEST_NAME).write_text("{}")
    assert changed_files(cache, KnownDigests()) == [MANIFEST_NAME]
