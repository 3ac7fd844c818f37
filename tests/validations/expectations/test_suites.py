import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from phasewise.trainer.base import identity
from phasewise.trainer.metrics import PARAM_GROUPS
from phasewise.validations.evidence.gate import gate_tables
from phasewise.validations.evidence.health.evidence import health_evidence
from phasewise.validations.expectations.judging import CheckResult, judge_tables, reasons_for
from phasewise.validations.expectations.suites import SUITES, version_of
from phasewise.validations.verdict import DataEvidence
from tests.validations.conftest import DATA_LIMITS
from tests.validations.evidence.health.simulated import LIMITS as HEALTH_LIMITS
from tests.validations.evidence.health.simulated import Scenario, healthy_rows
from tests.validations.evidence.test_answers import answers
from tests.validations.evidence.test_exposure import read
from tests.validations.test_gate import BETTER, LIMITS, PARENT

Tables = dict[str, pd.DataFrame]
TablesOf = Callable[[str], Tables]
EVERY_TABLE = [pytest.param(name, table, id=f"{name}-{table}") for name, suite in SUITES.items() for table in suite.tables]
EMPTY_IS_GOOD = {"leaked_items", "likelihoods"}
"""Lists of what was found: empty where nothing was. No likelihood is compared where no item has choices."""
GATE_LIMITS = LIMITS.but(
    false_refusal_rate=0.05, max_score_fall=0.01, max_score_rise=0.25, needle_error_rate=0.01, exposure_error_rate=0.01,
    min_answer_gain_nats=0.1, answer_error_rate=0.01,
)  # fmt: skip


@cache
def tables_of_the_gate() -> Tables:
    """Made once: what is shown more than once is permuted thousands of times."""
    needles = [*BETTER["results"], BETTER["results"][0] | {"benchmark": "niah:300"}]
    evaluation = BETTER | {"results": needles, "renderings": read(seed=2), "answers": answers(0.4)}
    return gate_tables(evaluation, PARENT | {"renderings": read(seed=1)}, GATE_LIMITS)


@pytest.fixture
def tables_of(data_evidence: Callable[..., DataEvidence]) -> TablesOf:
    def build(suite: str) -> Tables:
        if suite == "gate":
            return dict(tables_of_the_gate())
        if suite == "health":
            return {"health": health_evidence(healthy_rows(Scenario()), HEALTH_LIMITS, groups=PARAM_GROUPS)}
        evidence = data_evidence()
        return {name: getattr(evidence, name) for name in SUITES[suite].tables}

    return build


ALL_LIMITS = {"data": DATA_LIMITS, "health": HEALTH_LIMITS, "gate": GATE_LIMITS}
THRESHOLDS = {name: limits.model_dump(mode="json") for name, limits in ALL_LIMITS.items()}


def judged(suite: str, tables: Tables, thresholds: dict[str, Any], table: str | None = None) -> list[CheckResult]:
    """What does not pass, of the checks that read this table, or of all."""
    checks = SUITES[suite].checks(thresholds, tables)
    read = [check for check in checks if table in {None, check.table, check.details.table if check.details else check.table}]
    return [result for result in judge_tables(tables, read) if result.outcome != "passed"]


def without(tables: Tables, column: str) -> Tables:
    return {name: table.drop(columns=column) if column in table.columns else table for name, table in tables.items()}


@pytest.mark.parametrize("suite", SUITES)
def test_tables_in_order_pass(tables_of: TablesOf, suite: str):
    assert judged(suite, tables_of(suite), THRESHOLDS[suite]) == []


@pytest.mark.parametrize(("suite", "table"), EVERY_TABLE)
def test_an_empty_table_never_passes_and_is_reported_as_empty(tables_of: TablesOf, suite: str, table: str):
    tables = tables_of(suite)
    if table in EMPTY_IS_GOOD:
        pytest.skip("empty is good news here; that it agrees with the counts is tested in test_verdict.py")
    tables[table] = tables[table].head(0)
    failing = judged(suite, tables, THRESHOLDS[suite], table)
    assert all(result.outcome == "failed" for result in failing)
    [reason] = [reason for result in failing for reason in reasons_for(result, tables) if reason.where == f"table {table}"]
    assert (reason.what, reason.severity) == (f"the evidence table {table} is empty, so nothing was judged", "critical")


