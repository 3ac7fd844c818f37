"""Data preparation, task by task: what they refuse, and what is left then."""

from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.data.documents import QUARANTINE_NAME
from phasewise.tasks.data.pin import Pin
from phasewise.tasks.data.plan import plan_data
from phasewise.tasks.data.prepare import build_missing_caches, make_missing_tokenizer, write_missing_documents
from phasewise.tasks.data.verify import verify_component
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.manifest import MANIFEST_NAME, read_manifest, write_manifest
from tests.tasks.conftest import VOCAB_SIZE


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.usefixtures("on_scheduler")
def test_files_that_change_while_they_are_read_are_refused_and_what_was_read_of_them_goes(world: Any):
    plan = world.plan()
    path = world.sources / "web" / "part-1.jsonl"
    before = path.read_bytes()
    path.write_bytes(before.replace(b"The", b"She", 1))
    with pytest.raises(DataError, match=r"component web: part-1\.jsonl under .* changed while the data were read"):
        write_missing_documents(plan)
    assert left_in(plan.components["web"].documents.folder) == set()
    path.write_bytes(before)
    assert write_missing_documents(plan) == 3


@pytest.mark.usefixtures("on_scheduler")
def test_too_much_that_is_unreadable_stops_the_preparation_and_leaves_the_samples(world: Any):
    (world.sources / "web" / "part-2.jsonl").write_bytes(b"{\n")
    plan = world.plan()
    with pytest.raises(DataError, match=r"component web: .*broken JSON, 1 document"):
        write_missing_documents(plan)
    folder = plan.components["web"].documents.folder
    assert (folder / QUARANTINE_NAME).read_text().count("broken JSON") == 1
    assert not (folder / MANIFEST_NAME).exists()


@pytest.mark.usefixtures("on_scheduler")
def test_a_stricter_limit_holds_for_what_is_built_too(world: Any):
    (world.sources / "web" / "part-2.jsonl").write_bytes(b"{\n")
    write_missing_documents(world.plan(max_bad_fraction=0.5))
    with pytest.raises(DataError, match=r"at most 0\.0000% of its documents and of its files may be unusable"):
        write_missing_documents(world.plan())


@pytest.mark.usefixtures("on_scheduler")
def test_no_cache_is_built_with_an_edited_tokenizer(world: Any):
    plan = world.plan()
    write_missing_documents(plan)
    make_missing_tokenizer(plan, 420, None)
    plan.tokenizer.write_text(plan.tokenizer.read_text() + " ")
    with pytest.raises(DataError, match=r"tokenizer\.json was edited after it was written\. Delete .* and prepare the data again"):
        build_missing_caches(plan)


@pytest.mark.usefixtures("on_scheduler")
def test_a_pinned_cache_with_another_begin_token_is_refused_before_anything_is_tokenized(world: Any):
    plan = world.prepare()
    cache = plan.components["web"].train
    theirs = read_manifest(cache.folder).but(begin_of_text=300)
    write_manifest(cache.folder, theirs)
    pin = Pin(component="web", split="train", url=str(cache.folder), digest=theirs.digest)
    sources = {name: component.source for name, component in plan.components.items()}
    with pytest.raises(DataError, match=r"found the ids 0 and 1 in the tokenizer, 300 and 1 in .*/web/train-"):
        build_missing_caches(plan_data(sources, world.home, vocab_size=VOCAB_SIZE, pins=(pin,)))


@pytest.mark.usefixtures("on_scheduler")
def test_a_shard_that_was_lost_is_built_again(world: Any):
    plan = world.prepare()
    folder = plan.components["web"].train.folder
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / MANIFEST_NAME).unlink()
    (folder / "shard-00001.bin").unlink()
    assert build_missing_caches(plan) == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


@pytest.mark.usefixtures("on_scheduler")
def test_nothing_is_done_twice(prepared: Any):
    plan = prepared.plan()
    assert (write_missing_documents(plan), build_missing_caches(plan)) == (0, 0)
    assert all(verify_component(name, plan, prepared.home) == [] for name in plan.components)
