import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.validations.conftest import ITEMS
from trainer.errors import VerdictError
from validations.limits import DataLimits, LeakageLimits
from validations.verdict import DataEvidence, Verdict, judge_data, read_verdict, write_verdict

Build = Callable[..., DataEvidence]
Judge = Callable[[DataEvidence], Verdict]
PLANTED = f"Quiz night. {ITEMS[0].text} Well done."


@pytest.fixture
def judge(tmp_path: Path, limits: DataLimits) -> Judge:
    return lambda evidence: judge_data("kestrel data", evidence, limits=limits, folder=tmp_path / "evidence")


def change(table: pd.DataFrame, column: str, value: Any, row: int = 0) -> pd.DataFrame:
    changed = table.copy()
    changed[column] = changed[column].astype(object)
    changed.loc[row, column] = value
    return changed.infer_objects()


def test_data_in_order_pass_with_every_check_made(data_evidence: Build, judge: Judge):
    evidence = data_evidence()
    verdict = judge(evidence)
    assert verdict.passes
    assert verdict.reasons == ()
    assert all(check.outcome == "passed" for check in verdict.checks)
    assert {check.table for check in verdict.checks} == {"caches", "mixture", "leakage"}
    assert verdict.judged == dict(zip(evidence.caches["component"], evidence.caches["manifest_digest"], strict=True))


def test_a_planted_item_is_told_with_item_count_component_and_file(data_evidence: Build, judge: Judge):
    verdict = judge(data_evidence(extra={"starcoderdata": [PLANTED]}))
    assert not verdict.passes
    (reason,) = verdict.reasons
    assert reason.expectation == "expect_leaked_items_within_limit"
    assert reason.sentence == (
        "item mc-0012 of benchmark continuation stands in 1 document of component starcoderdata, "
        "file sources/starcoderdata/part-0.jsonl (containment 1.00). Remove it from the source and run again."
    )
    assert "quiz night" not in reason.found.lower()
    assert "gallium" in reason.found


def test_as_many_items_as_allowed_may_leak(data_evidence: Build, limits: DataLimits, tmp_path: Path):
    allowed = DataLimits(
        max_share_error_points=limits.max_share_error_points,
        max_epochs=None,
        leakage=LeakageLimits(ngram_words=13, min_containment=0.5, max_items=1),
    )
    evidence = data_evidence(extra={"starcoderdata": [PLANTED]})
    assert judge_data("s", evidence, limits=allowed, folder=tmp_path / "evidence").passes


def test_many_leaked_items_are_capped_and_counted(data_evidence: Build, judge: Judge):
    evidence = data_evidence(extra={"starcoderdata": [PLANTED]})
    many = pd.concat([evidence.leaked_items.assign(item=f"mc-{number}") for number in range(25)], ignore_index=True)
    verdict = judge(replace(evidence, leaked_items=many, leakage=change(evidence.leakage, "items_hit", 25, row=2)))
    assert len(verdict.reasons) == 21
    assert "5 more like these were found, 25 in total" in verdict.reasons[-1].what


@pytest.mark.parametrize(
    ("table", "column", "value", "expectation", "told"),
    [
        ("caches", "damaged_shards", 1, "expect_shards_to_match_manifest", "1 of 1 shard of component wikipedia does not hold the bytes"),
        ("caches", "stale_files", 2, "expect_cache_to_be_fresh", "component wikipedia is stale: its sources differ in 2 files"),
        ("caches", "split", "held_out", "expect_column_values_to_be_in_set", "must not be trained on"),
        ("caches", "tokens", 0, "expect_something_to_read", "component wikipedia holds no tokens"),
        (
            "caches",
            "manifest_component",
            "arxiv",
            "expect_column_pair_values_to_be_equal",
            "named for component wikipedia holds component arxiv",
        ),
        ("mixture", "rows", 0, "expect_something_to_read", "does not fill one row"),
        ("mixture", "error_points", float("nan"), "expect_share_error_within_limit", "the recipe intends 75.00 %"),
        ("mixture", "epochs_since_step_0", 4.5, "expect_epochs_within_limit", "component wikipedia has been seen 4.50 times over"),
        ("leakage", "documents_scanned", 0, "expect_something_to_read", "no document of component wikipedia was scanned"),
        ("leakage", "scan_key", "older", "expect_column_pair_values_to_be_equal", "made of another cache"),
    ],
)
def test_one_thing_broken_fails_with_its_reason(
    data_evidence: Build, judge: Judge, table: str, column: str, value: object, expectation: str, told: str
):
    evidence = data_evidence()
    verdict = judge(replace(evidence, **{table: change(getattr(evidence, table), column, value)}))
    assert not verdict.passes
    assert [(reason.expectation, told in reason.what) for reason in verdict.reasons] == [(expectation, True)]
    assert verdict.reasons[0].severity == "critical"


