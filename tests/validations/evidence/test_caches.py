from pathlib import Path

import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.manifest import read_manifest, write_manifest
from phasewise.validations.evidence import caches as caches_module
from phasewise.validations.evidence.caches import NearCount, cache_evidence, differences_evidence, hand_off_evidence, names_like_tests
from tests.validations.conftest import PROSE, CacheMaker


def test_a_cache_is_known_by_its_manifest(caches: CacheMaker):
    folder = caches.write("wikipedia", [PROSE["wikipedia"]] * 3)
    row = cache_evidence({"wiki": folder}).iloc[0]
    assert (row.component, row.manifest_component, row.split, row.documents, row.shards) == ("wiki", "wikipedia", "train", 3, 1)
    assert (row.manifest_digest, row.folder) == (read_manifest(folder).digest, str(folder))
    assert row.tokens == sum(shard.tokens for shard in read_manifest(folder).shards)


def test_every_document_that_is_left_out_counts(caches: CacheMaker):
    folder = caches.write("wikipedia", [PROSE["wikipedia"]] * 3)
    assert tuple(cache_evidence({"wiki": folder}).iloc[0][["left_out_percent", "left_out"]]) == (0, "none")
    counts = {"copy": 20, "filter words": 7, "empty text": 0, "truncated (files)": 5}
    write_manifest(folder, read_manifest(folder).but(left_out=counts))
    row = cache_evidence({"wiki": folder}).iloc[0]
    assert (row.left_out_percent, row.left_out) == (90.0, "20 for copy, 7 for filter words")
    row = cache_evidence({"wiki": folder}, {"wiki": NearCount(12, ["b.txt like a.txt (83%)"])}).iloc[0]
    assert (row.left_out_percent, row.left_out) == (90.0, "12 for near copy, 8 for copy, 7 for filter words")
    assert (row.near_copies, row.samples_of_near_copies) == (12, "b.txt like a.txt (83%)")


def test_no_shard_is_read_and_a_folder_without_a_manifest_is_refused(caches: CacheMaker, tmp_path: Path):
    folder = caches.write("wikipedia", [PROSE["wikipedia"]])
    (folder / "shard-00000.bin").unlink()
    assert (cache_evidence({"wikipedia": folder})["tokens"] > 0).all()
    with pytest.raises(DataError, match="not a finished token cache"):
        cache_evidence({"wikipedia": tmp_path})


def test_files_named_like_tests_are_counted_and_named(caches: CacheMaker):
    like = ["gsm8k/test.json", "a/validation-0-of-1.parquet", "mmlu_dev.jsonl", "eval/items.jsonl", "TEST.jsonl", "data/test2.jsonl"]
    other = ["latest.jsonl", "contest/a.jsonl", "development.jsonl", "medieval.jsonl", "train-00000.parquet", "train.jsonl"]
    assert sorted(names_like_tests([*like, *other])) == sorted(like)
    row = cache_evidence({"math": caches.write("math", [PROSE["wikipedia"]] * 3, file="gsm8k/test.jsonl")}).iloc[0]
    assert (row.files_like_tests, row.names_like_tests) == (1, "sources/math/gsm8k/test.jsonl")


def found(what: str) -> dict[str, str]:
    return {"what": what, "file": "test.json", "expected": "left out", "found": "in the cache", "remedy": "take it out"}


def test_each_difference_has_a_row_and_a_component_without_any_says_so(caches: CacheMaker):
    folders = {name: caches.write(name, [text]) for name, text in PROSE.items()}
    table = differences_evidence({"wikipedia": [found("file no longer selected"), found("shard damaged")], "starcoderdata": []}, folders)
    assert tuple(table.columns) == caches_module.DIFFERENCE_COLUMNS
    assert table[["component", "what", "file", "what_to_do"]].to_numpy().tolist() == [
        ["wikipedia", "file no longer selected", "test.json", "Take it out."],
        ["wikipedia", "shard damaged", "test.json", "Take it out."],
        ["starcoderdata", "none", "", ""],
    ]
    assert table["manifest_digest"].unique().tolist() == [read_manifest(folder).digest for folder in folders.values()]
    assert table["folder"].unique().tolist() == [str(folder) for folder in folders.values()]


def test_every_difference_has_a_kind_and_a_component_that_was_not_verified_no_row(tmp_path: Path):
    kinds = {
        "shard damaged": "damaged", "file no longer selected": "no longer selected", "file added": "files changed",
        "file removed": "files changed", "content changed": "files changed", "tokenizer changed": "made otherwise",
        "what nobody has thought of": "made otherwise",
    }  # fmt: skip
    table = differences_evidence({"math": [found(what) for what in kinds]}, {"math": tmp_path, "web": tmp_path})
    assert table[["component", "kind", "manifest_digest"]].to_numpy().tolist() == [["math", kind, "none"] for kind in kinds.values()]


def test_each_change_is_declared_found_or_both_and_none_has_a_row_that_says_so():
    table = hand_off_evidence(["rope", "ema"], {"rope": ("theta 500000", "theta 5000000"), "batch": ("1024", "3072")})
    assert table.to_numpy().tolist() == [
        ["batch", False, True, "1024", "3072", "found undeclared"],
        ["ema", True, False, "", "", "declared not found"],
        ["rope", True, True, "theta 500000", "theta 5000000", "declared and found"],
    ]
    for declared, name in ((None, "from scratch"), ([], "no change")):
        assert hand_off_evidence(declared, {})[["name", "status"]].to_numpy().tolist() == [[name, name]]
