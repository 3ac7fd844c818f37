"""The record's incident, replayed: a test file that was dropped from a source and stayed in its cache."""

import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments.incidents.bison import MADE, MATH, REAL, TEST_FILE, Incident, pin_of, write_incident
from phasewise.flows.cli import main
from phasewise.flows.plan import build_run, data_plan
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.status.phase_status import raise_unless_let_pass
from phasewise.tasks.data.cluster import WORKERS_VARIABLE, cluster
from phasewise.tasks.data.prepare import build_missing_caches, make_missing_tokenizer, write_missing_documents
from phasewise.tasks.evaluation.made_benchmarks import write_missing_benchmarks
from phasewise.tasks.home import Home
from phasewise.tasks.validation.judge import judge_phase_data
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.process.verdict_check import check_verdict
from phasewise.validations.evidence.caches import hand_off_evidence
from phasewise.validations.verdict import Verdict
from tests.shared_data import shared_folder

pytestmark = pytest.mark.timeout(600)  # a guard against hanging


@pytest.fixture(params=["made", "real"])
def incident(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Incident]:
    """The bundle is cached with its test file; every task runs in one cluster."""
    written = write_incident(tmp_path, some_of_the_real(tmp_path / "real") if request.param == "real" else None)
    gsm8k = written.benchmarks / "gsm8k"
    monkeypatch.setenv("PHASEWISE_BENCHMARKS", str(gsm8k if request.param == "real" else written.benchmarks))
    monkeypatch.setenv(WORKERS_VARIABLE, "2")
    with cluster():
        prepare(written, written.recipe())
        yield written


def some_of_the_real(folder: Path) -> Path:
    """GSM8K among others, of mathematics and of prose: an index of all 22 takes most of a minute, and `leakage_recall` is about them."""
    for name in (REAL, "hendrycks_math", "boolq"):
        shutil.copytree(shared_folder("benchmarks") / name, folder / name)
    return folder


def prepare(incident: Incident, recipe: Recipe) -> None:
    """What `phasewise data prepare` does, without a Prefect server."""
    plan = data_plan(recipe, Home.open(str(incident.home)))
    write_missing_documents(plan)
    make_missing_tokenizer(plan, recipe.tokenizer.vocab_size, recipe.tokenizer.name)
    build_missing_caches(plan)
    write_missing_benchmarks(plan)


def judged(incident: Incident, recipe: Recipe, **limits: Any) -> Verdict:
    """The verdict that the phase needs, with these limits of its own, or the recipe's."""
    home = Home.open(str(incident.home))
    phase = recipe.phase("bison")
    plan = data_plan(recipe, home)
    allowed = phase.gates.data.but(**limits)
    run = build_run(recipe, phase, home, plan.folders("train"))
    verdict = judge_phase_data(run, plan, allowed, home, hand_off=hand_off_evidence(None, {}))
    with nullcontext() if verdict.passes else pytest.raises(VerdictError):
        check_verdict(run)
    return verdict


def pinned(incident: Incident) -> Recipe:
    """The test file is left out of the source, and the old cache stays."""
    cache = data_plan(incident.recipe(), Home.open(str(incident.home))).components[MATH].train.folder
    return incident.recipe(excluded=[TEST_FILE], pins=[pin_of(str(cache), read_manifest(cache).digest)])


def what_stops(verdict: Verdict) -> set[str]:
    """The tables of the critical checks that fail."""
    return {check.table for check in verdict.checks if not check.passes and check.severity == "critical"}


def leaked(verdict: Verdict) -> pd.DataFrame:
    """The items of the benchmark; held-out documents may be copies of others."""
    found = pd.read_parquet(Path(verdict.evidence) / "leaked_items.parquet")
    return found[found["benchmark"].isin([MADE, REAL])]


def test_bison_is_stopped_twice_over(incident: Incident, tmp_path: Path):
    """By the file's name and by its items, and by each of them alone; built again, the same phase may train."""
    names = {item.id for item in incident.items}
    fresh = judged(incident, incident.recipe())
    assert what_stops(fresh) == {"leakage"}
    assert set(leaked(fresh)["item"]) == names

    dropped = pinned(incident)
    prepare(incident, dropped)
    both = judged(incident, dropped)
    assert what_stops(both) == {"differences", "leakage"}
    assert any(reason.what.startswith(f"file {TEST_FILE} is in the cache of component {MATH}") for reason in both.reasons)
    assert set(leaked(both)["item"]) == names
    assert {path for files in leaked(both)["files"] for path in files.split(", ")} >= {TEST_FILE}
    with pytest.raises(VerdictError, match=f"bison data failed: file {TEST_FILE}"):
        raise_unless_let_pass(both, incident.root / "none.json", "`approve`")

    leakage = incident.recipe().phase("bison").gates.data.leakage.model_dump()
    stale = judged(incident, dropped, leakage={**leakage, "max_items": len(names)})
    assert what_stops(stale) == {"differences"}

    rebuilt = incident.recipe(excluded=[TEST_FILE])
    prepare(incident, rebuilt)
    last = judged(incident, rebuilt)
    assert last.passes, last.reasons

    said = verify_and_scan(incident, dropped, tmp_path)
    assert said["verified"] == 1
    assert said["differences"] == 1
    assert said["scanned"] == 1
    assert said["items"] == names
    said = verify_and_scan(incident, rebuilt, tmp_path)
    assert (said["verified"], said["differences"], said["scanned"], said["items"]) == (0, 0, 0, set())


def verify_and_scan(incident: Incident, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """What the commands of `docs/explanation/leakage.md` say of a recipe's mathematics."""
    write_json(folder / "recipe.json", recipe.model_dump(mode="json"))
    verified = run("data", "verify", folder / "recipe.json", "--home", incident.home)
    cache = data_plan(recipe, Home.open(str(incident.home))).components[MATH].train.folder
    scanned = run("scan", cache, "--benchmarks", incident.benchmarks, "--home", incident.home, "--json")
    hits = json.loads(scanned.stdout)["hits"]
    assert all(hit["file"] == TEST_FILE for hit in hits)
    return {
        "verified": verified.exit_code,
        "differences": verified.stdout.count(f"{MATH}: file no longer selected: {TEST_FILE}"),
        "scanned": scanned.exit_code,
        "items": {hit["item"] for hit in hits if hit["benchmark"] in (MADE, REAL)},
    }


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main.main, list(map(str, arguments)))