def test_a_wrong_share_fails_for_each_component(data_evidence: Build, judge: Judge):
    verdict = judge(data_evidence(drawn={"wikipedia": 580, "starcoderdata": 220}))
    assert [reason.expectation for reason in verdict.reasons] == ["expect_share_error_within_limit"] * 2
    assert verdict.reasons[0].found == "2.50 percentage points off"
    assert verdict.reasons[0].limit == "0.5 percentage points"


def test_a_component_that_is_never_drawn_only_warns(data_evidence: Build, judge: Judge):
    evidence = data_evidence()
    verdict = judge(replace(evidence, mixture=change(evidence.mixture, "is_drawn", False, row=1)))
    assert verdict.passes
    assert [(reason.severity, reason.where) for reason in verdict.reasons] == [("warning", "steps 0 to 100, component starcoderdata")]


@pytest.mark.parametrize("table", ["caches", "leakage"])
def test_a_drawn_component_that_nobody_judged_fails(data_evidence: Build, judge: Judge, table: str):
    evidence = data_evidence()
    judged = getattr(evidence, table)
    verdict = judge(replace(evidence, **{table: judged[judged["component"] == "wikipedia"]}))
    assert not verdict.passes
    told = [reason.what for reason in verdict.reasons]
    assert told == [f"table {table} does not judge every component that the mixture draws (missing: starcoderdata)"]


@pytest.mark.parametrize("table", ["caches", "mixture", "leakage"])
def test_an_empty_table_fails_and_says_so_once(data_evidence: Build, judge: Judge, table: str):
    evidence = data_evidence()
    verdict = judge(replace(evidence, **{table: getattr(evidence, table).head(0)}))
    assert not verdict.passes
    assert [reason.what for reason in verdict.reasons] == [f"the evidence table {table} is empty, so nothing was judged"]


def test_a_check_that_cannot_be_made_is_not_mistaken_for_bad_data(data_evidence: Build, judge: Judge):
    evidence = data_evidence()
    verdict = judge(replace(evidence, mixture=evidence.mixture.drop(columns="is_drawn")))
    assert not verdict.passes, "a broken check lets nothing pass, though this one would only warn"
    (broken,) = [check for check in verdict.checks if not check.passes]
    assert broken.outcome == "broken"
    assert "is_drawn" in broken.observed
    assert "not of the data" in verdict.reasons[0].what_to_do


def test_a_verdict_is_read_back_as_it_was_written(data_evidence: Build, judge: Judge, tmp_path: Path):
    verdict = judge(data_evidence(extra={"starcoderdata": [PLANTED]}))
    write_verdict(tmp_path / "verdict.json", verdict)
    assert read_verdict(tmp_path / "verdict.json") == verdict
    as_json = json.loads((tmp_path / "verdict.json").read_text())
    assert as_json["passes"] is False
    assert set(as_json["judged"]) == {"wikipedia", "starcoderdata"}
    assert {path.stem for path in (tmp_path / "evidence").glob("*.parquet")} == {"caches", "mixture", "leakage", "leaked_items"}


@pytest.mark.parametrize("content", [None, "{", '{"passes": true}'])
def test_what_is_no_verdict_is_refused(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "verdict.json").write_text(content)
    with pytest.raises(VerdictError, match=r"verdict\.json"):
        read_verdict(tmp_path / "verdict.json")
