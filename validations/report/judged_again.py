"""The evidence of a verdict, put before Great Expectations once more for its pages, and the rows that fail.

Its own pages load styles and scripts from other hosts and write cells of data into the page as they are. So only what they say is
taken from the library, as a tree of content; `content.py` makes HTML of it.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.validations.accepted import AcceptedWarning
from phasewise.validations.expectations.accepting import accept
from phasewise.validations.expectations.check import Check
from phasewise.validations.expectations.judging import CheckResult, Library, build_suite, load_library
from phasewise.validations.expectations.suites import SUITES
from phasewise.validations.verdict import Verdict


@dataclass(frozen=True)
class JudgedTable:
    """What Great Expectations says of one table.

    Attributes:
        sections: its page, as content.
        passes: whether every check passed, warnings included.
        failing: what a check asks → positions of the rows that fail it, for the checks that did not pass.
        accepted: positions of the rows that the recipe accepts; the others of `failing` are left in it.
        is_settled: whether every check passed or found only what the recipe accepts.
    """

    sections: tuple[Any, ...]
    passes: bool
    failing: Mapping[str, frozenset[int]]
    accepted: frozenset[int] = frozenset()
    is_settled: bool = False


MAX_KEPT = 1000
_judged: dict[str, JudgedTable] = {}
"""What this process has judged, by the digest of the table, its checks and the suite's name."""


@dataclass(frozen=True)
class Particulars:
    """The rows of `table` that say more of what a check found, the most telling first."""

    table: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class JudgedAgain:
    """The result of judging once more.

    Attributes:
        particulars: (table, what the check asks) → where its failing rows are named in full.
        problem: why nothing could be judged.
    """

    tables: Mapping[str, JudgedTable] = field(default_factory=dict)
    particulars: Mapping[tuple[str, str], Particulars] = field(default_factory=dict)
    problem: str = ""

    def failing_rows(self, table: str) -> frozenset[int]:
        """The rows to mark: those that fail, and those that give the particulars of others."""
        own = self.tables[table].failing.values() if table in self.tables else ()
        of_others = (particulars.rows for particulars in self.particulars.values() if particulars.table == table)
        return frozenset[int]().union(*own, *of_others)

    def accepted_rows(self, table: str) -> frozenset[int]:
        """The rows that fail nothing but what the recipe accepts."""
        return (self.tables[table].accepted if table in self.tables else frozenset[int]()) - self.failing_rows(table)


@dataclass(frozen=True)
class Judge:
    """Great Expectations, ready to judge one table after the other; making it ready costs more than judging a table."""

    library: Library
    any_table: Any

    @classmethod
    def open(cls) -> "Judge":
        """In a context that lives in memory only: processes that share one on disk tear its files."""
        library = load_library()
        context = library.gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}
        source = context.data_sources.add_pandas("evidence")
        return cls(library, source.add_dataframe_asset("table").add_batch_definition_whole_dataframe("all rows"))

    def judge(self, name: str, table: pd.DataFrame, checks: Sequence[Check]) -> JudgedTable:
        """Put one table before these checks, which are all on it. `name` is the suite's.

        The report of a recipe is written after every phase: what this process has judged already, to the last cell, is not judged again.
        """
        key = digest_of_bytes(pickle.dumps((name, table, tuple(checks))))
        if key not in _judged:
            if len(_judged) == MAX_KEPT:
                _judged.clear()
            _judged[key] = self._judge(name, table, checks)
        return _judged[key]

    def _judge(self, name: str, table: pd.DataFrame, checks: Sequence[Check]) -> JudgedTable:
        batch = self.any_table.get_batch(batch_parameters={"dataframe": table.reset_index(drop=True)})
        suite = build_suite(self.library, name, checks[0].table, checks) if checks else self.library.gx.ExpectationSuite(name=name)
        return self._read(batch.validate(suite, result_format="COMPLETE"))

    def _read(self, outcome: Any) -> JudgedTable:
        renderer = self.library.gx.render.renderer.ValidationResultsPageRenderer(run_info_at_end=True)
        failed = [result for result in outcome.results if not result.success]
        return JudgedTable(
            sections=tuple(renderer.render(outcome).to_json_dict()["sections"]),
            passes=bool(outcome.success),
            failing={result.expectation_config.description: _failing_rows(result) for result in failed},
        )


