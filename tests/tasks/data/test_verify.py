"""What is cached against what is configured: each row first passes, then one thing is broken, then it is named."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.data import verify
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.source import Pin
from phasewise.tasks.data.verify import Difference, check_caches, verify_component
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.data.manifest import MANIFEST_NAME, read_manifest

NAMES = ("code", "law", "web")


@dataclass
class Case:
    """A home with files, settings and pins of its own."""

    world: Any
    settings: dict[str, Any] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()

    def plan(self) -> DataPlan:
        sources = {name: self.world.source(name, **(self.settings if name == "web" else {})) for name in NAMES}
        return plan_data(sources, self.world.home, vocab_size=420, pins=self.pins)

    def differences(self, name: str = "web") -> list[Difference]:
        return verify_component(name, self.plan(), self.world.home)

    @property
    def file(self) -> Path:
        return self.world.sources / "web" / "part-1.jsonl"

    @property
    def cache(self) -> Path:
        return self.plan().components["web"].train.folder

    def pin(self) -> "Case":
        """Pin the training cache where it lies."""
        digest = read_manifest(self.cache).digest
        self.pins = (Pin(component="web", split="train", url=str(self.cache), digest=digest),)
        return self


@pytest.fixture
def case(prepared: Any, tmp_path: Path) -> Case:
    for part in ("tokens", "documents", "tokenizers"):
        shutil.copytree(prepared.home.root / part, tmp_path / part)
    shutil.copytree(prepared.sources, tmp_path / "sources")
    return Case(type(prepared)(Home(tmp_path), tmp_path / "sources"))


def same_size_and_time(case: Case, _: pytest.MonkeyPatch) -> str:
    status = case.file.stat()
    case.file.write_bytes(case.file.read_bytes().replace(b"The", b"She", 1))
    os.utime(case.file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (case.file.stat().st_size, case.file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    return "content changed: part-1.jsonl"


def removed(case: Case, _: pytest.MonkeyPatch) -> str:
    case.file.unlink()
    return "file removed: part-1.jsonl"


def excluded(case: Case, _: pytest.MonkeyPatch) -> str:
    """Bison: the preprocessing was set to drop the file, and the cache still held it."""
    case.settings = {"exclude": ("part-1*",)}
    return "file no longer selected: part-1.jsonl (expected left out by *.jsonl without part-1*, found in the cache"


def another_text_key(case: Case, _: pytest.MonkeyPatch) -> str:
    case.settings = {"text_key": "content"}
    return "text_key changed: caches of web (expected content, found text"


def reader_code(_: Case, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(verify, "read_by", lambda _: "documents-9")
    return "reader code changed: caches of web (expected documents-9"


def encoder_code(_: Case, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(verify, "ENCODER", "end-only-1")
    return "encoder code changed: caches of web (expected end-only-1"


def tokenizer(case: Case, _: pytest.MonkeyPatch) -> str:
    path = case.plan().tokenizer
    path.write_text(path.read_text() + " ")
    return f"tokenizer edited: {path} (expected the file that was written"


def flipped_byte(case: Case, _: pytest.MonkeyPatch) -> str:
    path = case.cache / "shard-00000.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    return f"shard damaged: {path}"


def edited_manifest(case: Case, _: pytest.MonkeyPatch) -> str:
    path = case.cache / MANIFEST_NAME
    write_json(path, {**read_json(path), "documents": 7})
    return f"manifest edited: {path}"


def half_built(case: Case, _: pytest.MonkeyPatch) -> str:
    (case.cache / MANIFEST_NAME).unlink()
    return f"half-built cache: {case.cache} (expected manifest.json, found "


def gone(case: Case, _: pytest.MonkeyPatch) -> str:
    folder = case.cache
    shutil.rmtree(folder)
    return f"train cache not built: {folder}"


def pinned_and_source_changed(case: Case, patch: pytest.MonkeyPatch) -> str:
    """A pin does not excuse what it hides: Marin's pinned caches kept files that the source no longer had."""
    return same_size_and_time(case.pin(), patch)


def pinned_to_another(case: Case, _: pytest.MonkeyPatch) -> str:
    case.pins = (Pin(component="web", split="train", url=str(case.cache), digest="d" * 64),)
    return f"pinned cache changed: {case.cache} (expected dddddddddddddddd"


