"""Verdicts to report on: a small suite over made-up evidence, judged for real."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from phasewise.validations.expectations.judging import judge_tables, reasons_for
from phasewise.validations.expectations.suites import SUITES, Check, Details, Suite, expect_rows
from phasewise.validations.expectations.waiver_rules import accept
from phasewise.validations.limits import AcceptedWarning
from phasewise.validations.verdict import Verdict, count_checks, outcome_of, write_tables

TABLES = ("caches", "leakage", "leaked_items")
STALE = "the cache of component math is stale: GSM8K/test.json is no source of it any more"
LEAK = "1,319 of 1,319 items of gsm8k are in component math"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>&\"'`|*_\nsecond line"

_WARNS = Check(
    table="caches", expectation="ExpectColumnValuesToBeInSet", arguments={"column": "files_like_tests", "value_set": [0]},
    severity="warning", asks="No file is named like a test split.", accept_by=("component",),
    what="{files_like_tests} files of component {component} are named like a test split",
    found="{files_like_tests} files", limit="0 files", where="{folder}", what_to_do="Exclude them in the source.",
)  # fmt: skip
_IS_FRESH = Check(
    table="caches", expectation="ExpectColumnValuesToBeInSet", arguments={"column": "stale_files", "value_set": [0]},
    severity="critical", asks="The sources are still what the cache was made of.",
    what="the cache of component {component} is stale: {differences}", found="{stale_files} {stale_files:file differs|files differ}",
    limit="0 files differ", where="{folder}", what_to_do="Run `phasewise data prepare` again.",
)  # fmt: skip
_HAS_NO_LEAK = Check(
    table="leakage", expectation="ExpectLeakedItemsWithinLimit", arguments={"column": "items_hit", "limit": 0}, severity="critical",
    asks="No test item is in the training data.", what="{items_hit:,} of 1,319 items of {benchmark} are in component {component}",
    found="item {item}: {excerpt}", limit="at most 0 items", where="{files}", what_to_do="Remove it from the source.",
    details=Details(
        table="leaked_items", keys=("component", "benchmark"), order_by="score", at_most=5, where="{files}",
        what="item {item} of {benchmark} is in component {component}",
    ),
)  # fmt: skip


def _checks(thresholds: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> tuple[Check, ...]:
    if set(thresholds) != {"max_items"}:
        raise ValueError("thresholds of another time")
    return expect_rows("caches", "Name the caches."), _WARNS, _IS_FRESH, expect_rows("leakage", "Scan the caches."), _HAS_NO_LEAK


SAMPLE_SUITE = Suite("sample", 1, TABLES, _checks)


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, SAMPLE_SUITE.name, SAMPLE_SUITE)


def evidence(
    *, leaked: int = 0, stale: int = 0, like_tests: int = 0, components: int = 1, excerpt: str = "A made-up item"
) -> dict[str, Any]:
    names = ["math", *(f"web-{number}" for number in range(1, components))]
    caches = {
        "component": names, "folder": [f"tokens/{name}/{'long-' * 30}folder" for name in names], "stale_files": stale,
        "files_like_tests": like_tests, "differences": "GSM8K/test.json is no source of it any more" if stale else "",
    }  # fmt: skip
    scores = {"item": [f"test-{number:04}" for number in range(leaked)], "score": [1 - number / 10_000 for number in range(leaked)]}
    items = {"component": "math", "benchmark": "gsm8k", **scores, "files": "gsm8k/test.json", "excerpt": excerpt}
    leakage = {"component": ["math"] * 2, "benchmark": ["mmlu", "gsm8k"], "items_hit": [0, leaked]}
    return {"caches": pd.DataFrame(caches), "leakage": pd.DataFrame(leakage), "leaked_items": pd.DataFrame(items)}


def known_test_file(component: str = "math", **fields: Any) -> AcceptedWarning:
    said = {"reason": "The record reads them", "source": "its code", "phases": None, "where": {"component": component}}
    return AcceptedWarning.model_validate({"table": "caches", "check": "expect_column_values_to_be_in_set", **said, **fields})


def judged(subject: str, tables: dict[str, Any], folder: Path, *accepts: AcceptedWarning) -> Verdict:
    digests = write_tables(folder, tables)
    results = [accept(result, tables, accepts) for result in judge_tables(tables, _checks({"max_items": 0}, tables))]
    reasons = [reason for result in results for reason in reasons_for(result, tables)]
    outcomes = tuple(outcome_of(result, tables) for result in results)
    return Verdict(
        subject=subject, suite=SAMPLE_SUITE.name, suite_version="1-sample", passes=count_checks(outcomes).passes,
        judged={"math": "ab" * 32}, thresholds={"max_items": 0}, accepts=accepts, checks=outcomes, evidence=str(folder), tables=digests,
        reasons=tuple(sorted(reasons, key=lambda reason: reason.severity != "critical")),
    )  # fmt: skip
