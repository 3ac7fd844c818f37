"""Telling a person why a check failed."""

import string
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from trainer.config import Frozen
from validations.expectations.check import Check, Severity
from validations.expectations.judging import CheckResult

MAX_REASONS_PER_CHECK = 20


class Reason(Frozen):
    """Why a verdict fails or warns: what is wrong, what was found against which limit, where, and what to do."""

    expectation: str
    severity: Severity
    what: str
    found: str
    limit: str
    where: str
    what_to_do: str

    @property
    def sentence(self) -> str:
        """What is wrong and what to do, for the terminal."""
        return f"{self.what}. {self.what_to_do}"


class _Telling(string.Formatter):
    """Fills in a row's cells. `{files:file|files}` is the word for that many; a cell that isn't there is a question mark."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "?"
        if "|" in format_spec:
            one, several = format_spec.split("|")
            return one if value == 1 else several
        return str(super().format_field(value, format_spec))


def reasons_for(result: CheckResult, tables: Mapping[str, pd.DataFrame]) -> list[Reason]:
    """The reasons of one check: none if it passed, else the worst twenty and how many more there are."""
    if result.outcome == "passed":
        return []
    if result.outcome == "broken":
        return [_broken(result)]
    rows = _rows_to_tell(result, tables)
    reasons = [_reason(result, row) for row in rows[:MAX_REASONS_PER_CHECK]]
    if len(rows) > MAX_REASONS_PER_CHECK:
        reasons.append(_and_more(result, len(rows)))
    return reasons


def _rows_to_tell(result: CheckResult, tables: Mapping[str, pd.DataFrame]) -> list[dict[str, Any]]:
    check = result.check
    table = tables[check.table]
    if not result.failing_rows:
        is_about_emptiness = check.expectation == "ExpectTableRowCountToBeBetween"
        return [{"observed": result.observed}] if is_about_emptiness or len(table) else []
    failing = table.iloc[list(result.failing_rows)]
    details = _details(check, failing, tables)
    return [dict(row) for _, row in (failing if details.empty else details).iterrows()]


def _details(check: Check, failing: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    if check.details is None:
        return pd.DataFrame()
    keys = list(check.details.keys)
    merged = tables[check.details.table].merge(failing[keys], on=keys)
    return merged.sort_values(check.details.order_by, ascending=False, kind="stable")


def _reason(result: CheckResult, row: Mapping[str, Any]) -> Reason:
    check, tell = result.check, _Telling()
    return Reason(
        expectation=result.name,
        severity=check.severity,
        what=tell.vformat(check.what, (), row),
        found=tell.vformat(check.found, (), row),
        limit=tell.vformat(check.limit, (), row),
        where=tell.vformat(check.where, (), row),
        what_to_do=tell.vformat(check.what_to_do, (), row),
    )


def _and_more(result: CheckResult, total: int) -> Reason:
    more = total - MAX_REASONS_PER_CHECK
    table = result.check.details.table if result.check.details else result.check.table
    return Reason(
        expectation=result.name,
        severity=result.check.severity,
        what=f"{more} more like these were found, {total} in total",
        found=str(total),
        limit=str(MAX_REASONS_PER_CHECK),
        where=f"table {table}",
        what_to_do=f"See all of them in {table}.parquet, in the verdict's evidence folder.",
    )


def _broken(result: CheckResult) -> Reason:
    return Reason(
        expectation=result.name,
        severity="critical",
        what=f"the check {result.name} of table {result.check.table} could not be made ({result.observed}), so nothing was judged by it",
        found=result.observed,
        limit="a check that can be made",
        where=f"table {result.check.table}",
        what_to_do="This is a defect of the check or of its table, not of the data: repair it and judge again.",
    )
