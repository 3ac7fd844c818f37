"""Judging evidence tables by Great Expectations, and the reasons of each failure in words."""

import os
import string
import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_json
from phasewise.validations.expectations.suites import OBSERVED, Check, Severity, Suite, Tables
from phasewise.validations.limits import AcceptedWarning

if TYPE_CHECKING:
    import pandas as pd

Outcome = Literal["passed", "accepted", "failed", "broken"]
MAX_REASONS_PER_CHECK = 5
_CHECK_NUMBER = "check_number"


class Library(NamedTuple):
    """The package `great_expectations`, and the module that registers the domain expectations."""

    gx: Any
    domain: Any


@dataclass(frozen=True)
class AcceptedRows:
    """Positions of the failing rows that an accepted warning covers."""

    warning: AcceptedWarning
    rows: tuple[int, ...]


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    check: Check
    name: str  # expectation in snake case
    outcome: Outcome
    """`broken`: the check could not run, so the data was not judged. `accepted`: the check failed only on rows that the recipe accepts."""
    observed: str  # the measured value, or the error of a broken check
    failing_rows: tuple[int, ...]  # positions of failing rows, without accepted rows
    accepted: tuple[AcceptedRows, ...] = ()


class _Deferred(ModuleType):
    """A module that is imported when an attribute is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def load_library() -> Library:
    """Import Great Expectations with its analytics off. The first import takes seconds."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    statistics = _Deferred("scipy.stats")  # a third of the time, for expectations of no suite here
    sys.modules.setdefault(statistics.__name__, statistics)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised by the library's import
        import great_expectations as gx

        from phasewise.validations.expectations import domain

    if sys.modules[statistics.__name__] is statistics:
        del sys.modules[statistics.__name__]
    return Library(gx, domain)


def judge_tables(
    tables: Mapping[str, "pd.DataFrame"], checks: Sequence[Check], *, subject: str = "", pages: dict[str, list[Any]] | None = None
) -> tuple[CheckResult, ...]:
    """Run the checks in memory, because shared contexts tear. Missing columns break a check. `pages` gets sections by table."""
    library, results = load_library(), dict[int, CheckResult]()
    for number, check in enumerate(checks):
        if missing := check.missing_columns(tables):
            results[number] = CheckResult(check, check.name, "broken", f"there is no column {', '.join(missing)}", ())
    made = [number for number in range(len(checks)) if number not in results]
    context = library.gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("evidence")
    batch_definition = source.add_dataframe_asset("table").add_batch_definition_whole_dataframe("all rows")
    for name in dict.fromkeys(checks[number].table for number in (made if pages is None else range(len(checks)))):
        batch = batch_definition.get_batch(batch_parameters={"dataframe": tables[name].reset_index(drop=True)})
        suite = build_suite(library, f"{subject}: {name}", name, [checks[number] for number in made])
        outcome = batch.validate(suite, result_format="COMPLETE")
        if pages is not None:
            renderer = library.gx.render.renderer.ValidationResultsPageRenderer(run_info_at_end=True)
            pages[name] = renderer.render(outcome).to_json_dict()["sections"]
        for result in outcome.to_json_dict()["results"]:
            number = made[result["expectation_config"]["meta"][_CHECK_NUMBER]]
            expectation, errors, measured = result["expectation_config"]["type"], result["exception_info"], result["result"]
            records = [errors] if "raised_exception" in errors else list(errors.values())  # a single record, or a record per metric
            message = next((str(record["exception_message"]) for record in records if record["raised_exception"]), None)
            if message:
                results[number] = CheckResult(checks[number], expectation, "broken", message, ())
                continue
            if "unexpected_count" in measured:
                observed = f"{measured['unexpected_count']} of {measured['element_count']} rows fail"
            elif "partial_missing_list" in measured:
                observed = "missing: " + (", ".join(map(str, measured["partial_missing_list"])) or "none")
            else:
                value = measured["observed_value"]
                observed = ", ".join(map(str, cast(list[object], value))) if isinstance(value, list) else str(value)
            failing = tuple(measured.get("unexpected_index_list") or ())
            results[number] = CheckResult(checks[number], expectation, "passed" if result["success"] else "failed", observed, failing)
    return tuple(results[number] for number in range(len(checks)))


_judged: dict[str, tuple[CheckResult, ...]] = {}


def judge_once(
    suite: Suite, tables: Tables, digests: Mapping[str, str], limits: Mapping[str, Any], *, anew: bool
) -> tuple[CheckResult, ...]:
    """Judge the tables. Unless `anew`, return the last results if digests and limits were equal."""
    key = digest_of_json([suite.name, dict(digests), dict(limits)])
    found = None if anew else _judged.get(key)
    found = found or judge_tables(tables, suite.checks(limits, tables))
    _judged.clear()
    _judged[key] = found
    return found


