"""Marin 32B's incident, replayed: a test split that stayed in the cache of a bundle of mathematics stops the phase before it trains."""

import html
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from experiments.incidents.bison import MADE, MATH, TEST_FILE, Incident, pin_of, write_incident
from phasewise.flows.cli import main
from phasewise.flows.plan import build_run, data_plan, sources_of, stand_ins_of
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.site import pages
from phasewise.flows.site.documents import Asked
from phasewise.flows.site.shelf import Links, PhaseAddress, Shelf
from phasewise.flows.site.site import Site
from phasewise.flows.status.phase_status import raise_unless_let_pass
from phasewise.tasks.data import cluster
from phasewise.tasks.data.prepare import build_missing_caches, collect_stand_ins, make_missing_tokenizer, write_missing_documents
from phasewise.tasks.data.stand_ins import BENCHMARK, NUM_ITEMS, TEST_NAME
from phasewise.tasks.evaluation.made_benchmarks import write_missing_benchmarks
from phasewise.tasks.home import Home
from phasewise.tasks.validation.judge import judge_phase_data
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.run import check_verdict
from phasewise.validations.evidence.caches import hand_off_evidence
from phasewise.validations.verdict import Verdict

pytestmark = pytest.mark.timeout(600)  # a guard against hanging
BUNDLE, CLEAN = "all_math_9d507c", "all_math"
TRAINED_ON = 15 / 16


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(cluster.WORKERS_VARIABLE, "2")
    with cluster.cluster() as client:
        monkeypatch.setattr(cluster, "cluster", lambda: nullcontext(client))
        yield


def prepared_and_judged(recipe: Recipe, home: Home, **limits: Any) -> Verdict:
    """The verdict on the phase's data, with these limits of its own, or the recipe's; its trainer heeds it."""
    plan, phase = data_plan(recipe, home), recipe.phase("bison")
    write_missing_documents(plan)
    make_missing_tokenizer(plan, recipe.tokenizer.vocab_size, recipe.tokenizer.name)
    build_missing_caches(plan)
    write_missing_benchmarks(plan)
    run = build_run(recipe, phase, home, plan.folders("train"))
    verdict = judge_phase_data(run, plan, phase.gates.data.but(**limits), home, hand_off=hand_off_evidence(None, {}))
    with nullcontext() if verdict.passes else pytest.raises(VerdictError):
        check_verdict(run)
    return verdict


def stopping(verdict: Verdict) -> set[str]:
    """The tables of the critical checks that fail."""
    return {check.table for check in verdict.checks if not check.passes and check.severity == "critical"}


def leaked(verdict: Verdict, benchmark: str) -> pd.DataFrame:
    found = pd.read_parquet(Path(verdict.evidence) / "leaked_items.parquet")
    return found[found["benchmark"] == benchmark]


def test_a_stale_cache_is_stopped_by_its_file_s_name_and_by_its_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    incident = write_incident(tmp_path, None)
    monkeypatch.setenv("PHASEWISE_BENCHMARKS", str(incident.benchmarks))
    home, names = Home.open(str(incident.home)), {item.id for item in incident.items}
    fresh = prepared_and_judged(incident.recipe(), home)
    assert stopping(fresh) == {"leakage"}
    assert set(leaked(fresh, MADE)["item"]) == names
    write_json(tmp_path / "recipe.json", incident.recipe().model_dump(mode="json"))
    site = Site(Shelf(Home(incident.home, reads_only=True), [str(tmp_path / "recipe.json")]))
    one, files = pages.find_phase(site, PhaseAddress("bison", "proxy", "bison"))
    page = pages.documents_page(site, Links("text"), one, files, MATH, 1)
    assert f"<b>{len(names):,} of {len(names):,} items found</b>" in page
    item = next(item for item in incident.items if item.id == "made-math-3")
    for shown in (page, pages.verdict_page(site, Links("data"), one, files, "data", Asked())):
        assert page.count("<mark>") >= 5
        assert html.escape(item.question.split("\n")[0][:60], quote=True).replace("&#x27;", "&#39;") in shown
        assert f"{MATH}, file {TEST_FILE}, document" in shown

    cache = data_plan(incident.recipe(), home).components[MATH].train.folder
    dropped = incident.recipe(excluded=[TEST_FILE], pins=[pin_of(str(cache), read_manifest(cache).digest)])
    both = prepared_and_judged(dropped, home)
    assert stopping(both) == {"differences", "leakage"}
    assert any(reason.what.startswith(f"file {TEST_FILE} is in the cache of component {MATH}") for reason in both.reasons)
    found = leaked(both, MADE)
    assert set(found["item"]) == names
    assert {path for files in found["files"] for path in files.split(", ")} >= {TEST_FILE}
    with pytest.raises(VerdictError, match=f"bison data failed: file {TEST_FILE}"):
        raise_unless_let_pass(both, incident.root / "none.json", "`approve`")

    leakage = incident.recipe().phase("bison").gates.data.leakage.model_dump()
    assert stopping(prepared_and_judged(dropped, home, leakage={**leakage, "max_items": len(names)})) == {"differences"}
    rebuilt = incident.recipe(excluded=[TEST_FILE])
    last = prepared_and_judged(rebuilt, home)
    assert last.passes, last.reasons
    assert verify_and_scan(incident, dropped, tmp_path) == (1, 1, 1, names)
    assert verify_and_scan(incident, rebuilt, tmp_path) == (0, 0, 0, set())


