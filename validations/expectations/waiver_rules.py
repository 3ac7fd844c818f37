"""Which findings of a check a recipe accepts, and what a recipe may accept at all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from phasewise.validations.expectations.judging import AcceptedRows, CheckResult
from phasewise.validations.expectations.suites import DATA_SUITE, SUITES, Check
from phasewise.validations.waivers import AcceptedWarning, ApprovableCheck, AsksPeople

DATA_TABLES = ("mixture", "order", "shifts")
"""The tables about data whose checks can be let pass. The others say what the bytes are, whether test items are in them, and whether the
hand-off is declared: there is nothing for a person to weigh."""
WITHOUT_JUDGEMENT = (
    "expect_table_row_count_to_be_between",
    "expect_column_distinct_values_to_contain_set",
    "expect_something_to_read",
)
"""Checks that there is something to judge."""


def asked_of_suite(asks: AsksPeople, suite: str) -> AsksPeople:
    """What is about the tables of a suite; in which other phases, too, is no matter of a verdict."""
    listed = [ApprovableCheck(table=one.table, check=one.check) for one in asks.approvable if one.table in SUITES[suite].tables]
    return AsksPeople(approvable=tuple(listed), on_warnings=asks.on_warnings)


def check_approvable(one: ApprovableCheck, checks: Sequence[Check]) -> None:
    """Refuse what no person may let pass, and what no phase is judged by.

    Args:
        checks: all that the recipe's phases are judged by.

    Raises:
        ValueError: with what can be listed instead.
    """
    stopping = {(check.table, check.name) for check in checks if check.severity == "critical"}
    can_be = sorted(f"{name} ({table})" for table, name in stopping if why_never(table, name) is None)
    if (one.table, one.check) not in stopping:
        raise ValueError(
            f"approvable names the check {one.check} of table {one.table}, which stops no phase of this recipe; those that a person may "
            f"let pass are {', '.join(can_be)}. (Warnings are put to people by warnings_ask_people)"
        )
    if why := why_never(one.table, one.check):
        raise ValueError(
            f"approvable names the check {one.check} of table {one.table}, and nobody may let it pass: {why}. Those that a person may let "
            f"pass are {', '.join(can_be)}"
        )


def why_never(table: str, check: str) -> str | None:
    """Why no person may let the check pass; None where one may."""
    if table not in SUITES[DATA_SUITE].tables:
        return None
    if table not in DATA_TABLES:
        return "it says whether the data is what it is taken for, free of test items, and handed on as declared"
    return "without it nothing was judged" if check in WITHOUT_JUDGEMENT else None


def accept(result: CheckResult, tables: Mapping[str, pd.DataFrame], accepts: Sequence[AcceptedWarning]) -> CheckResult:
    """The result with the rows that the recipe accepts taken from those that fail.

    Only a warning with failing rows can be accepted: what stops stays, so does what could not be made or is about a whole table.
    """
    check = result.check
    mine = [one for one in accepts if may_accept(one, check)]
    if result.outcome != "failed" or not result.failing_rows or not mine:
        return result
    table = tables[check.table].reset_index(drop=True)
    if check.speaks_for is None:
        rows = result.failing_rows
    else:
        others = (row for row, passes in enumerate(table[check.speaks_for.passes].tolist()) if not passes)
        rows = tuple(sorted({*result.failing_rows, *others}))
    cells = {row: _cells(table, row) for row in rows}
    covering = {row: next((one for one in mine if one.covers(cells[row])), None) for row in rows}
    left = tuple(row for row in rows if covering[row] is None)
    accepted = [AcceptedRows(one, tuple(row for row in rows if covering[row] is one)) for one in mine]
    return replace(
        result,
        outcome="failed" if left else "accepted",
        failing_rows=told_rows(check, table, left),
        accepted=tuple(one for one in accepted if one.rows),
    )


def may_accept(accepted: AcceptedWarning, check: Check) -> bool:
    """Whether the check is the one that is meant, warns only, and has findings that the columns named tell apart."""
    is_meant = (accepted.table, accepted.check) == (check.table, check.name)
    return is_meant and check.severity == "warning" and not why_not(accepted, check)


def why_not(accepted: AcceptedWarning, check: Check) -> str | None:
    """Why the columns named are not enough or too many to accept a finding of this check; None where they are right."""
    if not check.accept_by:
        return f"the check {check.name} of table {check.table} tells no finding from another, so none can be accepted"
    named = set(accepted.where)
    if named >= set(check.accept_by) and named <= {*check.accept_by, *check.narrow_by}:
        return None
    more = f", and may name {' and '.join(check.narrow_by)}" if check.narrow_by else ""
    return f"`where` of {accepted.check} has to name {' and '.join(check.accept_by)}{more}; found {', '.join(accepted.where)}"


def check_acceptable(accepted: AcceptedWarning, checks: Sequence[Check]) -> None:
    """Refuse what no check, or none that only warns, could find.

    Args:
        checks: all that the recipe's phases are judged by.

    Raises:
        ValueError: with what can be accepted instead.
    """
    meant = [check for check in checks if (check.table, check.name) == (accepted.table, accepted.check)]
    warning = [check for check in meant if check.severity == "warning"]
    if not meant:
        known = sorted({f"{check.name} ({check.table})" for check in checks if check.severity == "warning" and check.accept_by})
        raise ValueError(
            f"accepts names the check {accepted.check} of table {accepted.table}, which no phase is judged by; those whose warnings can be "
            f"accepted are {', '.join(known)}"
        )
    if not warning:
        raise ValueError(f"accepts names {accepted.check} of table {accepted.table}, which stops a phase: only a warning can be accepted")
    if all(why_not(accepted, check) for check in warning):
        raise ValueError(f"accepts: {why_not(accepted, warning[0])}")


def _cells(table: pd.DataFrame, row: int) -> dict[str, Any]:
    """The cells of a row that hold something."""
    cells = {str(column): table[column].iloc[row] for column in table.columns}
    return {column: value for column, value in cells.items() if value is not pd.NA}


def told_rows(check: Check, table: pd.DataFrame, rows: tuple[int, ...]) -> tuple[int, ...]:
    """The rows that are named of these: all, or the one that speaks for the others."""
    if check.speaks_for is None or not rows:
        return rows
    order_by = check.speaks_for.order_by
    return (min(rows, key=lambda row: table[order_by].iloc[row]),)
