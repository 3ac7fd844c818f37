"""Which checks a person may let pass at all."""

from collections.abc import Sequence

from phasewise.validations.approvable import ApprovableCheck, AsksPeople
from phasewise.validations.expectations.check import Check
from phasewise.validations.expectations.data_suite import DATA_SUITE
from phasewise.validations.expectations.suites import SUITES

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
