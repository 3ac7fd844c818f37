import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from phasewise.trainer import run as trainer_run
from phasewise.trainer.base.errors import ExitCode, VerdictError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.run import check_verdict
from phasewise.validations.evidence.caches import differences_evidence, hand_off_evidence
from phasewise.validations.expectations.judging import Reason, judge_tables, reasons_for
from phasewise.validations.expectations.suites import SUITES, version_of
from phasewise.validations.limits import DataLimits
from phasewise.validations.verdict import DataEvidence, Verdict, judge_data, read_verdict, write_verdict
from tests.tasks.conftest import tiny_run
from tests.validations.conftest import DATA_LIMITS, PLANTED, PROSE, CacheMaker

Build = Callable[..., DataEvidence]
Judge = Callable[[DataEvidence], Verdict]
TABLES = SUITES["data"].tables


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return lambda evidence: judge_data("kestrel data", evidence, limits=DATA_LIMITS, folder=tmp_path / "evidence")


def judge_alone(evidence: DataEvidence, table: str, changed: pd.DataFrame) -> list[Reason]:
    """The reasons that the checks of one changed table give; the others take time and say nothing of it."""
    tables = {name: getattr(evidence, name) for name in TABLES} | {table: changed}
    checks = [check for check in SUITES["data"].checks(DATA_LIMITS.model_dump(), tables) if check.table == table]
    return [reason for result in judge_tables(tables, checks) for reason in reasons_for(result, tables)]


def change(table: pd.DataFrame, column: str, value: Any, row: int = 0) -> pd.DataFrame:
    changed = table.copy()
    changed[column] = changed[column].astype(object)
    changed.loc[row, column] = value
    return changed.infer_objects()


def test_data_in_order_pass_with_every_check_made(data_evidence: Build, judge: Judge):
    evidence = data_evidence()
    verdict = judge(evidence)
    assert (verdict.passes, verdict.reasons) == (True, ())
    assert {check.outcome for check in verdict.checks} == {"passed"}
    assert {check.table for check in verdict.checks} == set(TABLES)


def test_a_planted_item_is_reported_with_everything_that_finds_it(data_evidence: Build, judge: Judge):
    verdict = judge(data_evidence(extra={"starcoderdata": [PLANTED]}))
    assert not verdict.passes
    (reason,) = verdict.reasons
    assert reason.expectation == "expect_leaked_items_within_limit"
    assert reason.sentence == (
        "item mc-0012 of continuation is in component starcoderdata, file sources/starcoderdata/part-0.jsonl, document 1 "
        "(question, score 1.00). Remove it from the source and run again. For held-out text, leave out near copies with "
        'deduplicate="near" in the source, or set max_held_out_percent.'
    )
    assert reason.found == f"question of item mc-0012, score 1.00: {PLANTED}"
    assert reason.limit == "at most 0 items with score 0.7 or more"


def test_as_many_items_as_allowed_may_leak(data_evidence: Build, tmp_path: Path):
    allowed = DATA_LIMITS.but(leakage={**DATA_LIMITS.leakage.model_dump(), "max_items": 1})
    for leaked in (1, 2):
        evidence = data_evidence(extra={"starcoderdata": [PLANTED] * leaked})
        assert judge_data("s", evidence, limits=allowed, folder=tmp_path / "evidence").passes == (leaked == 1)


@pytest.mark.parametrize(("from_held_out", "max_percent", "expected"), [
    (True, None, "expect_leaked_items_within_limit"), (True, 4.0, "expect_held_out_within_limit"), (True, 5.0, None),
    (False, 100.0, "expect_leaked_items_within_limit"),
])  # fmt: skip
def test_held_out_text_has_a_limit_of_its_own(
    data_evidence: Build, tmp_path: Path, from_held_out: bool, max_percent: float | None, expected: str | None
):
    limits = DATA_LIMITS.but(leakage={**DATA_LIMITS.leakage.model_dump(), "max_held_out_percent": max_percent})
    evidence = data_evidence(extra={"starcoderdata": [PLANTED]})  # one of 20 items
    hits, percent = evidence.leakage["items_hit"], evidence.leakage["hit_percent"]
    table = evidence.leakage.assign(benchmark_items_hit=hits * (not from_held_out), held_out_percent=percent * from_held_out)
    verdict = judge_data("s", replace(evidence, leakage=table), limits=limits, folder=tmp_path / "evidence")
    assert [reason.expectation for reason in verdict.reasons] == ([] if expected is None else [expected])


