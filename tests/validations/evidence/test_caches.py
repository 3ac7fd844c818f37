from pathlib import Path

import pytest

from tests.validations.conftest import PROSE, CacheMaker
from trainer.data.manifest import SourceFile
from trainer.errors import DataError
from validations.evidence.caches import cache_evidence


def measure(caches: CacheMaker, *sources: SourceFile):
    folder = caches.write("wikipedia", [PROSE["wikipedia"]] * 3)
    return folder, lambda: cache_evidence({"wikipedia": folder}, {"wikipedia": sources}).iloc[0]


def test_a_cache_in_order(caches: CacheMaker):
    _, evidence = measure(caches, *caches.sources("wikipedia"))
    row = evidence()
    assert (row.component, row.split, row.documents, row.shards) == ("wikipedia", "train", 3, 1)
    assert (row.damaged_shards, row.stale_files, row.differences) == (0, 0, "")


@pytest.mark.parametrize("file", ["shard-00000.bin", "shard-00000.parquet"])
def test_a_changed_byte_is_found_and_named(caches: CacheMaker, file: str):
    folder, evidence = measure(caches, *caches.sources("wikipedia"))
    content = bytearray((folder / file).read_bytes())
    content[10] ^= 1
    (folder / file).write_bytes(content)
    row = evidence()
    assert (row.damaged_shards, row.differences) == (1, f"damaged: {file}")


def test_a_shard_that_is_gone_is_damaged_once(caches: CacheMaker):
    folder, evidence = measure(caches, *caches.sources("wikipedia"))
    (folder / "shard-00000.bin").unlink()
    (folder / "shard-00000.parquet").unlink()
    assert evidence().damaged_shards == 1


def test_sources_that_changed_went_or_came_are_stale(caches: CacheMaker):
    (source,) = caches.sources("wikipedia")
    changed = SourceFile(url=source.url, size_bytes=source.size_bytes, digest="other")
    new = SourceFile(url="sources/wikipedia/test.json", size_bytes=1, digest="x")
    _, evidence = measure(caches, changed, new)
    row = evidence()
    assert row.stale_files == 2
    assert row.differences == "changed: sources/wikipedia/part-0.jsonl; new: sources/wikipedia/test.json"
    _, evidence = measure(caches)
    assert evidence().differences == "missing: sources/wikipedia/part-0.jsonl"


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="not a finished token cache"):
        cache_evidence({"wikipedia": tmp_path}, {})