def build_suite(library: Library, name: str, table: str, checks: Sequence[Check]) -> Any:
    """Build the Great Expectations suite of one table."""
    expectations: list[Any] = []
    for number, check in enumerate(checks):
        if check.table == table:
            owner = library.domain if hasattr(library.domain, check.expectation) else library.gx.expectations
            build = getattr(owner, check.expectation)
            meta = {_CHECK_NUMBER: number}
            expectations.append(build(**check.arguments, severity=check.severity, description=check.asks, meta=meta))
    return library.gx.ExpectationSuite(name=name, expectations=expectations)


class Reason(Frozen):
    """Reason of a failure or warning: the problem, the value, its limit, the location and the remedy."""

    expectation: str
    severity: Severity
    what: str
    found: str
    limit: str
    where: str
    what_to_do: str

    @property
    def sentence(self) -> str:
        """Problem and remedy, for the terminal."""
        return f"{self.what}. {self.what_to_do}"


class _Formatter(string.Formatter):
    """Formats a row's cells. `{files:file|files}` chooses singular or plural. A missing cell becomes a question mark."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "?"
        if "|" in format_spec:
            singular, plural = format_spec.split("|")
            return singular if value == 1 else plural
        try:
            return str(super().format_field(value, format_spec))
        except (TypeError, ValueError):  # the cell has another type than the format expects
            return str(value)


def reasons_for(result: CheckResult, tables: Mapping[str, "pd.DataFrame"]) -> list[Reason]:
    """List the reasons of a failed check: each once, the worst five, and the number of further reasons."""
    check, table = result.check, result.check.table
    if result.outcome in ("passed", "accepted"):
        return []
    if result.outcome == "broken":
        reason = Reason(
            expectation=result.name,
            severity="critical",
            what=f"the check {result.name} of table {table} could not be made ({result.observed}), so nothing was judged by it",
            found=result.observed,
            limit="a check that can be made",
            where=f"table {table}",
            what_to_do="This is a defect of the check or of its table, not of the data: repair it and judge again.",
        )
        return [reason]
    # of the failing rows, or of their details if a row has few. The worst value against a limit or floor comes first
    found: list[Reason] = []
    details, rows = check.details, tables[table]
    if not result.failing_rows and (check.expectation == "ExpectTableRowCountToBeBetween" or len(rows)):
        found.append(_reason(result, {OBSERVED: result.observed}))
    failing = rows.iloc[list(result.failing_rows)]
    if len(failing) and ("limit" in check.arguments or "floor" in check.arguments):
        is_floor = "floor" in check.arguments
        failing = failing.sort_values(check.arguments["column"], ascending=is_floor, kind="stable", na_position="first")
    for cells in failing.to_dict("records"):
        row = {str(name): value for name, value in cells.items()}
        if details is None:
            found.append(_reason(result, row))
            continue
        of_row = np.logical_and.reduce([tables[details.table][key] == row[key] for key in details.keys])
        sharing = tables[details.table][of_row].sort_values(details.order_by, ascending=False, kind="stable")
        particulars: list[dict[Any, Any]] = sharing.head(details.at_most + 1).to_dict("records")
        if 0 < len(particulars) <= details.at_most:
            found += [_reason(result, {**row, **particular}, what=details.what, where=details.where) for particular in particulars]
        else:
            found.append(_reason(result, {**(particulars or [{}])[0], **row}))

    reasons = list(dict.fromkeys(found))
    more = len(reasons) - MAX_REASONS_PER_CHECK
    if more <= 0:
        return reasons
    summary = Reason(
        expectation=result.name,
        severity=check.severity,
        what=f"{more} more like these were found, {len(reasons)} in total",
        found=str(len(reasons)),
        limit=str(MAX_REASONS_PER_CHECK),
        where=f"table {table}",
        what_to_do=f"See all of them in {table}.parquet, in the verdict's evidence folder.",
    )
    return [*reasons[:MAX_REASONS_PER_CHECK], summary]


def _reason(result: CheckResult, cells: Mapping[str, Any], *, what: str | None = None, where: str | None = None) -> Reason:
    check, formatter = result.check, _Formatter()
    cells = defaultdict(lambda: None, cells)
    return Reason(
        expectation=result.name,
        severity=check.severity,
        what=formatter.vformat(what or check.what, (), cells),
        found=formatter.vformat(check.found, (), cells),
        limit=formatter.vformat(check.limit, (), cells),
        where=formatter.vformat(where or check.where, (), cells),
        what_to_do=formatter.vformat(check.what_to_do, (), cells),
    )