def verify_and_scan(incident: Incident, recipe: Recipe, folder: Path) -> tuple[int, int, int, set[str]]:
    """Exit code and differences of `data verify`, exit code and items of `scan`, as in `docs/explanation/leakage.md`."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(main.main, [*map(str, arguments), "--home", str(incident.home)])

    write_json(folder / "recipe.json", recipe.model_dump(mode="json"))
    verified = run("data", "verify", folder / "recipe.json")
    cache = data_plan(recipe, Home.open(str(incident.home))).components[MATH].train.folder
    scanned = run("scan", cache, "--benchmarks", incident.benchmarks, "--json")
    hits = json.loads(scanned.stdout)["hits"]
    assert all(hit["file"] == TEST_FILE for hit in hits)
    differences = verified.stdout.count(f"{MATH}: file no longer selected: {TEST_FILE}")
    return verified.exit_code, differences, scanned.exit_code, {hit["item"] for hit in hits if hit["benchmark"] == MADE}


def bison_alone(component: str, home: Home) -> Recipe:
    """The record's phase at proxy scale, from scratch, on its mathematics and FLAN; its stand-ins are collected."""
    recipe = load_recipe("marin-32b", "proxy")
    bison = recipe.phase("bison").model_dump(mode="json")
    flat = {"kind": "constant", "start_step": 0, "end_step": 160, "start": 7e-4, "end": 7e-4}
    mixture = [[0, {component: 60.0, "flan": 40.0}]]
    bison |= {"start": {"seed": 0}, "learning_rate": [flat, *bison["learning_rate"]], "mixture": mixture}
    bison["gates"]["data"]["max_epochs"] = None  # the two have too little text for so many steps
    alone = recipe.but(phases=[bison], tokenizer={"name": None, "vocab_size": 1024})
    collect_stand_ins(stand_ins_of(alone), home.sources)
    return alone


@pytest.mark.long
def test_the_made_up_items_of_the_record_s_bundle_are_found_in_its_cache(tmp_path: Path):
    home = Home.open(str(tmp_path))
    recipe = bison_alone(BUNDLE, home)
    assert TEST_NAME in sources_of(recipe, home)[BUNDLE].include
    verdict = prepared_and_judged(recipe, home)
    found = leaked(verdict, BENCHMARK)
    assert set(found["component"]) == {BUNDLE}
    assert all(name.endswith(TEST_NAME) for name in found["files"])
    assert 0.85 * TRAINED_ON * NUM_ITEMS < found["item"].nunique() <= NUM_ITEMS
    assert stopping(verdict) == {"leakage"}


@pytest.mark.long
def test_the_catalogue_s_own_mathematics_of_which_nothing_says_test_passes(tmp_path: Path):
    home = Home.open(str(tmp_path))
    verdict = prepared_and_judged(bison_alone(CLEAN, home), home)
    assert verdict.passes
    assert leaked(verdict, BENCHMARK).empty
