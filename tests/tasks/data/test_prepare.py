from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.data import listing, prepare
from phasewise.tasks.data.findings import QUARANTINE_NAME
from phasewise.tasks.data.listing import choose
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.prepare import build_missing_caches, make_missing_tokenizer, write_missing_documents
from phasewise.tasks.data.source import Pin, Source
from phasewise.tasks.data.verify import verify_component
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, read_manifest, write_manifest
from tests.tasks.conftest import VOCAB_SIZE, write_lines, write_prose

FILES = 12
JSON_LINES = Source(url="gs://bucket/web", include=("*",), format="jsonl")
SIZES = {f"shard-{number:02}.jsonl": 1_000_000 for number in range(40)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of about 700 tokens each; the last document of each is one of the file before."""
    texts = [[write_prose(100 * number + line, 4 + line % 6) for line in range(20)] for number in range(FILES)]
    for number, lines in enumerate(texts):
        write_lines(tmp_path / "web" / f"part-{number:02}.jsonl", [*lines, texts[number - 1][3]])
    write_lines(tmp_path / "law" / "part-0.jsonl", [write_prose(9000 + line, 5) for line in range(40)])
    return tmp_path


def prepare_some(folder: Path, home: Path, tokens: int) -> DataPlan:
    """Everything for two components, of which one has a budget. The tokenizer is of the other one's text."""
    sources = {name: Source(url=(folder / name).as_uri(), include=("*.jsonl*",), format="jsonl") for name in ("law", "web")}
    law, budgets = ("law",), {"web": tokens}
    own: dict[str, Any] = {"tokenizer_components": law, "benchmark_components": law}
    plan = plan_data(sources, Home.open(str(home)), vocab_size=VOCAB_SIZE, budgets=budgets, **own)
    write_missing_documents(plan)
    make_missing_tokenizer(plan, VOCAB_SIZE, None)
    build_missing_caches(plan)
    return plan


def contents(plan: DataPlan) -> dict[str, tuple[str, int]]:
    manifests = {split: read_manifest(plan.components["web"].cache(split).folder) for split in SPLITS}
    return {split: (manifest.content, manifest.tokens) for split, manifest in manifests.items()}


@pytest.mark.usefixtures("on_scheduler")
def test_a_raised_budget_goes_on_and_gives_what_it_alone_would_have_given(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listing, "MIN_PART_BYTES", 1)
    small = prepare_some(folder, folder / "home", 3000)
    web = small.components["web"]
    assert web.listing.budget is not None
    chosen = web.listing.budget.files
    assert 1 < chosen < FILES
    manifest = read_manifest(web.train.folder)
    assert manifest.source["budget"] == web.listing.budget.model_dump(mode="json")
    assert [file.name for file in manifest.sources] == [file.name for file in web.listing.files]
    assert verify_component("web", small, Home.open(str(folder / "home"))) == []
    inodes = {path.name: path.stat().st_ino for path in web.documents.folder.glob("part-*")}
    read = []
    monkeypatch.setattr(prepare, "say", read.append)
    large = prepare_some(folder, folder / "home", 6000)
    more = large.components["web"]
    assert more.documents.key != web.documents.key
    assert len(more.listing.files) > chosen
    assert read[:1] == [f"web: reusing {chosen} of {len(more.bundles)} bundles of a smaller budget"]
    assert {name: (more.documents.folder / name).stat().st_ino for name in inodes} == inodes
    shards = list(web.train.folder.glob("shard-*.bin"))
    assert all((more.train.folder / path.name).stat().st_ino == path.stat().st_ino for path in shards)
    assert contents(large) == contents(prepare_some(folder, folder / "other", 6000))
    assert contents(large)["train"][1] > contents(small)["train"][1]


def test_the_choice_is_a_sample_and_the_same_everywhere_and_a_budget_decides_the_key(folder: Path):
    sources = {"web": Source(url=(folder / "web").as_uri(), include=("*.jsonl",), format="jsonl")}
    home = Home.open(str(folder / "home"))
    some: tuple[dict[str, int], ...] = ({}, {"web": 3000}, {"web": 6000}, {"web": 10**9})
    plans = [plan_data(sources, home, vocab_size=VOCAB_SIZE, budgets=budgets) for budgets in some]
    keys = [plan.components["web"].documents.key for plan in plans]
    assert (len(set(keys)), keys[0]) == (3, keys[3])
    names, budget = choose(JSON_LINES, SIZES, 1_500_000)
    assert budget is not None
    assert len(names) == budget.files == 8  # 187,500 tokens a file
    assert (budget.of_files, budget.bytes, budget.of_bytes, budget.tokens) == (40, 8_000_000, 40_000_000, 1_500_000)
    assert sorted(names) != sorted(SIZES)[:8], "the first by their names are no sample"
    assert choose(JSON_LINES, dict(reversed(SIZES.items())), 1_500_000) == (names, budget)


@pytest.mark.usefixtures("on_scheduler")
def test_files_that_change_while_they_are_read_or_are_too_unreadable_stop_the_preparation(world: Any):
    plan = world.plan()
    path = world.sources / "web" / "part-1.jsonl"
    before = path.read_bytes()
    path.write_bytes(before.replace(b"The", b"She", 1))
    with pytest.raises(DataError, match=r"component web: part-1\.jsonl under .* changed while the data were read"):
        write_missing_documents(plan)
    assert list(plan.components["web"].documents.folder.iterdir()) == []
    path.write_bytes(before)
    assert write_missing_documents(plan) == 3
    (world.sources / "web" / "part-2.jsonl").write_bytes(b"{\n")
    plan = world.plan()
    with pytest.raises(DataError, match=r"component web: .*broken JSON, 1 document"):
        write_missing_documents(plan)
    folder = plan.components["web"].documents.folder
    assert (folder / QUARANTINE_NAME).read_text().count("broken JSON") == 1
    assert not (folder / MANIFEST_NAME).exists()


@pytest.mark.usefixtures("on_scheduler")
def test_a_lost_shard_is_built_again_and_no_cache_with_an_edited_tokenizer_or_another_begin_token(world: Any):
    plan = world.prepare()
    cache = plan.components["web"].train
    whole = {path.name: path.read_bytes() for path in cache.folder.iterdir()}
    (cache.folder / MANIFEST_NAME).unlink()
    (cache.folder / "shard-00001.bin").unlink()
    tokenizer = plan.tokenizer.read_text()
    plan.tokenizer.write_text(tokenizer + " ")
    with pytest.raises(DataError, match=r"tokenizer\.json was edited after it was written\. Delete .* and prepare the data again"):
        build_missing_caches(plan)
    plan.tokenizer.write_text(tokenizer)
    assert (build_missing_caches(plan), {path.name: path.read_bytes() for path in cache.folder.iterdir()}) == (1, whole)
    theirs = read_manifest(cache.folder).but(begin_of_text=300)
    write_manifest(cache.folder, theirs)
    pin = Pin(component="web", split="train", url=str(cache.folder), digest=theirs.digest)
    sources = {name: component.source for name, component in plan.components.items()}
    with pytest.raises(DataError, match=r"found the ids 0 and 1 in the tokenizer, 300 and 1 in .*/web/train-"):
        build_missing_caches(plan_data(sources, world.home, vocab_size=VOCAB_SIZE, pins=(pin,)))


@pytest.mark.usefixtures("on_scheduler")
def test_nothing_is_done_twice(prepared: Any):
    plan = prepared.plan()
    assert (write_missing_documents(plan), build_missing_caches(plan)) == (0, 0)
    assert all(verify_component(name, plan, prepared.home) == [] for name in plan.components)
