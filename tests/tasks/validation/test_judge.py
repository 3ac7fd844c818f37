import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from phasewise.flows.recipes.marin.marin_8b import MARIN_8B
from phasewise.tasks.data import cluster
from phasewise.tasks.data.documents import split_of, split_texts
from phasewise.tasks.data.listing import Listing
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.evaluation.made_benchmarks import WordOrderItem, benchmark_items
from phasewise.tasks.evaluation.settings import BENCHMARKS_VARIABLE, OwnBenchmark
from phasewise.tasks.validation import judge
from phasewise.tasks.validation.judge import test_items as items_of
from phasewise.trainer.base.errors import ConfigError, DataError, VerdictError
from phasewise.trainer.base.identity import SEAL, digest_of_bytes
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import SourceFile, read_manifest
from phasewise.trainer.data.packing import DrawnRows
from phasewise.trainer.run import check_verdict
from phasewise.validations.evidence.caches import hand_off_evidence
from phasewise.validations.limits import OWN_TEXT, DataLimits, LeakageLimits, OrderLimits
from phasewise.validations.verdict import Verdict, read_verdict
from tests.tasks.conftest import tiny_run
from tests.trainer.token_caches import BEGIN, END, write_token_cache

LEAKAGE = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
ORDER = OrderLimits(false_alarm_rate=1e-6, max_shift_deviations=0.5)
LIMITS = DataLimits(max_share_error_points=1.0, max_share_error_percent=None, max_epochs=40.0, leakage=LEAKAGE, order=ORDER)
Own = Sequence[OwnBenchmark]
MIXTURE = {"code": 50, "law": 25, "web": 25}


def build_run(plan: DataPlan, home: Any, mixture: dict[str, float] | None = None) -> RunConfig:
    shares = mixture or MIXTURE
    verdict, output = home.verdict("tiny-proxy", "first", "data"), home.run("tiny-proxy", "first")
    order = {"seed": 0, "permutation": "feistel", "block_sequences": 8}
    caches = {name: plan.components[name].train.folder for name in shares}
    return tiny_run("first", 20, caches, verdict, output, batch=[[0, 4]], mixture=[[0, shares]], order=order)


def judged(world: Any, limits: DataLimits = LIMITS, mixture: dict[str, float] | None = None, own: Own = ()) -> Verdict:
    plan = world.plan()
    return judge_plan(plan, world.home, limits, mixture, own)


def judge_plan(plan: DataPlan, home: Any, limits: DataLimits = LIMITS, mixture: dict[str, float] | None = None, own: Own = ()) -> Verdict:
    return judge.judge_phase_data(build_run(plan, home, mixture), plan, limits, home, hand_off=hand_off_evidence(None, {}), own=own)