def pinned_to_nothing(case: Case, _: pytest.MonkeyPatch) -> str:
    case.pins = (Pin(component="web", split="train", url="/nowhere/web", digest="d" * 64),)
    return "pinned cache missing: /nowhere/web"


def pinned_to_the_other_split(case: Case, _: pytest.MonkeyPatch) -> str:
    folder = case.plan().components["web"].held_out.folder
    case.pins = (Pin(component="web", split="train", url=str(folder), digest=read_manifest(folder).digest),)
    return f"pinned to another cache: {folder} (expected train cache of web, found held_out cache of web): correct the pin"


def linked_from_outside(case: Case, _: pytest.MonkeyPatch) -> str:
    outside = case.world.sources.parent / "outside.jsonl"
    outside.write_text('{"text": "more"}\n')
    case.file.with_name("part-2.jsonl").symlink_to(outside)
    return "file turned away: part-2.jsonl (expected a file under the source's root, found outside the root): take it away"


def unreadable(case: Case, _: pytest.MonkeyPatch) -> str:
    """Built when half of it could be bad; the recipe has become stricter since."""
    manifest = case.plan().components["web"].documents.folder / MANIFEST_NAME
    content = read_json(manifest)
    content["tally"]["bad_documents"] = {"broken JSON": 5}
    write_sealed(manifest, content)
    return "too much is unreadable: "


BREAKS: tuple[Callable[[Case, pytest.MonkeyPatch], str], ...] = (
    same_size_and_time,
    removed,
    excluded,
    another_text_key,
    reader_code,
    encoder_code,
    tokenizer,
    flipped_byte,
    edited_manifest,
    half_built,
    gone,
    pinned_and_source_changed,
    pinned_to_another,
    pinned_to_nothing,
    pinned_to_the_other_split,
    linked_from_outside,
    unreadable,
)


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda break_it: break_it.__name__)
def test_what_is_broken_is_named(case: Case, monkeypatch: pytest.MonkeyPatch, break_it: Callable[[Case, pytest.MonkeyPatch], str]):
    assert case.differences() == []
    expected = break_it(case, monkeypatch)
    found = [str(difference) for difference in case.differences()]
    assert any(line.startswith(expected) for line in found), found
    assert len(found) == len(set(found))
    with pytest.raises(DataError, match="the token caches are not what is configured: ") as refusal:
        check_caches(NAMES, case.plan(), case.world.home)
    assert expected in str(refusal.value)


def test_a_change_is_one_line_for_each_thing_that_changed(case: Case, monkeypatch: pytest.MonkeyPatch):
    """The file; and the tokenizer, which is trained on it."""
    same_size_and_time(case, monkeypatch)
    assert [difference.what for difference in case.differences()] == ["content changed", "tokenizer changed"]


def test_a_pin_that_holds_passes(case: Case):
    assert case.pin().differences() == []


def test_what_was_never_built_is_named(world: Any):
    found = verify_component("web", world.plan(), world.home)
    assert [(one.what, one.found) for one in found] == [("train cache not built", "nothing"), ("held_out cache not built", "nothing")]


def test_bytes_that_change_in_silence_are_found_where_everything_is_read(case: Case):
    """Nothing of the file looks changed; the memory of the home is made to agree with it."""
    plan = case.plan()
    home = case.world.home
    sources = {name: case.world.source(name) for name in NAMES}
    before = read_json(home.digests)["files"]
    same_size_and_time(case, pytest.MonkeyPatch())
    case.plan()
    now = read_json(home.digests)["files"]
    (edited,) = [path for path in now if path.endswith("web/part-1.jsonl")]
    silent = {**now, edited: [now[edited][0], *before[edited][1:]]}
    write_sealed(home.digests, {"version": 2, "files": silent})
    assert (case.plan(), case.differences()) == (plan, [])
    everything = plan_data(sources, home, vocab_size=420, digests=KnownDigests(home, reads_all=True))
    assert "content changed: part-1.jsonl" in str(verify_component("web", everything, home)[0])
    assert "content changed: part-1.jsonl" in str(case.differences()[0])
