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
from tests.tasks.conftest import write_lines
from tests.tasks.data.builds import edit_in_silence

NAMES = ("code", "law", "web")
SETTINGS = {
    "file no longer selected: part-1.jsonl (expected left out by *.jsonl without part-1*, found in the cache": {"exclude": ("part-1*",)},
    "text_key changed: caches of web (expected content, found text": {"text_key": "content"},
}
CODE: dict[str, tuple[str, Any]] = {
    "reader code changed: caches of web (expected documents-9": ("read_by", lambda _: "documents-9"),
    "encoder code changed: caches of web (expected end-only-1": ("ENCODER", "end-only-1"),
}
"""Bison's preprocessing was set to drop a file, and the cache still held it; a pin must not excuse such a change either."""
BREAKS = (
    *SETTINGS, *CODE, "content changed: part-1.jsonl", "pin: content changed: part-1.jsonl", "file removed: part-1.jsonl",
    "file turned away: part-2.jsonl (expected a file under the source's root, found outside the root): take it away",
    "tokenizer edited: TOKENIZER (expected the file that was written", "shard damaged: CACHE/shard-00000.bin",
    "manifest edited: CACHE/manifest.json", "half-built cache: CACHE (expected manifest.json, found ", "train cache not built: CACHE",
    "pinned cache changed: CACHE (expected dddddddddddddddd", "pinned cache missing: /nowhere/web", "too much is unreadable: ",
    "pinned to another cache: HELD_OUT (expected train cache of web, found held_out cache of web): correct the pin",
)  # fmt: skip


@dataclass
class Case:
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
        digest = read_manifest(self.cache).digest
        self.pins = (Pin(component="web", split="train", url=str(self.cache), digest=digest),)
        return self


@pytest.fixture
def case(prepared: Any, tmp_path: Path) -> Case:
    for part in ("tokens", "documents", "tokenizers"):
        shutil.copytree(prepared.home.root / part, tmp_path / part)
    shutil.copytree(prepared.sources, tmp_path / "sources")
    return Case(type(prepared)(Home(tmp_path), tmp_path / "sources"))


def break_cache(case: Case, expected: str, patch: pytest.MonkeyPatch) -> None:
    web, cache, tokenizer = case.plan().components["web"], case.cache, case.plan().tokenizer
    shard, manifest, built = cache / "shard-00000.bin", cache / MANIFEST_NAME, web.documents.folder / MANIFEST_NAME
    outside = case.world.sources.parent / "outside.jsonl"
    content, tally = shard.read_bytes(), read_json(built)
    breaks: dict[str, Callable[[], object]] = {
        "pin: content": lambda: edit_in_silence(case.pin().file), "content": lambda: edit_in_silence(case.file),
        "file removed": case.file.unlink, "half-built": manifest.unlink, "train cache": lambda: shutil.rmtree(cache),
        "file turned away": lambda: case.file.with_name("part-2.jsonl").symlink_to(write_lines(outside, ["more"])),
        "tokenizer": lambda: tokenizer.write_text(tokenizer.read_text() + " "),
        "shard": lambda: shard.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:]),
        "manifest": lambda: write_json(manifest, {**read_json(manifest), "documents": 7}),
        # built when half of it could be bad; the recipe has become stricter since
        "too much": lambda: write_sealed(built, {**tally, "tally": {**tally["tally"], "bad_documents": {"broken JSON": 5}}}),
    }  # fmt: skip
    if expected in SETTINGS:
        case.settings = SETTINGS[expected]
    elif expected in CODE:
        patch.setattr(verify, *CODE[expected])
    elif found := [change for start, change in breaks.items() if expected.startswith(start)]:
        found[0]()
    else:
        held_out = web.held_out.folder
        url, digest = (held_out, read_manifest(held_out).digest) if "HELD_OUT" in expected else (cache, "d" * 64)
        case.pins = (Pin(component="web", split="train", url="/nowhere/web" if "/nowhere" in expected else str(url), digest=digest),)


@pytest.mark.parametrize("expected", BREAKS)
def test_each_difference_is_named(case: Case, monkeypatch: pytest.MonkeyPatch, expected: str):
    assert case.differences() == []
    places = {"CACHE": case.cache, "TOKENIZER": case.plan().tokenizer, "HELD_OUT": case.plan().components["web"].held_out.folder}
    break_cache(case, expected, monkeypatch)
    expected = expected.removeprefix("pin: ")
    for name, place in places.items():
        expected = expected.replace(name, str(place))
    found = [str(difference) for difference in case.differences()]
    assert any(line.startswith(expected) for line in found), found
    assert len(found) == len(set(found))
    with pytest.raises(DataError, match="the token caches are not what is configured: ") as refusal:
        check_caches(NAMES, case.plan(), case.world.home)
    assert expected in str(refusal.value)


def test_a_pin_that_holds_passes_and_a_change_is_one_line_for_each_thing_that_changed(case: Case):
    assert case.pin().differences() == []
    case.pins = ()
    edit_in_silence(case.file)
    assert [difference.what for difference in case.differences()] == ["content changed", "tokenizer changed"]


def test_what_was_never_built_is_named(world: Any):
    found = verify_component("web", world.plan(), world.home)
    assert [(one.what, one.found) for one in found] == [("train cache not built", "nothing"), ("held_out cache not built", "nothing")]


def test_bytes_that_change_in_silence_are_found_where_everything_is_read(case: Case):
    plan, home = case.plan(), case.world.home
    sources = {name: case.world.source(name) for name in NAMES}
    before = read_json(home.digests)["files"]
    edit_in_silence(case.file)
    case.plan()
    now = read_json(home.digests)["files"]
    (edited,) = [path for path in now if path.endswith("web/part-1.jsonl")]
    silent = {**now, edited: [now[edited][0], *before[edited][1:]]}
    write_sealed(home.digests, {"version": 2, "files": silent})
    assert (case.plan(), case.differences()) == (plan, [])
    everything = plan_data(sources, home, vocab_size=420, digests=KnownDigests(home, reads_all=True))
    assert "content changed: part-1.jsonl" in str(verify_component("web", everything, home)[0])
    assert "content changed: part-1.jsonl" in str(case.differences()[0])