@pytest.mark.parametrize(("suite", "table"), EVERY_TABLE)
def test_no_check_goes_away_with_its_column(tables_of: TablesOf, suite: str, table: str):
    tables = tables_of(suite)
    asked = len(SUITES[suite].checks(THRESHOLDS[suite], tables))
    needed = list[str]()
    for column in map(str, tables[table].columns):
        fewer = without(tables, column)
        checks = SUITES[suite].checks(THRESHOLDS[suite], fewer)
        needed += [column] if any(check.missing_columns(fewer) for check in checks) else []
        assert len(checks) >= asked or column in needed, f"without {column} {asked - len(checks)} checks are not made, and nothing says so"
    assert needed


@pytest.mark.parametrize(("suite", "table"), EVERY_TABLE)
def test_a_column_that_is_missing_breaks_checks_and_fails_none(tables_of: TablesOf, suite: str, table: str):
    tables = tables_of(suite)
    checks = SUITES[suite].checks(THRESHOLDS[suite], tables)
    without_one = ((column, without(tables, column)) for column in reversed([*map(str, tables[table].columns)]))
    needed, fewer = next((column, left) for column, left in without_one if any(check.missing_columns(left) for check in checks))
    failing = judged(suite, fewer, THRESHOLDS[suite], table)
    assert {result.outcome for result in failing} == {"broken"}
    assert all(f".{needed}" in result.observed for result in failing)
    (first, *_) = reasons_for(failing[0], fewer)
    assert first.severity == "critical"
    assert "could not be made (there is no column" in first.what


def test_without_counts_of_hits_the_list_of_leaked_items_is_not_at_fault(tables_of: TablesOf):
    failing = judged("data", without(tables_of("data"), "items_hit"), THRESHOLDS["data"], "leaked_items")
    assert {result.outcome for result in failing} == {"broken"}


@pytest.mark.parametrize(("percent", "limit", "warns"), [(90.0, 90.0, False), (90.1, 90.0, True), (30.0, 20.0, True), (99.0, None, False)])
def test_more_than_the_limit_that_is_left_out_warns(tables_of: TablesOf, percent: float, limit: float | None, warns: bool):
    tables = tables_of("data")
    tables["caches"] = tables["caches"].assign(left_out_percent=percent, left_out="9 for copy, 8 for filter words")
    failing = judged("data", tables, DATA_LIMITS.but(max_left_out_percent=limit).model_dump(mode="json"))
    reasons = [reason for result in failing for reason in reasons_for(result, tables)]
    said = {(reason.severity, "left out: 9 for copy, 8 for filter words" in reason.what) for reason in reasons}
    assert said == ({("warning", True)} if warns else set())


def test_a_suites_version_is_its_number_and_a_digest_of_the_code():
    suite = SUITES["data"]
    number, _, digest = version_of(suite).partition("-")
    assert (number, len(digest)) == (str(suite.number), identity.DIGITS)
    assert version_of(replace(suite, number=suite.number + 1)) == f"{suite.number + 1}-{digest}"


@pytest.mark.parametrize(("suite", "module"), [
    ("data", "leakage/segments.py"), ("health", "health/metrics.py"), ("gate", "floor.py"), ("gate", "proportions.py"),
])  # fmt: skip
def test_what_makes_the_evidence_is_in_the_version_of_its_suite_alone(
    suite: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(identity.HOUSE / "validations", tmp_path / "validations")
    monkeypatch.setattr(identity, "HOUSE", tmp_path)
    before = {name: version_of(one) for name, one in SUITES.items()}
    code = tmp_path / "validations" / "evidence" / module
    text = code.read_text()
    for changed, differing in ((f"# A remark.\n{text}", set()), (f"{text}\nALLOWED = 7\n", {suite})):
        code.write_text(changed)
        identity.digest_of_source.cache_clear()
        assert {name for name, one in SUITES.items() if version_of(one) != before[name]} == differing
