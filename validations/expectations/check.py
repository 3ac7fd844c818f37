"""One expectation over one evidence table, as data, and how its failure is said to a person."""

import re
import string
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

Severity = Literal["critical", "warning"]
OBSERVED = "observed"


@dataclass(frozen=True)
class Details:
    """Where a failing row's particulars are: the rows of `table` that agree with it in `keys`, the highest `order_by` first.

    A failing row of at most `at_most` particulars is named by each of them, in the `what` and `where` given here. A row of more is named
    once, in the check's own words, which may name cells of the first particular too.
    """

    table: str
    keys: tuple[str, ...]
    order_by: str
    at_most: int
    what: str
    where: str


@dataclass(frozen=True)
class SpeaksFor:
    """The failing row speaks for every row whose cell `passes` is false; of those that nobody accepts, the lowest `order_by` is named."""

    passes: str
    order_by: str


@dataclass(frozen=True)
class Check:
    """What is expected of a table.

    Attributes:
        expectation: class name, in `domain` or in Great Expectations.
        arguments: what that class is made with.
        asks: one sentence, for Data Docs.
        what, found, limit, where, what_to_do: how a failure is said; format strings over the failing row (or its details' rows).
            A failure of the table as a whole has no row: there only `{observed}` can be named.
        accept_by: the columns that a recipe has to name to accept a warning of this check; without any, nobody can accept one.
        narrow_by: more columns that it may name.
        speaks_for: which rows a failing row speaks for, where it is one for several.
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
    accept_by: tuple[str, ...] = ()
    narrow_by: tuple[str, ...] = ()
    speaks_for: SpeaksFor | None = None

    @property
    def name(self) -> str:
        """The expectation's name in snake case, as Great Expectations and verdicts have it."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.expectation).lower()

    def missing_columns(self, tables: Mapping[str, pd.DataFrame]) -> list[str]:
        """`table.column` of what the check measures or tells and what is not there; without it the check cannot be made."""
        here = tables[self.table].columns
        details = self.details
        measured = [str(self.arguments[name]) for name in ("column", "column_A", "column_B") if name in self.arguments]
        measured += [*self.accept_by, *self.narrow_by]
        measured += [self.speaks_for.passes, self.speaks_for.order_by] if self.speaks_for else []
        told = _named_in(self.what, self.found, self.limit, self.where, self.what_to_do)
        if details is None:
            return _absent(self.table, [*measured, *told], here)
        there = tables[details.table].columns
        own = [*details.keys, details.order_by, *(name for name in _named_in(details.what, details.where) if name not in here)]
        return [
            *_absent(self.table, [*measured, *details.keys, *(name for name in told if name not in there)], here),
            *_absent(details.table, own, there),
        ]


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


def _named_in(*words: str) -> list[str]:
    """The cells that format strings name."""
    named = [name for text in words for _, name, _, _ in string.Formatter().parse(text) if name]
    return [name for name in named if name != OBSERVED]


def _absent(table: str, names: Iterable[str], columns: Collection[str]) -> list[str]:
    return [f"{table}.{name}" for name in dict.fromkeys(names) if name not in columns]
