"""What is cached against what the sources demand: every difference by name."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.data.verify import Difference, verify_component
from tasks.home import Home
from trainer.data.manifest import MANIFEST_NAME
from trainer.storage import read_json, write_json


@pytest.fixture
def copy(prepared: Any, tmp_path: Path) -> Any:
    """The prepared home, to be changed; the sources are files of the test's own under the same names as the caches have."""
    shutil.copytree(prepared.home.root / "tokens", tmp_path / "tokens")
    return type(prepared)(Home(tmp_path), prepared.sources)


def differences(world: Any, **changes: object) -> list[Difference]:
    return verify_component(world.plan(**changes).components["web"], world.home)


def test_what_is_as_it_must_be_has_no_difference(copy: Any):
    assert differences(copy) == []


def test_what_was_never_built_is_named(world: Any):
    found = differences(world)
    assert [(one.what, one.found) for one in found] == [("train cache not built", "nothing"), ("held_out cache not built", "nothing")]


def test_a_damaged_shard_is_named(copy: Any):
    folder = copy.plan().components["web"].train.folder
    content = bytearray((folder / "shard-00000.bin").read_bytes())
    content[100] ^= 1
    (folder / "shard-00000.bin").write_bytes(content)
    (folder / "shard-00000.parquet").unlink()
    found = differences(copy)
    assert [(one.what, Path(one.file).name) for one in found] == [
        ("shard damaged", "shard-00000.bin"),
        ("shard damaged", "shard-00000.parquet"),
    ]
    assert found[1].found == "nothing"


def test_a_manifest_of_something_else_is_named(copy: Any):
    folder = copy.plan().components["web"].train.folder
    manifest = read_json(folder / MANIFEST_NAME)
    write_json(folder / MANIFEST_NAME, {**manifest, "key": "0" * 64})
    assert [one.what for one in differences(copy)] == ["manifest edited"]
    (folder / MANIFEST_NAME).write_text("{")
    assert [one.what for one in differences(copy)] == ["manifest does not read"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"include": ("part-0.jsonl",)}, {"include filter changed", "file removed"}),
        ({"exclude": ("gsm8k/*",)}, {"exclude filter changed"}),
        ({"text_key": "content"}, {"tokenizer, reader or settings changed"}),
        ({"vocab_size": 421}, {"tokenizer, reader or settings changed"}),
    ],
)
def test_a_changed_setting_is_named(copy: Any, changes: dict[str, Any], expected: set[str]):
    found = differences(copy, **changes)
    assert {one.what for one in found} == expected
    assert len(found) == 2 * len(expected)


def test_changed_files_are_named(copy: Any, tmp_path: Path):
    """Of each split's cache: one file changed, one gone, one new."""
    mine = tmp_path / "sources"
    shutil.copytree(copy.sources, mine)
    moved = type(copy)(copy.home, mine)
    for path in (copy.home.root / "tokens").rglob(MANIFEST_NAME):
        path.write_text(path.read_text().replace(copy.sources.as_uri(), mine.as_uri()))
    (mine / "web" / "part-0.jsonl").write_text('{"text": "another"}\n')
    (mine / "web" / "part-1.jsonl").unlink()
    (mine / "web" / "part-2.jsonl").write_text('{"text": "more"}\n')
    found = [(one.what, Path(one.file).name) for one in differences(moved)]
    assert found == [("content changed", "part-0.jsonl"), ("file removed", "part-1.jsonl"), ("file added", "part-2.jsonl")] * 2