def test_a_benchmark_of_which_much_leaks_is_reported_once(data_evidence: Build, judge: Judge):
    evidence = data_evidence(extra={"starcoderdata": [PLANTED]})
    leaked = pd.concat([evidence.leaked_items.assign(benchmark="gsm8k", item=str(number), files="test.json") for number in range(1319)])
    gsm8k = evidence.leakage.head(1).assign(component="starcoderdata", benchmark="gsm8k", items=1319, items_hit=1319, files="test.json")
    leakage = pd.concat([data_evidence().leakage, gsm8k], ignore_index=True).assign(scan_key="scan", expected_scan_key="scan")
    (reason,) = judge(replace(evidence, leaked_items=leaked, leakage=leakage)).reasons
    said = "1,319 of 1,319 items of gsm8k are in component starcoderdata, file test.json"
    assert reason.sentence.startswith(f"{said}. Remove it from the source and run again. ")
    assert reason.found.startswith("question of item 0, score 1.00: Quiz night.")


def test_of_many_reasons_of_a_check_the_worst_are_reported_and_the_rest_counted(data_evidence: Build, judge: Judge):
    evidence = data_evidence()
    row = evidence.leakage.iloc[0]
    rows = [{**row, "benchmark": f"b{number}", "items": 100, "items_hit": number} for number in range(25)]
    found = [(row["component"], f"b{number}", str(item)) for number in range(25) for item in range(number)]
    leaked = pd.DataFrame(found, columns=["component", "benchmark", "item"]).reindex(columns=evidence.leaked_items.columns)
    reasons = judge(replace(evidence, leakage=pd.concat([evidence.leakage, pd.DataFrame(rows)]), leaked_items=leaked)).reasons
    assert [reason.what[:12] for reason in reasons[:-1]] == [f"{number} of 100 it"[:12] for number in range(24, 19, -1)]
    assert reasons[-1].what == "22 more like these were found, 27 in total"


def test_a_list_of_leaked_items_that_does_not_agree_with_their_counts_fails(data_evidence: Build, judge: Judge):
    leaky, clean = data_evidence(extra={"starcoderdata": [PLANTED]}), data_evidence()
    (reason,) = judge(replace(clean, leaked_items=leaky.leaked_items)).reasons
    assert reason.what == "1 leaked items are listed, which does not agree with the table leakage"
    said = judge(replace(leaky, leaked_items=clean.leaked_items)).reasons
    assert [reason.what[:26] for reason in said] == ["1 of 20 items of continuat", "0 leaked items are listed,"]


