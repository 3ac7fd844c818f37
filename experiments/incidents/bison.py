"""Bison's incident, rebuilt small: `python -m experiments.incidents.bison FOLDER [--benchmarks DIR]`.

A bundle of mathematics has GSM8K's test split in OLMES's format as `test.json` next to its training files. It is cached. Then the
source is set to leave `test.json` out, and the old cache stays in use, pinned by its place, as the record did it. The command writes
the bundle and the recipes into the folder and runs `phasewise`. `docs/explanation/leakage.md` has the results.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from experiments.leakage_recall.corpora import host_paragraphs
from experiments.leakage_recall.made_items import made_items
from experiments.leakage_recall.views import olmes
from experiments.survival.runs import tiny_recipe
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.documents import split_of
from phasewise.tasks.data.stand_ins import is_new
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import write_json
from phasewise.validations.evidence.leakage.item_files import read_items
from phasewise.validations.evidence.leakage.items import BenchmarkItem

MATH, PROSE = "all_math", "prose"
TEST_FILE = "test.json"
MADE, REAL = "made-math", "gsm8k"
TRAIN_ITEMS, PROSE_DOCUMENTS = 600, 300
FIRST_TRAIN_ITEM = 1000  # the scan flags 4 of all 7,473, near-copies of test items, and none of these 600


@dataclass(frozen=True)
class Incident:
    """The bundle on disk, and the recipes of the story.

    Attributes:
        items: those in `test.json`.
        benchmarks: the folder to scan for.
    """

    root: Path
    items: tuple[BenchmarkItem, ...]
    benchmarks: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    def recipe(self, *, excluded: Iterable[str] = (), pins: Iterable[dict[str, Any]] = ()) -> Recipe:
        base = tiny_recipe().model_dump(mode="json")
        phase = base["phases"][0] | {"name": "bison", "mixture": [[0, {MATH: 50, PROSE: 50}]]}
        sources = {
            MATH: {"url": str(self.root / MATH), "include": ["*.json"], "exclude": list(excluded), "format": "jsonl"},
            PROSE: {"url": str(self.root / PROSE), "include": ["*.jsonl"], "format": "jsonl"},
        }
        fields = {"name": "bison", "phases": [phase], "sources": sources, "pins": list(pins)}
        return Recipe.model_validate(base | fields)


def write_incident(root: Path, real: Path | None) -> Incident:
    """Write the bundle and the prose, with the items of a folder of real benchmarks, else with made ones."""
    if real is not None:
        items = read_items(real / REAL)
        benchmarks = real
        train = read_items(real / REAL / "train.jsonl")[FIRST_TRAIN_ITEM : FIRST_TRAIN_ITEM + TRAIN_ITEMS]
    else:
        items, train = ([item for item in made_items(TRAIN_ITEMS, seed) if item.benchmark == MADE] for seed in (32, 33))
        benchmarks = root / "benchmarks"
        rows = ({"id": item.id, "question": item.question, "answer": item.solutions[0]} for item in items)
        _write_rows(benchmarks / MADE / "test.jsonl", rows)
    _write_rows(root / MATH / TEST_FILE, ({"text": trained_on(item)} for item in items))
    _write_rows(root / MATH / "train.json", ({"text": olmes(item, Random(0))} for item in train))
    _write_rows(root / PROSE / "prose.jsonl", ({"text": text} for text in _prose()))
    return Incident(root, tuple(items), benchmarks)


def trained_on(item: BenchmarkItem) -> str:
    text = olmes(item, Random(0))
    while split_of(digest_of_bytes(text.encode())) != "train":
        text += "\n"
    return text


def _prose() -> list[str]:
    seen = set[int]()
    return list(islice((text for text in host_paragraphs(Random(32)) if is_new(text, seen)), PROSE_DOCUMENTS))


def _write_rows(path: Path, rows: Iterable[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


class Story:
    def __init__(self, incident: Incident):
        self.incident = incident
        self._environment = {**os.environ, "PHASEWISE_HOME": str(incident.home), "PHASEWISE_BENCHMARKS": str(incident.benchmarks)}

    def recipe(self, name: str, recipe: Recipe) -> Path:
        """The recipe, written."""
        path = self.incident.root / f"{name}.json"
        write_json(path, recipe.model_dump(mode="json"))
        return path

    def phasewise(self, *arguments: object, expect: int) -> str:
        print(f"\n$ phasewise {' '.join(map(str, arguments))}", flush=True)
        command = [sys.executable, "-m", "phasewise.flows.cli.main", *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=self._environment)
        print(
            done.stdout if "--json" not in arguments else f"({len(done.stdout)} bytes of JSON)", f"exit code {done.returncode}", flush=True
        )
        if done.returncode != expect:
            raise SystemExit(f"expected exit code {expect}")
        return done.stdout


def tell(incident: Incident) -> None:
    story = Story(incident)
    scan_for = ("--benchmarks", incident.benchmarks)
    before = story.recipe("before", incident.recipe())
    prepared = json.loads(story.phasewise("data", "prepare", before, "--json", expect=0))
    cache = next(one["train"] for one in prepared["components"] if one["name"] == MATH)
    dropped = story.recipe("dropped", incident.recipe(excluded=[TEST_FILE], pins=[pin_of(cache["path"], cache["digest"])]))
    story.phasewise("data", "verify", dropped, expect=1)
    story.phasewise("scan", cache["path"], *scan_for, expect=1)
    story.phasewise("run", dropped, expect=1)
    rebuilt = story.recipe("rebuilt", incident.recipe(excluded=[TEST_FILE]))
    prepared = json.loads(story.phasewise("data", "prepare", rebuilt, "--json", expect=0))
    story.phasewise("data", "verify", rebuilt, expect=0)
    story.phasewise("scan", next(one["train"]["path"] for one in prepared["components"] if one["name"] == MATH), *scan_for, expect=0)
    story.phasewise("run", rebuilt, expect=0)


def pin_of(path: str, digest: str) -> dict[str, str]:
    """The old cache of the mathematics, kept in use."""
    return {"component": MATH, "split": "train", "url": path, "digest": digest}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--benchmarks", type=Path, help="a folder of real benchmarks with gsm8k/; without it items are made up")
    chosen = parser.parse_args()
    incident = write_incident(chosen.folder.resolve(), chosen.benchmarks.resolve() if chosen.benchmarks else None)
    print(f"{len(incident.items):,} test items are in {incident.root / MATH / TEST_FILE}.")
    tell(incident)


if __name__ == "__main__":
    main()
