"""One expectation over one evidence table, as data, and how its failure is told to a person."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["critical", "warning"]


@dataclass(frozen=True)
class Details:
    """Where a failing row's particulars stand: the rows of `table` that agree with it in `keys`, the highest `order_by` first."""

    table: str
    keys: tuple[str, ...]
    order_by: str


@dataclass(frozen=True)
class Check:
    """What is expected of a table.

    Attributes:
        expectation: class name, in `domain` or in Great Expectations.
        arguments: what that class is made with.
        asks: one sentence, for Data Docs.
        what, found, limit, where, what_to_do: how a failure is told; format strings over the failing row (or its details' rows).
            A failure of the table as a whole has no row: there only `{observed}` can be named.
    """

    table: str
    expectation: str
    arguments: Mapping[str, Any]
    severity: Severity
    asks: str
    what: str
    found: str
    limit: str
    where: str
    what_to_do: str
    details: Details | None = None


def expect_rows(table: str, what_to_do: str) -> Check:
    """The table says something at all: without rows, most expectations pass."""
    return Check(
        table=table,
        expectation="ExpectTableRowCountToBeBetween",
        arguments={"min_value": 1},
        severity="critical",
        asks="There is something to judge.",
        what=f"the evidence table {table} is empty, so nothing was judged",
        found="{observed} rows",
        limit="at least 1 row",
        where=f"table {table}",
        what_to_do=what_to_do,
    )