def judge_again(judge: Judge, verdict: Verdict, tables: Mapping[str, pd.DataFrame]) -> JudgedAgain:
    """Judge the evidence by the suite and the thresholds of its verdict.

    A verdict that cannot be judged again, because the suite or the evidence has changed since, still has its report.
    """
    try:
        checks = SUITES[verdict.suite].checks(verdict.thresholds, tables)
        judged = _judge(judge, verdict, tables, checks)
        particulars = _particulars(checks, judged, tables)
    except Exception as error:  # whatever an older verdict lacks
        if isinstance(error, KeyError) and (table := error.args[0]) in {check.table for check in verdict.checks}:
            return JudgedAgain(problem=f"the table {table} is missing, or has changed since the verdict was given")
        return JudgedAgain(problem=f"{type(error).__name__}: {error}")
    return JudgedAgain(judged, particulars)


def _judge(judge: Judge, verdict: Verdict, tables: Mapping[str, pd.DataFrame], checks: Sequence[Check]) -> dict[str, JudgedTable]:
    judged: dict[str, JudgedTable] = {}
    for name in dict.fromkeys(check.table for check in checks):
        of_table = [check for check in checks if check.table == name]
        broken = [check for check in of_table if check.missing_columns(tables)]
        made = judge.judge(f"{verdict.subject}: {name}", tables[name], [check for check in of_table if check not in broken])
        made = _accept(made, tables, {check.asks: check for check in of_table}, verdict.accepts)
        if broken:
            made = replace(made, passes=False, is_settled=False, sections=(_not_made(broken), *made.sections))
        judged[name] = made
    return judged


def _accept(
    judged: JudgedTable, tables: Mapping[str, pd.DataFrame], checks: Mapping[str, Check], accepts: Sequence[AcceptedWarning]
) -> JudgedTable:
    """The same with the rows that the recipe accepts taken from those that fail. `checks` are those of the table by what they ask."""
    failing: dict[str, frozenset[int]] = {}
    accepted: set[int] = set()
    is_settled = True
    for asks, rows in judged.failing.items():
        found = CheckResult(checks[asks], checks[asks].name, "failed", "", tuple(sorted(rows)))
        result = accept(found, tables, accepts)
        failing[asks] = frozenset(result.failing_rows)
        accepted.update(row for covered in result.accepted for row in covered.rows)
        is_settled = is_settled and result.outcome == "accepted"
    return replace(judged, failing=failing, accepted=frozenset(accepted), is_settled=is_settled)


def _failing_rows(result: Any) -> frozenset[int]:
    return frozenset(int(row) for row in result.result.get("unexpected_index_list") or ())


def _not_made(checks: Sequence[Check]) -> dict[str, Any]:
    """A section on the checks that the library was not asked to make, because the table lacks what they measure."""
    texts = [f"{check.asks} The table lacks what this check measures." for check in checks]
    return {"section_name": "Could not be made", "content_blocks": [{"content_block_type": "text", "text": texts}]}


def _particulars(
    checks: Sequence[Check], judged: Mapping[str, JudgedTable], tables: Mapping[str, pd.DataFrame]
) -> dict[tuple[str, str], Particulars]:
    """Of every check that has failing rows and says where more about them is."""
    found: dict[tuple[str, str], Particulars] = {}
    for check in checks:
        details = check.details
        failing = sorted(judged[check.table].failing.get(check.asks, ()))
        if details is None or not failing:
            continue
        keys = list(details.keys)
        table = tables[details.table].reset_index(drop=True)
        wanted = tables[check.table].iloc[failing][keys].drop_duplicates()
        rows = table.reset_index(names="row").merge(wanted, on=keys).sort_values(details.order_by, ascending=False, kind="stable")["row"]
        found[check.table, check.asks] = Particulars(details.table, tuple(int(row) for row in rows))
    return found
