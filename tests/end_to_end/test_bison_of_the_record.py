"""Marin 32B's Bison: the bundle of mathematics as it was cached, with a test split in `test.json`, stops the phase before it trains."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest

from experiments.incidents.bison import trained_on
from experiments.leakage_recall.views import olmes
from phasewise.flows.plan import build_run, data_plan, sources_of, stand_ins_of
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.cluster import WORKERS_VARIABLE, cluster
from phasewise.tasks.data.prepare import (
    build_missing_caches,
    collect_stand_ins,
    make_missing_tokenizer,
    write_missing_documents,
)
from phasewise.tasks.data.stand_ins import BENCHMARK, NUM_ITEMS, TEST_NAME
from phasewise.tasks.evaluation.made_benchmarks import write_missing_benchmarks
from phasewise.tasks.home import Home
from phasewise.tasks.validation.judge import judge_phase_data
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.process.verdict_check import check_verdict
from phasewise.validations.evidence.caches import hand_off_evidence
from phasewise.validations.evidence.leakage.item_files import read_items
from phasewise.validations.verdict import Verdict
from tests.shared_data import shared_folder

pytestmark = pytest.mark.timeout(600)  # a guard against hanging
BUNDLE, CLEAN = "all_math_9d507c", "all_math"
TRAINED_ON = 15 / 16


def bison_alone(component: str) -> Recipe:
    """The record's phase at proxy scale, from scratch, on its mathematics and FLAN."""
    recipe = load_recipe("marin-32b", "proxy")
    bison = recipe.phase("bison").model_dump(mode="json")
    flat = {"kind": "constant", "start_step": 0, "end_step": 160, "start": 7e-4, "end": 7e-4}
    mixture = [[0, {component: 60.0, "flan": 40.0}]]
    bison |= {"start": {"seed": 0}, "learning_rate": [flat, *bison["learning_rate"]], "mixture": mixture}
    bison["gates"]["data"]["max_epochs"] = None  # the two have too little text for so many steps
    return recipe.but(phases=[bison], tokenizer={"name": None, "vocab_size": 1024})


def judged(recipe: Recipe, home: Home, bundle: Callable[[Path], object]) -> Verdict:
    """The verdict on the phase's data; `bundle` may put files into the folder of the mathematics first."""
    collect_stand_ins(stand_ins_of(recipe), home.sources)
    bundle(home.sources / BUNDLE / TEST_NAME)
    plan = data_plan(recipe, home)
    write_missing_documents(plan)
    make_missing_tokenizer(plan, recipe.tokenizer.vocab_size, None)
    build_missing_caches(plan)
    write_missing_benchmarks(plan)
    phase = recipe.phase("bison")
    run = build_run(recipe, phase, home, plan.folders("train"))
    verdict = judge_phase_data(run, plan, phase.gates.data, home, hand_off=hand_off_evidence(None, {}))
    if not verdict.passes:
        with pytest.raises(VerdictError):
            check_verdict(run)
    return verdict


def leaked(verdict: Verdict, benchmark: str) -> pd.DataFrame:
    found = pd.read_parquet(Path(verdict.evidence) / "leaked_items.parquet")
    return found[found["benchmark"] == benchmark]


def leave(_path: Path) -> None:
    pass


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(WORKERS_VARIABLE, "2")
    with cluster():
        yield Home.open(str(tmp_path))


def test_the_made_up_items_of_the_bundle_are_found_in_its_cache(home: Home):
    recipe = bison_alone(BUNDLE)
    assert TEST_NAME in sources_of(recipe, home)[BUNDLE].include
    verdict = judged(recipe, home, leave)
    found = leaked(verdict, BENCHMARK)
    assert not verdict.passes
    assert set(found["component"]) == {BUNDLE}
    assert all(name.endswith(TEST_NAME) for name in found["files"])
    assert 0.85 * TRAINED_ON * NUM_ITEMS < found["item"].nunique() <= NUM_ITEMS
    assert {check.table for check in verdict.checks if not check.passes and check.severity == "critical"} == {"leakage"}


def test_the_bundle_without_them_passes(home: Home):
    """The catalogue's own `all_math`, of which nothing says test."""
    verdict = judged(bison_alone(CLEAN), home, leave)
    assert verdict.passes
    assert leaked(verdict, BENCHMARK).empty


def test_the_real_items_are_found_all_of_them(home: Home, monkeypatch: pytest.MonkeyPatch):
    real = shared_folder("benchmarks") / "gsm8k"
    items = read_items(real)

    def write(path: Path) -> None:
        rows = ({"id": item.id, "text": trained_on(item)} for item in items)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")

    assert olmes(items[0], Random(0))
    monkeypatch.setenv("PHASEWISE_BENCHMARKS", str(real))
    verdict = judged(bison_alone(BUNDLE), home, write)
    found = leaked(verdict, "gsm8k")
    assert not verdict.passes
    assert (found["item"].nunique(), len(items)) == (1319, 1319)
    assert all(name.endswith(TEST_NAME) for name in found["files"])
