"""Telling a person why a check failed."""

import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from phasewise.trainer.base.frozen import Frozen
from phasewise.validations.expectations.check import OBSERVED, Check, Severity
from phasewise.validations.expectations.judging import CheckResult

MAX_REASONS_PER_CHECK = 5


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
        try:
            return str(super().format_field(value, format_spec))
        except (TypeError, ValueError):  # a cell of another type than the words are made for is shown as it is
            return str(value)


def reasons_for(result: CheckResult, tables: Mapping[str, pd.DataFrame]) -> list[Reason]:
    """The reasons of one check: none if it passed or is accepted, else each once, the worst five, and how many more there are."""
    if result.outcome in ("passed", "accepted"):
        return []
    if result.outcome == "broken":
        return [_broken(result)]
    reasons = list(dict.fromkeys(_reasons(result, tables)))
    more = len(reasons) - MAX_REASONS_PER_CHECK
    return reasons if more <= 0 else [*reasons[:MAX_REASONS_PER_CHECK], _and_more(result, len(reasons))]


def _reasons(result: CheckResult, tables: Mapping[str, pd.DataFrame]) -> Iterator[Reason]:
    check = result.check
    table = tables[check.table]
    if not result.failing_rows:
        is_about_emptiness = check.expectation == "ExpectTableRowCountToBeBetween"
        if is_about_emptiness or len(table):
            yield _reason(result, {OBSERVED: result.observed})
        return
    for row in _worst_first(check, table.iloc[list(result.failing_rows)]).to_dict("records"):
        yield from _reasons_of_row(result, {str(name): value for name, value in row.items()}, tables)


def _worst_first(check: Check, failing: pd.DataFrame) -> pd.DataFrame:
    """In the order of what was measured against a limit or a floor; rows that were not measured so stay in the table's order."""
    if "limit" in check.arguments or "floor" in check.arguments:
        return failing.sort_values(check.arguments["column"], ascending="floor" in check.arguments, kind="stable", na_position="first")
    return failing


def _reasons_of_row(result: CheckResult, row: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> Iterator[Reason]:
    """One of the row as a whole, or one of each of its particulars, where these are few."""
    details = result.check.details
    if details is None:
        yield _reason(result, row)
        return
    table = tables[details.table]
    of_row = np.logical_and.reduce([table[key] == row[key] for key in details.keys])
    particulars = table[of_row].sort_values(details.order_by, ascending=False, kind="stable").head(details.at_most + 1).to_dict("records")
    if 0 < len(particulars) <= details.at_most:
        for particular in particulars:
            yield _reason(result, {**row, **particular}, what=details.what, where=details.where)
    else:
        yield _reason(result, {**(particulars or [{}])[0], **row})


def _reason(result: CheckResult, cells: Mapping[str, Any], *, what: str | None = None, where: str | None = None) -> Reason:
    check = result.check
    tell = _Telling()
    return Reason(
        expectation=result.name,
        severity=check.severity,
        what=tell.vformat(what or check.what, (), cells),
        found=tell.vformat(check.found, (), cells),
        limit=tell.vformat(check.limit, (), cells),
        where=tell.vformat(where or check.where, (), cells),
        what_to_do=tell.vformat(check.what_to_do, (), cells),
    )


def _and_more(result: CheckResult, total: int) -> Reason:
    more = total - MAX_REASONS_PER_CHECK
    table = result.check.table
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