@pytest.fixture
def copied(prepared: Any, tmp_path: Path) -> Any:
    shutil.copytree(prepared.home.root, tmp_path / "home", ignore=shutil.ignore_patterns("evidence*", "verdicts", "sources"))
    return type(prepared)(type(prepared.home).open(str(tmp_path / "home")), prepared.sources)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The components of every scan that is made from now on."""
    made: list[list[str]] = []
    run_all = cluster.run_all

    def note(work: str, function: Any, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        made.append(sorted({shard.folder.parent.name for shard, *_ in calls}))
        return run_all(work, function, calls)

    monkeypatch.setattr(cluster, "run_all", note)
    monkeypatch.setattr(judge, "MIN_CLUSTER_BYTES", 0)
    return made


@pytest.mark.usefixtures("on_scheduler")
def test_data_that_is_in_order_may_be_trained_on(copied: Any):
    verdict = judged(copied)
    assert verdict.passes, verdict.reasons
    assert (verdict.subject, verdict.suite) == ("tiny/proxy/first data", "data")
    assert len(verdict.checks) > 10
    plan = copied.plan()
    assert verdict.judged == {name: read_manifest(plan.components[name].train.folder).digest for name in MIXTURE}
    run = build_run(plan, copied.home)
    assert read_verdict(run.verdict) == verdict
    check_verdict(run)


@pytest.mark.usefixtures("on_scheduler")
def test_a_scan_of_the_same_bytes_is_not_made_again(copied: Any, scans: list[list[str]]):
    first = judged(copied)
    second = judged(copied)
    fewer = judged(copied, mixture={"law": 50, "web": 50})
    loose = LeakageLimits(min_words=13, min_score=0.9, min_copy_share=0.8, max_items=0)
    looser = judged(copied, LIMITS.but(leakage=loose))
    assert second == first
    assert set(fewer.judged) == {"law", "web"}
    assert looser.passes
    assert scans == [["code", "law", "web"], [], [], ["code", "law", "web"]]


def plant(world: Any, component: str, text: str) -> None:
    texts = (f"Copied from elsewhere, {number}: {text} And so on." for number in range(50))
    training = next(text for text in texts if split_of(digest_of_bytes(text.encode())) == "train")
    (world.sources / component / "planted.jsonl").write_text(f'{{"text": "{training}"}}\n')


def leaked(verdict: Verdict) -> pd.DataFrame:
    return pd.read_parquet(Path(verdict.evidence) / "leaked_items.parquet")


@pytest.mark.usefixtures("on_scheduler")
def test_a_held_out_document_or_a_benchmark_item_in_another_source_stops_the_phase(prepared: Any, tmp_path: Path):
    world = type(prepared)(type(prepared.home).open(str(tmp_path)), tmp_path / "sources")
    shutil.copytree(prepared.sources, world.sources)
    plan = world.prepare()
    lines = (plan.benchmarks / "word_order.jsonl").read_text().splitlines()
    question, own = (
        next(item for item in map(WordOrderItem.model_validate_json, lines) if item.component == name) for name in ("law", "web")
    )
    held_out = next(split_texts(plan.components["law"].documents.folder, "held_out"))
    plant(world, "web", f"{question.text} {own.text}")
    plant(world, "code", held_out)
    again = world.prepare()
    kept = {item.id for item in benchmark_items(again.benchmarks)}
    assert question.id in kept
    assert own.id not in kept  # its own component repeats the passage: it tests nothing

    verdict = judged(world)
    assert not verdict.passes
    reasons = [reason for reason in verdict.reasons if reason.severity == "critical"]
    assert any("held-out law" in reason.what and "planted.jsonl" in reason.what for reason in reasons), reasons
    found = leaked(verdict).query("benchmark == 'held-out law'")
    assert found[["component", "item"]].values.tolist() == [["code", digest_of_bytes(held_out.encode())]]
    assert "planted.jsonl" in found["files"].item()
    named = set(leaked(verdict)[["component", "benchmark", "item"]].itertuples(index=False, name=None))
    assert ("web", "word_order", question.id) in named
    run = build_run(world.plan(), world.home)
    with pytest.raises(VerdictError, match="does not pass: phase first must not train"):
        check_verdict(run)
    for seals in (True, False):  # found by nobody: the scan that is kept, with and without its seal
        for path in world.home.root.glob("evidence/leakage/*/scan.json"):
            kept = read_json(path)
            kept["scan"]["hits"] = []
            write_json(path, kept if seals else {name: value for name, value in kept.items() if name != SEAL})
        assert judged(world) == verdict
    write_json(run.verdict, {**read_json(run.verdict), "passes": True, "checks": []})
    with pytest.raises(VerdictError, match=r"data\.json was changed after it was written"):
        check_verdict(run)


def test_the_test_items_are_the_benchmarks_and_what_is_held_out(prepared: Any):
    plan = prepared.plan()
    items = items_of(plan, [], ())
    held_out = [item for item in items if item.benchmark.startswith("held-out ")]
    texts = [text for component in plan.components.values() for text in split_texts(component.documents.folder, "held_out")]
    assert sorted((item.id, item.question) for item in held_out) == sorted((digest_of_bytes(text.encode()), text) for text in texts)
    assert {item.benchmark for item in items if item not in held_out} == {"word_order", "next_word", "word_problems"}


@pytest.mark.usefixtures("on_scheduler")
def test_a_mixture_that_cannot_be_drawn_does_not_pass(copied: Any):
    strict = DataLimits(max_share_error_points=1.0, max_share_error_percent=None, max_epochs=0.1, leakage=LEAKAGE, order=ORDER)
    verdict = judged(copied, strict)
    assert not verdict.passes
    assert any("has been seen" in reason.what for reason in verdict.reasons)
    skewed = judged(copied, mixture={"code": 80, "law": 10, "web": 10})
    assert not skewed.passes
    assert any("the recipe intends 80.00 %" in reason.what for reason in skewed.reasons)


@pytest.mark.usefixtures("on_scheduler")
def test_a_cache_whose_source_has_changed_does_not_pass(copied: Any):
    plan = copied.plan()
    first, *others = plan.components["web"].listing.files
    changed = replace(plan.components["web"], listing=Listing((SourceFile(name=first.name, size_bytes=1, digest="0" * 64), *others)))
    stale = replace(plan, components={**plan.components, "web": changed})
    verdict = judge_plan(stale, copied.home)
    assert not verdict.passes
    assert any(first.name in reason.what and "web" in reason.what for reason in verdict.reasons if reason.severity == "critical")


@pytest.mark.usefixtures("on_scheduler")
def test_a_damaged_cache_is_not_scanned(copied: Any, scans: list[list[str]]):
    plan = copied.plan()
    shard = next(plan.components["web"].train.folder.glob("*.bin"))
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    verdict = judge_plan(plan, copied.home)
    assert scans == [["code", "law"]]
    assert {check.table for check in verdict.checks if not check.passes} >= {"differences", "leakage"}
    assert any(shard.name in reason.what for reason in verdict.reasons)
    (plan.components["web"].train.folder / "manifest.json").unlink()
    with pytest.raises(DataError, match="the token caches are not what is configured: web: half-built cache"):
        judge_plan(plan, copied.home)


@pytest.mark.usefixtures("on_scheduler")
def test_real_benchmarks_are_scanned_for_where_they_are_named(
    prepared: Any, copied: Any, benchmarks: Path, monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    def benchmarks_of(verdict: Verdict) -> set[str]:
        return set(pd.read_parquet(Path(verdict.evidence) / "leakage.parquet")["benchmark"])

    without = benchmarks_of(judged(copied))
    monkeypatch.setenv(BENCHMARKS_VARIABLE, str(benchmarks))
    assert benchmarks_of(judged(copied)) - without == {"made-math"}
    monkeypatch.setenv(BENCHMARKS_VARIABLE, str(benchmarks / "nowhere"))
    with pytest.raises(ConfigError, match=r"PHASEWISE_BENCHMARKS names .*nowhere, which does not exist"):
        judged(copied)


@pytest.mark.usefixtures("on_scheduler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_own_benchmarks_are_found_where_they_are_planted(copied: Any, tmp_path: Path):
    def found_in(verdict: Verdict) -> set[tuple[str, int]]:
        rows = pd.read_parquet(Path(verdict.evidence) / "leakage.parquet").query("benchmark == 'quiz' and items_hit")
        return set(zip(rows["component"], rows["items_hit"], strict=True))

    law = next(text for text in split_texts(copied.plan().components["law"].documents.folder, "train") if len(text.split()) > 40)
    (own := tmp_path / "own").mkdir()
    rows = [
        {"question": " ".join(law.split()[:30]) + "?", "answer": "7"},
        {"question": "Which of the moons of Oort has ice?", "answer": "8"},
    ]
    (own / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    key = judge.items_key(copied.plan(), ["law"], [("quiz:0", str(own))])
    assert found_in(judged(copied, own=[("quiz:0", str(own))])) == {("law", 1)}
    (own / "quiz.jsonl").write_text(json.dumps(rows[1]) + "\n")
    assert judge.items_key(copied.plan(), ["law"], [("quiz:0", str(own))]) != key
    assert found_in(judged(copied, own=[("quiz:0", str(own))])) == set()


@pytest.mark.usefixtures("on_scheduler")
def test_an_own_held_out_text_is_found_where_it_is_planted(copied: Any, tmp_path: Path):
    text = next(text for text in split_texts(copied.plan().components["law"].documents.folder, "train") if len(text.split()) > 40)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "secret.txt").write_text(text)
    (tmp_path / "mine" / "unseen.txt").write_text("Nobody has ever written these fourteen words about the green moons of Oort before now.")
    verdict = judged(copied, own=[(OWN_TEXT, str(tmp_path / "mine"))])
    rows = pd.read_parquet(Path(verdict.evidence) / "leakage.parquet").query(
        "items_hit and benchmark in ('held-out secret.txt', 'held-out unseen.txt')"
    )
    assert {(row["component"], row["benchmark"]) for row in rows.to_dict("records")} == {("law", "held-out secret.txt")}
    assert not verdict.passes
    with pytest.raises(ConfigError, match=r"evaluation.held_out: expected a file or a folder with text, found none at .*none"):
        judged(copied, own=[(OWN_TEXT, str(tmp_path / "none"))])


def test_a_training_is_judged_by_its_metrics(prepared: Any, tmp_path: Path):
    home = type(prepared.home).open(str(tmp_path))
    run = build_run(prepared.plan(), home)
    limits = MARIN_8B.phases[0].gates.health
    metrics = Path(run.output) / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text("".join(json.dumps({"step": step, "loss": None if step == 3 else 3.0}) + "\n" for step in range(1, 20)))
    verdict = judge.judge_phase_health(run, limits, home)
    assert not verdict.passes
    assert verdict.judged == {str(metrics): digest_of_bytes(metrics.read_bytes())}
    assert read_verdict(home.verdict("tiny-proxy", "first", "health")) == verdict


def test_a_branch_that_is_planned_beside_a_phase_changes_nothing_that_is_looked_for(prepared: Any):
    with_branch = replace(prepared.plan(), benchmark_components=("code", "law"))
    alone = replace(with_branch, components={name: with_branch.components[name] for name in ("code", "law")})
    assert judge.items_key(with_branch, ["code"]) == judge.items_key(alone, ["law"])
    assert judge.items_key(with_branch, ["code", "web"]) != judge.items_key(with_branch, ["code"])


def test_epochs_before_an_order_count_packed_rows_by_themselves(tmp_path: Path):
    documents = [np.array([BEGIN, *[5] * (length - 2), END], np.uint16) for length in (4, 4, 52)]
    folder = write_token_cache(tmp_path / "web", [documents])
    assert judge.epochs_of([DrawnRows(3, 16, "pad")], folder) == 1.0
    assert judge.epochs_of([DrawnRows(2, 16, "greedy")], folder) == 1.0
    assert judge.epochs_of([DrawnRows(3, 10), DrawnRows(3, 16, "pad")], folder) == 1.5