DIFFERENCES = {
    "file no longer selected": ("expect_cached_files_to_be_selected", "the source does not select it any more (left out by *.json)"),
    "shard damaged": ("expect_shards_to_match_manifest", "component wikipedia does not hold the bytes that the manifest names"),
    "content changed": ("expect_cache_to_be_fresh", "is stale: content changed: test.json (expected left out by *.json, found in"),
    "filters changed": ("expect_cache_to_be_made_as_configured", "not what is configured: filters changed: test.json (expected left out"),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_every_kind_of_difference_is_reported(data_evidence: Build, what: str):
    evidence = data_evidence()
    found = {"what": what, "file": "test.json", "expected": "left out by *.json", "found": "in the cache", "remedy": "prepare again"}
    folders = dict(zip(evidence.caches["component"], evidence.caches["folder"], strict=True))
    (reason,) = judge_alone(evidence, "differences", differences_evidence({"wikipedia": [found], "starcoderdata": []}, folders))
    expectation, said = DIFFERENCES[what]
    assert (reason.expectation, reason.severity, reason.what_to_do) == (expectation, "critical", "Prepare again.")
    assert said in reason.what


def test_caches_that_were_rebuilt_since_they_were_verified_do_not_pass(data_evidence: Build, judge: Judge):
    evidence = data_evidence()
    verdict = judge(replace(evidence, differences=change(evidence.differences, "manifest_digest", "another")))
    assert [reason.expectation for reason in verdict.reasons] == ["expect_verified_cache_to_be_the_judged_one"]
    assert not verdict.passes


def test_a_change_that_the_hand_off_does_not_declare_stops_and_one_that_it_does_not_make_warns(data_evidence: Build, judge: Judge):
    hand_off = hand_off_evidence(["ema", "mixture"], {"mixture": ("a", "b"), "batch": ("1024", "3072")})
    verdict = judge(replace(data_evidence(), hand_off=hand_off))
    assert not verdict.passes
    assert [(reason.severity, reason.what) for reason in verdict.reasons] == [
        ("critical", "the hand-off changes batch without declaring it: 1024 → 3072"),
        ("warning", "the hand-off declares a change of ema, and there is none"),
    ]


@pytest.mark.parametrize(("declared", "found"), [(None, {}), ([], {}), (["rope"], {"rope": ("500000", "5000000")})])
def test_a_hand_off_without_silent_changes_passes(data_evidence: Build, declared: list[str] | None, found: dict[str, Any]):
    assert judge_alone(data_evidence(), "hand_off", hand_off_evidence(declared, found)) == []


@pytest.mark.parametrize(("table", "column", "value", "expectation", "said"), [
    ("caches", "split", "held_out", "expect_training_split", "must not be trained on"),
    ("caches", "split", None, "expect_training_split", "must not be trained on"),
    ("caches", "tokens", 0, "expect_something_to_read", "component wikipedia holds no tokens"),
    ("caches", "manifest_component", "arxiv", "expect_column_pair_values_to_be_equal", "wikipedia holds component arxiv"),
    ("mixture", "rows", 0, "expect_something_to_read", "does not fill one row"),
    ("mixture", "intended_percent", 0.0, "expect_share_to_be_intended", "wikipedia is drawn 600 times in steps 0 to 100"),
    ("mixture", "error_points", float("nan"), "expect_share_error_within_limit", "the recipe intends 75.00 %"),
    ("mixture", "epochs_since_step_0", 4.5, "expect_epochs_within_limit", "component wikipedia has been seen 4.50 times over"),
    ("leakage", "documents_scanned", 0, "expect_something_to_read", "no document of component wikipedia was scanned"),
    ("leakage", "scan_key", "older", "expect_column_pair_values_to_be_equal", "made of another cache"),
    ("hand_off", "status", "unheard of", "expect_hand_off_to_be_compared", "of mixture it is not known"),
])  # fmt: skip
def test_one_thing_broken_fails_with_its_reason(data_evidence: Build, table: str, column: str, value: object, expectation: str, said: str):
    evidence = data_evidence()
    (reason,) = judge_alone(evidence, table, change(getattr(evidence, table), column, value))
    assert (reason.expectation, reason.severity) == (expectation, "critical")
    assert said in reason.what


def test_a_wrong_share_fails_for_each_component(data_evidence: Build, judge: Judge):
    reasons = judge(data_evidence(drawn={"wikipedia": 580, "starcoderdata": 220})).reasons
    assert [reason.expectation for reason in reasons] == ["expect_share_error_within_limit"] * 2
    assert (reasons[0].found, reasons[0].limit) == ("2.50 percentage points off", "0.5 percentage points")


@pytest.mark.parametrize(("table", "column", "values", "said"), [
    ("mixture", "is_drawn", [True, False], "component starcoderdata"),
    ("mixture", "undeclared_cut_sequences", 7, "starts inside a block: the block before it is cut short after 7 sequences"),
    ("leakage", "items_out_of_reach", [20, 1, 1, 1], "none of the 20 items of benchmark continuation can be found"),
])  # fmt: skip
def test_what_may_be_meant_only_warns_and_once(data_evidence: Build, table: str, column: str, values: Any, said: str):
    evidence = data_evidence()
    (reason,) = judge_alone(evidence, table, getattr(evidence, table).assign(**{column: values}))
    assert reason.severity == "warning"
    assert said in f"{reason.what} {reason.where}"


@pytest.mark.parametrize("table", ["caches", "differences", "leakage", "order"])
def test_a_drawn_component_that_nobody_judged_fails(data_evidence: Build, table: str):
    evidence = data_evidence()
    judged = getattr(evidence, table)
    (reason,) = judge_alone(evidence, table, judged[judged["component"] == "wikipedia"])
    assert reason.what == f"table {table} does not judge every component that the mixture draws (missing: starcoderdata)"
    assert reason.severity == "critical"


def test_a_check_that_cannot_be_made_is_not_mistaken_for_bad_data(data_evidence: Build, judge: Judge):
    evidence = data_evidence()
    verdict = judge(replace(evidence, mixture=evidence.mixture.drop(columns="is_drawn")))
    assert not verdict.passes, "a broken check lets nothing pass, though this one would only warn"
    (broken,) = [check for check in verdict.checks if not check.passes]
    assert broken.outcome == "broken"
    assert "is_drawn" in broken.observed
    assert "not of the data" in verdict.reasons[0].what_to_do


def test_a_verdict_is_read_back_and_says_what_was_judged_by_what_with_which_limits(data_evidence: Build, judge: Judge, tmp_path: Path):
    evidence = data_evidence(extra={"starcoderdata": [PLANTED]})
    verdict = judge(evidence)
    write_verdict(tmp_path / "verdict.json", verdict)
    assert read_verdict(tmp_path / "verdict.json") == verdict
    assert {path.stem for path in (tmp_path / "evidence").glob("*.parquet")} == set(TABLES)
    as_json = json.loads((tmp_path / "verdict.json").read_text())
    assert as_json["passes"] is False
    assert as_json["judged"] == dict(zip(evidence.caches["component"], evidence.caches["manifest_digest"], strict=True))
    assert (as_json["suite"], as_json["suite_version"]) == ("data", version_of(SUITES["data"]))
    assert DataLimits.model_validate(as_json["thresholds"]) == DATA_LIMITS
    assert as_json["evidence"] == str(tmp_path / "evidence")


@pytest.mark.parametrize("content", [None, "{", '{"passes": true}'])
def test_what_is_no_verdict_is_refused(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "verdict.json").write_text(content)
    with pytest.raises(VerdictError, match=r"verdict\.json"):
        read_verdict(tmp_path / "verdict.json")


def test_the_trainer_refuses_a_cache_that_was_built_again_after_its_verdict(
    data_evidence: Build, judge: Judge, caches: CacheMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    evidence = data_evidence()
    write_verdict(tmp_path / "verdict.json", judge(evidence))
    folders = dict(zip(evidence.caches["component"], evidence.caches["folder"], strict=True))
    mixture = [[0, {"wikipedia": 75, "starcoderdata": 25}]]
    run = tiny_run("first", 2, folders, tmp_path / "verdict.json", tmp_path / "run", mixture=mixture)
    write_sealed(tmp_path / "run.json", run.model_dump(mode="json"))
    check_verdict(trainer_run.read_run(tmp_path / "run.json"))
    caches.write("wikipedia", [PROSE["wikipedia"], "One more document, which nobody has judged."])
    assert trainer_run.main([str(tmp_path / "run.json")]) == ExitCode.REFUSED
    assert "was given for other bytes of wikipedia" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
