"""A tokenizer in a folder: a recipe's data are prepared with it, its content is in the keys, and what was changed is noticed."""

import json
import shutil
from pathlib import Path

import pytest

from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.prepare import make_missing_tokenizer
from phasewise.tasks.data.tokenizer import check_tokenizer, tokenizer_digest, train_tokenizer
from phasewise.tasks.data.vocabularies.folder import (
    MANIFEST_NAME,
    TokenizerManifest,
    TrainedOn,
    checked_file,
    content_name,
    names_folder,
    read_tokenizer_manifest,
    write_folder,
)
from phasewise.tasks.data.vocabularies.training import TRAINED_BY, train
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import read_json, write_json
from tests.tasks.conftest import World, write_prose

VOCAB_SIZE = 320


def write(folder: Path, seed: int = 0) -> Path:
    content = train({"prose": [write_prose(seed, 40)]}, VOCAB_SIZE, split="trinity").content
    read = TrainedOn(
        component="prose", documents_key="d", cache_digest="c", phase="first", verdict_digest="v", documents=1, text_bytes=9, is_whole=True
    )
    manifest = TokenizerManifest(
        tokenizer_digest=digest_of_bytes(content.encode()), vocab_size=VOCAB_SIZE, split="trinity", max_bytes_per_component=9, recipe="r",
        scale="proxy", trained_on=(read,), trained_by=TRAINED_BY,
    )  # fmt: skip
    write_folder(folder, content, manifest)
    return folder


def plan_of(world: World, name: str) -> DataPlan:
    return plan_data({"web": world.source("web")}, world.home, vocab_size=VOCAB_SIZE, tokenizer_name=name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "mine")


def test_data_are_prepared_with_it(world: World, folder: Path):
    plan = plan_of(world, str(folder))
    assert make_missing_tokenizer(plan, VOCAB_SIZE, str(folder))
    assert plan.tokenizer.read_bytes() == (folder / "tokenizer.json").read_bytes()
    check_tokenizer(plan.tokenizer)
    assert not make_missing_tokenizer(plan, VOCAB_SIZE, str(folder))


def test_its_content_decides_the_caches_and_its_place_does_not(world: World, folder: Path, tmp_path: Path):
    keys = {
        name: plan_of(world, name).components["web"].train.key for name in map(str, (folder, shutil.copytree(folder, tmp_path / "copy")))
    }
    assert len(set(keys.values())) == 1
    assert plan_of(world, str(write(tmp_path / "other", seed=1))).components["web"].train.key not in keys.values()
    assert plan_of(world, "somebody/mine").components["web"].train.key not in keys.values()


def test_one_that_was_changed_is_refused_before_anything_is_prepared(world: World, folder: Path):
    plan = plan_of(world, str(folder))
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|begin_of_text|>", "<|begin|>"))
    with pytest.raises(DataError, match=r"was changed after it was written\. Delete .* and train it again"):
        plan_of(world, str(folder))
    with pytest.raises(DataError, match="was changed after it was written"):
        make_missing_tokenizer(plan, VOCAB_SIZE, str(folder))
    assert not plan.tokenizer.exists()


def test_another_one_at_its_place_is_not_taken_under_the_old_key(world: World, folder: Path):
    plan = plan_of(world, str(folder))
    shutil.rmtree(folder)
    write(folder, seed=1)
    with pytest.raises(DataError, match="changed while the data were prepared"):
        make_missing_tokenizer(plan, VOCAB_SIZE, str(folder))


@pytest.mark.parametrize("change", ["field", "digest", "missing", "unknown", "text"])
def test_a_manifest_that_was_changed_is_refused(folder: Path, change: str):
    path = folder / MANIFEST_NAME
    written = read_json(path)
    fields = {"field": {"recipe": "another"}, "digest": {"digest": "0"}, "unknown": {"more": 1}}
    if change == "missing":
        del written["split"]
    write_json(path, written | fields.get(change, {}))
    if change == "text":
        path.write_text("[")
    with pytest.raises(DataError, match=r"was changed after|does not read as the manifest"):
        read_tokenizer_manifest(folder)


def test_what_is_no_tokenizer_is_refused(world: World, tmp_path: Path):
    with pytest.raises(ConfigError, match=f"found none at {tmp_path}"):
        plan_of(world, str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(DataError, match="does not read as a tokenizer"):
        plan_of(world, str(tmp_path))


def test_one_of_a_home_that_was_edited_is_refused(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    train_tokenizer([[write_prose(0, 4)]], 280, path)
    assert checked_file(tmp_path) == checked_file(path) == path
    path.write_text(path.read_text() + "\n")
    with pytest.raises(DataError, match="was edited after it was written"):
        checked_file(path)


def test_names(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert [names_folder(name) for name in ("/a", "./a", "../a", "~/a", "a/b", "meta-llama/Meta-Llama-3.1-8B")] == [True] * 4 + [False] * 2
    monkeypatch.chdir(folder.parent)
    assert content_name("./mine") == f"sha256:{tokenizer_digest(folder / 'tokenizer.json')}"
    assert (content_name("mine"), content_name(None)) == ("mine", None)
