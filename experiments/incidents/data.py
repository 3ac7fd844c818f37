"""Replays of incidents of text, tokens and caches, in copies of a prepared home."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from experiments.incidents.case import DATA, START, Case, Raw, write_recipe
from experiments.leakage_recall.made_items import made_items
from experiments.leakage_recall.views import olmes
from phasewise.flows.cli.data import judge_order
from phasewise.flows.cli.scan import scan_paths
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import MANIFEST_NAME, read_manifest, write_manifest
from tests.tasks.conftest import write_lines, write_prose

MADE = "made-math"
ITEMS, WORDS_OF_A_LINE = 60, 8
LONG = 1_000_003


def cached_test_split_is_kept_by_a_pin(case: Case) -> None:
    recipe = case.prepared()
    test = case.folder / "text" / "web" / "test.jsonl"
    write_lines(test, [write_prose(seed, 12) for seed in range(9000, 9020)])
    case.prepare(recipe)
    caches = sorted((case.folder / "home" / "tokens" / "web").glob("train-*"), key=lambda path: path.stat().st_mtime)
    pinned = caches[0 if case.sound else -1]
    pin = {"component": "web", "split": "train", "url": str(pinned), "digest": read_manifest(pinned).digest}

    def exclude(raw: Raw) -> None:
        raw["sources"]["web"]["exclude"] = [test.name]
        raw["pins"] = [pin]

    case.check(write_recipe(case.folder, exclude))


def leaked_items_are_wrapped_to_short_lines(case: Case) -> None:
    case.stage = DATA
    items = [item for item in made_items(ITEMS, 32) if item.benchmark == MADE]
    rows = [{"id": item.id, "question": item.question, "answer": item.solutions[0]} for item in items]
    (case.folder / "benchmarks" / MADE).mkdir(parents=True)
    (case.folder / "benchmarks" / MADE / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    leaked = [] if case.sound else [wrapped(olmes(item, Random(0))) for item in items]
    write_lines(case.folder / "text" / "part.jsonl", [*(write_prose(seed, 12) for seed in range(100)), *leaked])
    settings: dict[str, Any] = {"min_score": 0.6, "tokenizer": None, "workers": 1, "home": None, "exclude": (), "suite": None}
    found = scan_paths((str(case.folder / "text"),), str(case.folder / "benchmarks"), **settings)
    if hits := found["hits"]:
        recalled = len({hit["item"] for hit in hits})
        raise DataError(
            f"{recalled} of {len(items)} items of {MADE} are in {hits[0]['file']}, the first at document {hits[0]['document']}."
        )


def wrapped(text: str) -> str:
    """Break a text into lines of eight words."""
    words = text.split()
    return "\n".join(" ".join(words[first : first + WORDS_OF_A_LINE]) for first in range(0, len(words), WORDS_OF_A_LINE))


def cache_has_another_tokenizer(case: Case) -> None:
    def smaller(raw: Raw) -> None:
        raw["tokenizer"]["vocab_size"] = raw["tokenizer"]["vocab_size"] if case.sound else 300
        raw["pins"] = [] if case.sound else pins

    case.prepared()
    [old] = (case.folder / "home" / "tokens" / "web").glob("train-*")
    pins = [{"component": "web", "split": "train", "url": str(old), "digest": read_manifest(old).digest}]
    case.prepare(write_recipe(case.folder, smaller))
    case.check(write_recipe(case.folder, smaller))


def tokenizers_of_two_caches_differ(case: Case) -> None:
    run = case.run()
    case.stage = START
    changed = Path(shutil.copytree(run.caches["web"], case.folder / "tokens" / "web"))
    manifest = read_manifest(changed)
    write_manifest(changed, manifest if case.sound else manifest.but(begin_of_text=5))
    case.train(case.run("other", caches=run.caches | {"web": str(changed)}))


def tokens_lie_outside_the_vocabulary(case: Case) -> None:
    run = case.run(model=case.run().model.but(vocab_size=420 if case.sound else 100))
    case.train(run)


def added_file_keeps_the_old_cache(case: Case) -> None:
    recipe = case.prepared()
    if not case.sound:
        write_lines(case.folder / "text" / "web" / "more.jsonl", [write_prose(7, 12)])
    case.check(recipe)


def edited_file_keeps_size_and_time(case: Case) -> None:
    recipe = case.prepared()
    path = case.folder / "text" / "web" / "part.jsonl"
    case.check(recipe)
    if not case.sound:
        before, content = path.stat(), path.read_text()
        path.write_text(content.replace("The", "Der", 1))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    case.check(recipe)


def unfinished_component_is_left_out(case: Case) -> None:
    spoil(case, lambda cache: (cache / MANIFEST_NAME).unlink())


def purge_deletes_a_cache(case: Case) -> None:
    spoil(case, shutil.rmtree)


def finished_cache_has_corrupt_bytes(case: Case) -> None:
    def flip(cache: Path) -> None:
        path = next(cache.glob("*.bin"))
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)

    spoil(case, flip)


def record_beside_a_cache_is_bogus(case: Case) -> None:
    def edit(cache: Path) -> None:
        path = cache / MANIFEST_NAME
        path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_digest": "0" * 64}))

    spoil(case, edit)


def spoil(case: Case, damage: Callable[[Path], object]) -> None:
    """Damage the training cache of one component, and check the home."""
    recipe = case.prepared()
    if not case.sound:
        [cache] = (case.folder / "home" / "tokens" / "web").glob("train-*")
        damage(cache)
    case.check(recipe)


def wrong_key_counts_no_elements(case: Case) -> None:
    folder = Path(shutil.copytree(case.run().caches["web"], case.folder / "web"))
    case.stage = START
    manifest = read_manifest(folder)
    write_manifest(folder, manifest if case.sound else manifest.but(tokens=0))
    TokenCache.open(folder)


def source_matches_no_file(case: Case) -> None:
    case.prepared()
    pattern = "*.jsonl" if case.sound else "*.parquet"
    case.prepare(write_recipe(case.folder, lambda raw: raw["sources"]["web"].update(include=[pattern])))


def linear_permutation_keeps_sorted_data_sorted(case: Case) -> None:
    case.stage = DATA
    found = judge_order("feistel" if case.sound else "linear", LONG, 0)
    if failed := [one for one in found["measures"] if not one["passes"]]:
        raise DataError(f"{found['kind']} over {LONG:,} rows does not mix: {failed[0]['name']}: {failed[0]['detail']}.")
