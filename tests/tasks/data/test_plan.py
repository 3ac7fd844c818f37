import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.data import caches, documents, tokenizer
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.listing import assumed_tokens
from phasewise.tasks.data.plan import DataPlan, Speed, plan_data, project
from phasewise.tasks.data.source import Pin, Source
from phasewise.tasks.home import Home
from tests.tasks.conftest import VOCAB_SIZE, write_lines
from tests.tasks.data.builds import edit_in_silence

SPEED = Speed(tokens_per_second=50_000, seconds=10, tokenizer="the recipe's tokenizer")
SPLITS = ("train", "held_out")
BUILT_WITH_THE_TOKENIZER = {"tokenizer", "benchmarks", *(f"{name} {split}" for name in ("code", "law", "web") for split in SPLITS)}
IDLE_CHANGES: dict[str, Callable[[Path], object]] = {
    "touch": lambda web: os.utime(web / "part-0.jsonl", (1, 1)),
    "rewrite": lambda web: (web / "part-0.jsonl").write_bytes((web / "part-0.jsonl").read_bytes()),
    "no document": lambda web: (web / "README.md").write_text("no document"),
    "hidden file": lambda web: (web / ".part-3.jsonl").write_text("not ready yet"),
}
DOCUMENTS = {"web documents", "code documents", "law documents"}
DECIDING = ("READER", "NORMALIZER", "DOCUMENTS", "HELD_OUT_ONE_IN")


def test_hours_follow_from_files_speed_and_workers(tmp_path: Path):
    for number in range(8):
        write_lines(tmp_path / "web" / f"{number}.jsonl", ["some words " * 900] * 50)
    source = Source(url=(tmp_path / "web").as_uri(), include=("*.jsonl",), format="jsonl")
    size = (tmp_path / "web" / "0.jsonl").stat().st_size
    plan = plan_data({"web": source}, Home.open(str(tmp_path / "home")), vocab_size=500, budgets={"web": 200_000})
    found = project(plan, SPEED, workers=4, price_per_hour=3.0)
    assert getattr(plan.components["web"].listing.budget, "files", None) == 3
    tokens = round(3 * assumed_tokens(source, "0.jsonl", size))
    assert (found["bytes"], found["tokens"], found["hours"]) == (3 * size, tokens, pytest.approx(tokens / 200_000 / 3600))
    assert found["dollars"] == pytest.approx(3 * tokens / 200_000 / 3600)
    assert found["bytes_per_second"] == pytest.approx(3 * size / (tokens / 200_000))
    assert project(plan, SPEED, workers=4, price_per_hour=None)["dollars"] is None


def keys(plan: DataPlan) -> dict[str, str]:
    found = {f"{name} documents": component.documents.key for name, component in plan.components.items()}
    found |= {f"{name} {split}": component.cache(split).key for name, component in plan.components.items() for split in SPLITS}
    return found | {"tokenizer": plan.tokenizer.parent.name, "benchmarks": plan.benchmarks.name}


def changed(before: DataPlan, after: DataPlan) -> set[str]:
    return {name for name, key in keys(before).items() if keys(after)[name] != key}


CHANGES: dict[str, Callable[[Path], object]] = {
    "edit": lambda web: edit_in_silence(web / "part-0.jsonl"), "add": lambda web: (web / "part-2.jsonl").write_text('{"text": "more"}\n'),
    "remove": lambda web: (web / "part-1.jsonl").unlink(), "rename": lambda web: (web / "part-1.jsonl").rename(web / "part-9.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("change", {**CHANGES, **IDLE_CHANGES})
def test_a_changed_file_changes_what_is_made_of_it_and_what_decides_nothing_changes_nothing(world: Any, change: str):
    before = world.plan()
    {**CHANGES, **IDLE_CHANGES}[change](world.sources / "web")
    assert changed(before, world.plan()) == (BUILT_WITH_THE_TOKENIZER | {"web documents"} if change in CHANGES else set())
    assert (before == world.plan()) == (change in IDLE_CHANGES)


@pytest.mark.parametrize("setting", [
    {"include": ("part-0.jsonl",)}, {"exclude": ("part-1*",)}, {"text_key": "content"}, {"format": "text"},
    {"filters": ({"kind": "text", "measure": "words", "min": 3},)}, {"normalization": {"trailing_spaces": "strip"}},
], ids=str)  # fmt: skip
def test_a_changed_source_setting_changes_what_is_made_of_it(world: Any, setting: dict[str, Any]):
    assert changed(world.plan(), world.plan(**setting)) == BUILT_WITH_THE_TOKENIZER | {"web documents"}


@pytest.mark.parametrize(("module", "name", "value", "expected"), [
    *((documents, name, 17 if name == "HELD_OUT_ONE_IN" else "x", BUILT_WITH_THE_TOKENIZER | DOCUMENTS) for name in DECIDING),
    (tokenizer, "TOKENIZER_VERSION", "x", BUILT_WITH_THE_TOKENIZER),
    (tokenizer, "MAX_BYTES_PER_COMPONENT", 7, BUILT_WITH_THE_TOKENIZER),
    (caches, "ENCODER", "x", BUILT_WITH_THE_TOKENIZER - {"tokenizer"}),
])  # fmt: skip
def test_changed_code_changes_results(world: Any, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: object, expected: Any):
    before = world.plan()
    monkeypatch.setattr(module, name, value)
    assert changed(before, world.plan()) == expected


def test_a_tokenizer_by_name_is_not_made_of_the_documents(world: Any):
    sources = {component: world.source(component) for component in ("code", "law", "web")}
    named = partial(plan_data, sources, world.home, vocab_size=128_256, tokenizer_name="somebody/tokenizer")
    before = named()
    CHANGES["add"](world.sources / "web")
    assert changed(before, named()) == {"web documents", "web train", "web held_out", "benchmarks"}


def test_a_plan_reads_what_is_not_known_and_a_copied_folder_and_a_pin_change_no_key(world: Any, tmp_path: Path):
    sources = {name: world.source(name) for name in ("code", "law", "web")}
    size = sum(path.stat().st_size for path in world.sources.rglob("*.jsonl"))
    plans = [plan_data(sources, world.home, vocab_size=VOCAB_SIZE) for _ in range(3)]
    assert [plan.digests.bytes_read for plan in plans] == [size, 0, 0]
    again = KnownDigests(world.home, reads_all=True)
    assert [plan_data(sources, world.home, vocab_size=VOCAB_SIZE, digests=again).digests for _ in range(2)] == [again, again]
    assert again.bytes_read == size
    shutil.copytree(world.sources / "web", tmp_path / "web")
    assert changed(world.plan(), world.plan(url=(tmp_path / "web").as_uri())) == set()
    pin = Pin(component="web", split="train", url="/elsewhere/web", digest="d" * 64)
    pinned = plan_data(sources, world.home, vocab_size=VOCAB_SIZE, pins=(pin,))
    assert (changed(world.plan(), pinned), str(pinned.components["web"].train.folder)) == (set(), "/elsewhere/web")
    assert pinned.components["web"].held_out.folder == world.plan().components["web"].held_out.folder
