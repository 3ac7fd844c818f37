"""Re-evaluation of a verdict's evidence by Great Expectations for its report, and its tables with failing rows first.

The library's result is kept as a tree of blocks: the library's own pages load styles and scripts from other hosts.
"""

import math
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.validations.expectations.judging import judge_tables
from phasewise.validations.expectations.suites import SUITES
from phasewise.validations.expectations.waiver_rules import accept
from phasewise.validations.verdict import Verdict

MAX_ROWS = 300
MAX_CELL_CHARACTERS = 400
MAX_KEPT = 200
_judged: dict[str, "JudgedAgain"] = {}  # results of this process, by the digest of subject, accepted warnings, tables and checks


class Row(NamedTuple):
    """Row of a Parquet file. `number` counts from 0."""

    number: int
    mark: Literal["failed", "accepted", ""]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class ShownTable:
    """Some rows of a table. `is_numeric` marks the columns of numbers."""

    name: str
    columns: tuple[str, ...]
    is_numeric: tuple[bool, ...]
    rows: tuple[Row, ...]
    total_rows: int
    total_failing: int
    total_accepted: int


def show_table(
    name: str, table: pd.DataFrame, failing: Collection[int], accepted: Collection[int] = (), *, order: Sequence[int] | None = None
) -> ShownTable:
    """Show the rows of `order`, else the first rows of a table: failing rows, then rows that the recipe accepts, then other rows."""
    if order is None:
        order = sorted(range(len(table)), key=lambda row: (row not in failing, row not in accepted))[:MAX_ROWS]
    rows: list[Row] = []
    for number, cells in zip(order, cells_of(table.iloc[list(order)]), strict=True):
        rows.append(Row(number, "failed" if number in failing else "accepted" if number in accepted else "", cells))
    columns = tuple(str(column) for column in table.columns)
    return ShownTable(name, columns, numeric_columns(table), tuple(rows), len(table), len(failing), len(accepted))


def cells_of(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Format the cells of each row."""
    if not table.shape[1]:
        return [()] * len(table)
    columns = [[as_text(value) for value in table.iloc[:, column].tolist()] for column in range(table.shape[1])]
    return list(zip(*columns, strict=True))


def numeric_columns(table: pd.DataFrame) -> tuple[bool, ...]:
    """Return whether each column holds numbers."""
    return tuple(pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind) for kind in table.dtypes)


def as_text(value: Any) -> str:
    """Format a cell: rounded numbers, a dash for a missing value, long text truncated."""
    if isinstance(value, list | tuple | np.ndarray):
        text = ", ".join(as_text(part) for part in value) or "–"
    elif isinstance(value, bool | np.bool_):
        text = "yes" if value else "no"
    elif isinstance(value, float | np.floating):
        text = "–" if math.isnan(value) else f"{value:.6g}"
    else:
        text = "–" if value is None or value is pd.NA or value is pd.NaT or value == "" else str(value)
    return text if len(text) <= MAX_CELL_CHARACTERS else text[: MAX_CELL_CHARACTERS - 1] + "…"


@dataclass(frozen=True)
class JudgedTable:
    """The library's result on one table."""

    sections: tuple[Any, ...]
    passes: bool  # every check passed, including warnings
    failing: Mapping[str, frozenset[int]]  # expectation of a check → positions of its failing rows, without accepted rows
    accepted: frozenset[int]
    is_settled: bool  # every check passed or found only accepted rows


class Particulars(NamedTuple):
    """Rows of `table` with the details of a failure, the most important first."""

    table: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class JudgedAgain:
    """Result of the re-evaluation. `problem` is the reason if it failed."""

    tables: Mapping[str, JudgedTable] = field(default_factory=dict)
    particulars: Mapping[tuple[str, str], Particulars] = field(default_factory=dict)
    """(table, expectation of a check) → the rows with its details."""
    problem: str = ""

    def failing_rows(self, table: str) -> frozenset[int]:
        """Rows to mark as failed, including rows with the details of other tables' failures."""
        own = self.tables[table].failing.values() if table in self.tables else ()
        of_others = (particulars.rows for particulars in self.particulars.values() if particulars.table == table)
        return frozenset[int]().union(*own, *of_others)

    def accepted_rows(self, table: str) -> frozenset[int]:
        """Rows that fail only checks whose findings the recipe accepts."""
        return (self.tables[table].accepted if table in self.tables else frozenset[int]()) - self.failing_rows(table)


def judge_again(verdict: Verdict, tables: Mapping[str, pd.DataFrame]) -> JudgedAgain:
    """Judge the evidence by suite and thresholds of the verdict, cached. The result holds a problem after a change of either."""
    try:
        checks = SUITES[verdict.suite].checks(verdict.thresholds, tables)
        key = digest_of_bytes(pickle.dumps((verdict.subject, verdict.accepts, dict(tables), checks)))
        if key in _judged:
            return _judged[key]
        pages: dict[str, list[Any]] = {}
        results = [accept(result, tables, verdict.accepts) for result in judge_tables(tables, checks, subject=verdict.subject, pages=pages)]
        judged: dict[str, JudgedTable] = {}
        for name, sections in pages.items():
            of_table = [result for result in results if result.check.table == name]
            missing = [result.check for result in of_table if result.check.missing_columns(tables)]
            if missing:
                texts = [f"{check.asks} The table lacks what this check measures." for check in missing]
                block = {"content_block_type": "text", "text": texts}
                sections = [{"section_name": "Could not be made", "content_blocks": [block]}, *sections]
            judged[name] = JudgedTable(
                tuple(sections),
                passes=all(result.outcome == "passed" for result in of_table),
                failing={result.check.asks: frozenset(result.failing_rows) for result in of_table if result.outcome != "passed"},
                accepted=frozenset(row for result in of_table for covered in result.accepted for row in covered.rows),
                is_settled=all(result.outcome in ("passed", "accepted") for result in of_table),
            )
        particulars: dict[tuple[str, str], Particulars] = {}
        for check in checks:
            details, failing = check.details, sorted(judged[check.table].failing.get(check.asks, ()))
            if details is None or not failing:
                continue
            keys = list(details.keys)
            table = tables[details.table].reset_index(drop=True).reset_index(names="row")
            wanted = tables[check.table].iloc[failing][keys].drop_duplicates()
            rows = table.merge(wanted, on=keys).sort_values(details.order_by, ascending=False, kind="stable")["row"]
            particulars[check.table, check.asks] = Particulars(details.table, tuple(int(row) for row in rows))
        if len(_judged) == MAX_KEPT:
            _judged.clear()
        _judged[key] = JudgedAgain(judged, particulars)
        return _judged[key]
    except Exception as error:  # an older verdict may lack any field
        if isinstance(error, KeyError) and (table := error.args[0]) in {check.table for check in verdict.checks}:
            return JudgedAgain(problem=f"the table {table} is missing, or has changed since the verdict was given")
        return JudgedAgain(problem=f"{type(error).__name__}: {error}")
