"""What each check of a verdict measured, as a person reads it: the value, the limit, the parent's value, and the rows that fail."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from phasewise.validations.evidence.tables import read_tables
from phasewise.validations.expectations.check import Check
from phasewise.validations.expectations.judging import CheckResult, judge_tables
from phasewise.validations.expectations.reasons import reasons_for
from phasewise.validations.expectations.suites import SUITES
from phasewise.validations.outcomes import CheckOutcome
from phasewise.validations.report.evidence import as_text
from phasewise.validations.verdict import Verdict

MAX_ROWS, MAX_COLUMNS = 10, 6
NONE_FAIL = re.compile(r"0 of (\d+) rows fail")
PARENT = "parent"
"""The column with the parent's value, in tables that have one."""


@dataclass(frozen=True)
class Measure:
    """One check: what it measured, in its worst row; empty where it measures no number.

    Attributes:
        rows: its failing rows, the first few.
        failing: how many fail.
    """

    check: CheckOutcome
    value: str
    limit: str
    parent: str
    rows: pd.DataFrame
    failing: int


def measures_of(verdict: Verdict) -> list[Measure]:
    """What each check measured, in the order of the verdict; without numbers where its evidence is gone or cannot be judged again."""
    suite = SUITES.get(verdict.suite)
    tables: dict[str, pd.DataFrame] = {}
    for name in suite.tables if suite else ():
        with suppress(OSError, ValueError, KeyError):
            tables |= read_tables(verdict.evidence, {name: verdict.tables[name]})
    found: dict[tuple[str, str, str], CheckResult] = {}
    if suite and len(tables) == len(suite.tables):
        with suppress(Exception):  # whatever an older verdict lacks
            results = judge_tables(tables, suite.checks(verdict.thresholds, tables))
            found = {(one.check.table, one.name, one.check.asks): one for one in results}
    return [_measure(check, found.get((check.table, check.name, check.asks)), tables) for check in verdict.checks]


def _measure(check: CheckOutcome, result: CheckResult | None, tables: Mapping[str, pd.DataFrame]) -> Measure:
    if result is None:
        return Measure(check, _said(check.observed), "", "", pd.DataFrame(), 0)
    table = tables[check.table].reset_index(drop=True)
    failing = table.iloc[list(result.failing_rows)]
    row = _worst_row(result.check, failing if len(failing) else table)
    value, limit = _against(result.check, row)
    if reasons := reasons_for(result, tables):
        value, limit = reasons[0].found, reasons[0].limit
    parent = as_text(row[PARENT]) if row is not None and PARENT in row and pd.api.types.is_number(row[PARENT]) else ""
    return Measure(check, value or _said(check.observed), limit, parent, _shown(result.check, failing), len(failing))


def _said(observed: str) -> str:
    """What a check of rows observed, so that nobody reads a failure into `0 of 3 rows fail`."""
    match = NONE_FAIL.fullmatch(observed)
    return f"holds in {match[1]} of {match[1]} rows" if match else observed


def _worst_row(check: Check, rows: pd.DataFrame) -> pd.Series | None:
    """The row nearest to the limit, or farthest beyond it."""
    column = check.arguments.get("column")
    if column not in rows or not len(rows):
        return None
    numbers = pd.to_numeric(rows[column], errors="coerce")
    if numbers.isna().all():
        return rows.iloc[0]
    in_order = numbers.to_numpy()
    return rows.iloc[int(np.nanargmin(in_order) if "floor" in check.arguments else np.nanargmax(in_order))]


def _against(check: Check, row: pd.Series | None) -> tuple[str, str]:
    """The value of the worst row, and the limit in words; empty where the check has none."""
    if row is None:
        return "", ""
    value = as_text(row[check.arguments["column"]])
    for name, word in (("limit", "at most"), ("floor", "above")):
        if name in check.arguments:
            bound: Any = check.arguments[name]
            return value, "no limit" if bound is None else f"{word} {as_text(bound)}"
    return "", ""


def _shown(check: Check, failing: pd.DataFrame) -> pd.DataFrame:
    """The first failing rows: what was measured first, then what the check names, then the other columns."""
    column = check.arguments.get("column")
    first = [str(name) for name in (column,) if name in failing]
    words = " ".join((check.what, check.found, check.where))
    named = [str(name) for name in failing.columns if f"{{{name}" in words and name not in first]
    others = [str(name) for name in failing.columns if name not in (*first, *named)]
    columns = list(dict.fromkeys([*named, *first, *others]))[:MAX_COLUMNS]
    return failing[columns].head(MAX_ROWS)
