import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from experiments.near_copies import SHARES, planted, search, templates
from phasewise.tasks.data.documents import bucket_ranges, find_copies, finish_documents, read_to_parts, split_texts
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.near_copies import REMOVED_NAME, find_near_copies, find_removed, read_near_copies
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.prepare import build_missing_caches, make_missing_tokenizer, write_missing_documents
from phasewise.tasks.data.source import Deduplicate, Source
from phasewise.tasks.data.stand_ins import roots
from phasewise.tasks.data.verify import verify_component
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.manifest import MANIFEST_NAME, read_manifest
from tests.tasks.conftest import VOCAB_SIZE, write_lines
from tests.tasks.data.builds import bundles

WORDS = " ".join(path.read_text(errors="replace") for path in sorted(roots()["stdlib"].glob("[a-d]*.py"))).split()
MIN_FOUND = dict(zip(SHARES, (0.98, 0.95, 0.8), strict=True))


def test_most_planted_copies_are_found(tmp_path: Path):
    sizes, each = (80, 300), 40
    removed, _ = search(planted(WORDS, sizes, each), tmp_path)
    for share, limit in MIN_FOUND.items():
        names = [f"{share} {size} {number}" for size in sizes for number in range(each)]
        found = sum(f"copy {name}" in removed or f"text {name}" in removed for name in names)
        assert found >= limit * len(names), (share, found)
    pairs = {(one.partition(" ")[2], other.partition(" ")[2]) for one, other in removed.items()}
    assert sum(one == other for one, other in pairs) >= 0.98 * len(pairs)


def test_pages_of_one_template_stay_apart(tmp_path: Path):
    shares, pages = (0.3, 0.5, 0.6, 0.7, 0.8), (5, 60)
    removed, _ = search(templates(WORDS, shares, pages), tmp_path)
    assert len(removed) <= 0.01 * len(shares) * sum(pages), removed


def build(source: Source, folder: Path, order: Callable[[list[Any]], Sequence[Any]], max_part_bytes: int) -> dict[str, bytes]:
    listing = fingerprint(source)
    records = [read_to_parts(bundle, max_part_bytes, folder) for bundle in bundles(source, listing)]
    kept = [find_copies(folder, ranges, bucket) for bucket, ranges in enumerate(bucket_ranges(records))]

    def run(_: str, function: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> None:
        for call in order(list(calls)):
            function(*call)

    kept.append(find_near_copies("web", records, folder, evidence=folder / "evidence", num_buckets=len(kept), run=run))
    finish_documents("web", source, listing, records, kept, folder)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_order_of_the_work_decides_nothing_and_no_file_of_the_search_stays(tmp_path: Path):
    texts = [text for _, text in planted(WORDS, (60,), 20)]
    for number in range(3):
        write_lines(tmp_path / "in" / f"{number}.jsonl", [*texts[number::3], texts[number]])
    source = Source(url=(tmp_path / "in").as_uri(), include=("*",), format="jsonl", deduplicate="near")
    found = build(source, tmp_path / "a", list, 1 << 20)
    assert build(source, tmp_path / "b", lambda calls: calls[::-1], 1 << 20) == found
    assert {Path(name).suffix for name in found} == {".parquet", ".digests", ".json", ".bin"}
    assert {name for name in found if name.endswith(".bin")} == {"copies.bin"}
    small = build(source, tmp_path / "c", lambda calls: random.Random(0).sample(calls, len(calls)), 4000)
    assert small[f"evidence/{REMOVED_NAME}"] == found[f"evidence/{REMOVED_NAME}"]


def plan_of(folder: Path, deduplicate: Deduplicate | None) -> DataPlan:
    source = Source(url=(folder / "web").as_uri(), include=("*.jsonl",), format="jsonl", deduplicate=deduplicate)
    plan = plan_data({"web": source}, Home.open(str(folder / "home")), vocab_size=VOCAB_SIZE)
    write_missing_documents(plan)
    make_missing_tokenizer(plan, VOCAB_SIZE, None)
    build_missing_caches(plan)
    assert verify_component("web", plan, Home.open(str(folder / "home"))) == []
    return plan


@pytest.mark.usefixtures("on_scheduler")
def test_a_component_chooses_its_search_and_the_evidence_names_each_document_that_is_left_out(tmp_path: Path):
    rows = planted(WORDS, (80,), 30)
    texts = [text for _, text in rows]
    write_lines(tmp_path / "web" / "0.jsonl", [*texts, *texts[:7]])
    exact, near, none = (plan_of(tmp_path, one).components["web"] for one in ("exact", "near", None))
    assert len({one.documents.key for one in (exact, near, none)}) == 3
    manifests = [read_manifest(one.train.folder) for one in (exact, near, none)]
    assert ["deduplicate" in manifest.source for manifest in manifests] == [False, True, True]
    found = read_near_copies(near)
    assert found is not None
    assert (read_near_copies(exact), found.documents) == (None, len(texts) + 7)
    assert [manifest.left_out["copy"] for manifest in manifests] == [7, 7 + found.near_copies, 0]
    counts = [sum(1 for split in ("train", "held_out") for _ in split_texts(one.documents.folder, split)) for one in (exact, near, none)]
    assert counts == [len(texts), len(texts) - found.near_copies, len(texts) + 7]
    assert found.near_copies >= 0.9 * len(texts) / 2
    assert 0 < len(found.samples) <= 20
    listed = pq.read_table(near.near_copies / REMOVED_NAME).to_pylist()
    kept = {str(name) for split in (near.train, near.held_out) for path in split.folder.glob("*.parquet") for name in ids_of(path)}
    assert len(listed) == found.near_copies
    assert all(row["id"] not in kept and row["kept_id"] in kept and row["similarity"] > 0.7 for row in listed)
    assert find_removed(near, "id", [listed[0]["id"][:8]]) == [listed[0]]
    assert (find_removed(near, "id", ["f" * 64]), find_removed(exact, "id", [listed[0]["id"]])) == ([], [])
    (near.near_copies / REMOVED_NAME).write_bytes(b"other")
    with pytest.raises(DataError, match="was changed after it was written"):
        find_removed(near, "id", [listed[0]["id"]])
    (near.near_copies / MANIFEST_NAME).write_text("{}")
    with pytest.raises(DataError, match="does not read"):
        read_near_copies(near)
    shutil.rmtree(near.near_copies)
    plan_of(tmp_path, "near")
    assert read_near_copies(near) == found


def ids_of(path: Path) -> list[Any]:
    return pq.read_table(path, columns=["id"])["id"].to_pylist()
