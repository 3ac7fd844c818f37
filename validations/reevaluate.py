"""Re-evaluation of a verdict's evidence by Great Expectations for its report, and its tables with failing rows first.

The library's result is kept as a tree of blocks: the library's own pages load styles and scripts from other hosts.
"""

import math
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.validations.expectations.judging import CheckResult, Library, build_suite, load_library
from phasewise.validations.expectations.suites import SUITES, Check
from phasewise.validations.expectations.waiver_rules import accept
from phasewise.validations.verdict import Verdict

MAX_ROWS = 300
MAX_CELL_CHARACTERS = 400
MAX_KEPT = 1000
_judged: dict[str, "JudgedTable"] = {}
"""Results of this process, by the digest of table, checks and suite name."""


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


def show_table(name: str, table: pd.DataFrame, failing: Collection[int], accepted: Collection[int] = ()) -> ShownTable:
    """Show the first rows of a table: failing rows, then rows that the recipe accepts, then other rows."""
    order = sorted(range(len(table)), key=lambda row: (row not in failing, row not in accepted))
    return show_rows(name, table, order[:MAX_ROWS], failing, accepted)


def show_rows(name: str, table: pd.DataFrame, order: Sequence[int], failing: Collection[int], accepted: Collection[int] = ()) -> ShownTable:
    """Show the given rows of a table."""
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
    passes: bool
    """Every check passed, including warnings."""
    failing: Mapping[str, frozenset[int]]
    """Expectation of a check → positions of its failing rows, without accepted rows."""
    accepted: frozenset[int] = frozenset()
    is_settled: bool = False
    """Every check passed or found only accepted rows."""


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


@dataclass(frozen=True)
class Judge:
    """An open Great Expectations context for many tables: opening costs more than judging a table."""

    library: Library
    batch_definition: Any

    @classmethod
    def open(cls) -> "Judge":
        """Open a context in memory: processes that share a context on disk corrupt its files."""
        library = load_library()
        context = library.gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}
        source = context.data_sources.add_pandas("evidence")
        return cls(library, source.add_dataframe_asset("table").add_batch_definition_whole_dataframe("all rows"))

    def judge(self, name: str, table: pd.DataFrame, checks: Sequence[Check]) -> JudgedTable:
        """Judge one table by its checks, as the suite `name`. Results are cached: the report is written after every phase."""
        key = digest_of_bytes(pickle.dumps((name, table, tuple(checks))))
        if key not in _judged:
            if len(_judged) == MAX_KEPT:
                _judged.clear()
            batch = self.batch_definition.get_batch(batch_parameters={"dataframe": table.reset_index(drop=True)})
            suite = build_suite(self.library, name, checks[0].table, checks) if checks else self.library.gx.ExpectationSuite(name=name)
            outcome = batch.validate(suite, result_format="COMPLETE")
            renderer = self.library.gx.render.renderer.ValidationResultsPageRenderer(run_info_at_end=True)
            failing = {
                result.expectation_config.description: frozenset(map(int, result.result.get("unexpected_index_list") or ()))
                for result in outcome.results
                if not result.success
            }
            _judged[key] = JudgedTable(tuple(renderer.render(outcome).to_json_dict()["sections"]), bool(outcome.success), failing)
        return _judged[key]


def judge_again(judge: Judge, verdict: Verdict, tables: Mapping[str, pd.DataFrame]) -> JudgedAgain:
    """Judge the evidence by the suite and the thresholds of its verdict. The result holds a problem if either has changed since."""
    try:
        checks = SUITES[verdict.suite].checks(verdict.thresholds, tables)
        names = dict.fromkeys(check.table for check in checks)
        judged = {name: _judge_table(judge, verdict, name, tables, [check for check in checks if check.table == name]) for name in names}
        return JudgedAgain(judged, _find_particulars(checks, judged, tables))
    except Exception as error:  # an older verdict may lack any field
        if isinstance(error, KeyError) and (table := error.args[0]) in {check.table for check in verdict.checks}:
            return JudgedAgain(problem=f"the table {table} is missing, or has changed since the verdict was given")
        return JudgedAgain(problem=f"{type(error).__name__}: {error}")


def _judge_table(judge: Judge, verdict: Verdict, name: str, tables: Mapping[str, pd.DataFrame], checks: Sequence[Check]) -> JudgedTable:
    """Judge one table, and move accepted rows from failing to accepted."""
    broken = [check for check in checks if check.missing_columns(tables)]
    made = judge.judge(f"{verdict.subject}: {name}", tables[name], [check for check in checks if check not in broken])
    by_expectation = {check.asks: check for check in checks}
    failing: dict[str, frozenset[int]] = {}
    accepted: set[int] = set()
    is_settled, sections = not broken, made.sections
    for asks, rows in made.failing.items():
        check = by_expectation[asks]
        result = accept(CheckResult(check, check.name, "failed", "", tuple(sorted(rows))), tables, verdict.accepts)
        failing[asks] = frozenset(result.failing_rows)
        accepted.update(row for covered in result.accepted for row in covered.rows)
        is_settled = is_settled and result.outcome == "accepted"
    if broken:
        texts = [f"{check.asks} The table lacks what this check measures." for check in broken]
        missing = {"section_name": "Could not be made", "content_blocks": [{"content_block_type": "text", "text": texts}]}
        sections = (missing, *sections)
    passes = made.passes and not broken
    return replace(made, sections=sections, passes=passes, failing=failing, accepted=frozenset(accepted), is_settled=is_settled)


def _find_particulars(
    checks: Sequence[Check], judged: Mapping[str, JudgedTable], tables: Mapping[str, pd.DataFrame]
) -> dict[tuple[str, str], Particulars]:
    found: dict[tuple[str, str], Particulars] = {}
    for check in checks:
        details, failing = check.details, sorted(judged[check.table].failing.get(check.asks, ()))
        if details is None or not failing:
            continue
        keys = list(details.keys)
        table = tables[details.table].reset_index(drop=True).reset_index(names="row")
        wanted = tables[check.table].iloc[failing][keys].drop_duplicates()
        rows = table.merge(wanted, on=keys).sort_values(details.order_by, ascending=False, kind="stable")["row"]
        found[check.table, check.asks] = Particulars(details.table, tuple(int(row) for row in rows))
    return found
