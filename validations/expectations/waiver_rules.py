"""Rules for the exceptions of a recipe: the findings that accepted warnings cover, and the checks that a recipe may name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from phasewise.validations.expectations.judging import AcceptedRows, CheckResult
from phasewise.validations.expectations.suites import DATA_SUITE, SUITES, Check
from phasewise.validations.limits import AcceptedWarning, ApprovableCheck, AsksPeople

if TYPE_CHECKING:
    import pandas as pd

DATA_TABLES = ("mixture", "order", "shifts")
"""Data tables whose checks a person may let pass. The other tables verify bytes, test items and the hand-off: no judgement is needed."""
WITHOUT_JUDGEMENT = ("expect_table_row_count_to_be_between", "expect_column_distinct_values_to_contain_set", "expect_something_to_read")
"""Checks that the tables have content."""


def asked_of_suite(asks: AsksPeople, suite: str) -> AsksPeople:
    """Select the decisions on the tables of a suite, without their phases: other phases do not change a verdict."""
    listed = [ApprovableCheck(table=one.table, check=one.check) for one in asks.approvable if one.table in SUITES[suite].tables]
    return AsksPeople(approvable=tuple(listed), on_warnings=asks.on_warnings)


def check_approvable(one: ApprovableCheck, checks: Sequence[Check]) -> None:
    """Reject a check that no person may let pass, or that no phase runs. `checks`: all checks of the recipe."""
    stopping = {(check.table, check.name) for check in checks if check.severity == "critical"}
    can_be = ", ".join(sorted(f"{name} ({table})" for table, name in stopping if _why_never(table, name) is None))
    if (one.table, one.check) not in stopping:
        raise ValueError(
            f"approvable names the check {one.check} of table {one.table}, which stops no phase of this recipe; those that a person may "
            f"let pass are {can_be}. (Warnings are put to people by warnings_ask_people)"
        )
    if why := _why_never(one.table, one.check):
        raise ValueError(
            f"approvable names the check {one.check} of table {one.table}, and nobody may let it pass: {why}. Those that a person may let "
            f"pass are {can_be}"
        )


def _why_never(table: str, check: str) -> str | None:
    """Return the reason why no person may let the check pass, else None."""
    if table not in SUITES[DATA_SUITE].tables:
        return None
    if table not in DATA_TABLES:
        return "it says whether the data is what it is taken for, free of test items, and handed on as declared"
    return "without it nothing was judged" if check in WITHOUT_JUDGEMENT else None


def accept(result: CheckResult, tables: Mapping[str, "pd.DataFrame"], accepts: Sequence[AcceptedWarning]) -> CheckResult:
    """Move rows of a warning from failing to accepted if the recipe accepts the rows."""
    check = result.check
    mine = [
        warning
        for warning in accepts
        if check.severity == "warning" and (warning.table, warning.check) == (check.table, check.name) and not _why_not(warning, check)
    ]
    if result.outcome != "failed" or not result.failing_rows or not mine:
        return result
    table, rows = tables[check.table].reset_index(drop=True), result.failing_rows
    if check.speaks_for is not None:
        others = (row for row, passes in enumerate(table[check.speaks_for.passes].tolist()) if not passes)
        rows = tuple(sorted({*rows, *others}))
    import pandas as pd  # slow to import

    covering: dict[int, AcceptedWarning | None] = {}
    for row in rows:
        cells = {str(column): table[column].iloc[row] for column in table.columns}
        cells = {column: value for column, value in cells.items() if value is not pd.NA}
        covering[row] = next((warning for warning in mine if warning.covers(cells)), None)
    left = tuple(row for row in rows if covering[row] is None)
    accepted = [AcceptedRows(warning, tuple(row for row in rows if covering[row] is warning)) for warning in mine]
    return replace(
        result,
        outcome="failed" if left else "accepted",
        failing_rows=told_rows(check, table, left),
        accepted=tuple(covered for covered in accepted if covered.rows),
    )


def told_rows(check: Check, table: "pd.DataFrame", rows: tuple[int, ...]) -> tuple[int, ...]:
    """Return the rows to name: all of them, or the row that stands for the others."""
    if check.speaks_for is None or not rows:
        return rows
    order_by = check.speaks_for.order_by
    return (min(rows, key=lambda row: table[order_by].iloc[row]),)


def check_acceptable(accepted: AcceptedWarning, checks: Sequence[Check]) -> None:
    """Reject a warning that no check, or only a critical check of the recipe, could find."""
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
    if all(_why_not(accepted, check) for check in warning):
        raise ValueError(f"accepts: {_why_not(accepted, warning[0])}")


def _why_not(accepted: AcceptedWarning, check: Check) -> str | None:
    """Return the reason why the named columns do not identify a finding of this check, else None."""
    if not check.accept_by:
        return f"the check {check.name} of table {check.table} tells no finding from another, so none can be accepted"
    named = set(accepted.where)
    if named >= set(check.accept_by) and named <= {*check.accept_by, *check.narrow_by}:
        return None
    more = f", and may name {' and '.join(check.narrow_by)}" if check.narrow_by else ""
    return f"`where` of {accepted.check} has to name {' and '.join(check.accept_by)}{more}; found {', '.join(accepted.where)}"
