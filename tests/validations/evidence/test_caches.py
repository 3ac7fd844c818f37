from pathlib import Path

import pytest

from tests.validations.conftest import PROSE, CacheMaker
from trainer.data.manifest import SourceFile
from trainer.errors import DataError
from validations.evidence.caches import cache_evidence, names_like_tests


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
    changed = SourceFile(name=source.name, size_bytes=source.size_bytes, digest="other")
    new = SourceFile(name="sources/wikipedia/test.json", size_bytes=1, digest="x")
    _, evidence = measure(caches, changed, new)
    row = evidence()
    assert row.stale_files == 2
    assert row.differences == "changed: sources/wikipedia/part-0.jsonl; new: sources/wikipedia/test.json"
    _, evidence = measure(caches)
    assert evidence().differences == "missing: sources/wikipedia/part-0.jsonl"


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="not a finished token cache"):
        cache_evidence({"wikipedia": tmp_path}, {})


@pytest.mark.parametrize(
    ("name", "is_like"),
    [
        ("gsm8k/test.json", True),
        ("data/validation-00000-of-00001.parquet", True),
        ("mmlu_dev.jsonl", True),
        ("eval/items.jsonl", True),
        ("TEST.jsonl", True),
        ("data/test2.jsonl", True),
        ("latest.jsonl", False),
        ("contest/a.jsonl", False),
        ("development.jsonl", False),
        ("medieval.jsonl", False),
        ("train-00000.parquet", False),
    ],
)
def test_names_of_test_splits_are_seen(name: str, is_like: bool):
    assert names_like_tests(["train.jsonl", name]) == ([name] if is_like else [])


def test_files_named_like_tests_are_counted_and_named(caches: CacheMaker):
    folder = caches.write("math", [PROSE["wikipedia"]] * 3, file="gsm8k/test.jsonl")
    row = cache_evidence({"math": folder}, {"math": caches.sources("math", "gsm8k/test.jsonl")}).iloc[0]
    assert (row.files_like_tests, row.names_like_tests) == (1, "sources/math/gsm8k/test.jsonl")
