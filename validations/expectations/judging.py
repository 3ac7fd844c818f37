"""Telling a person why a check failed."""

import os
import string
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd

from phasewise.trainer.base.frozen import Frozen
from phasewise.validations.expectations.suites import OBSERVED, Check, Severity
from phasewise.validations.waivers import AcceptedWarning

Outcome = Literal["passed", "accepted", "failed", "broken"]
_CHECK_NUMBER = "check_number"


class Library(NamedTuple):
    """The `great_expectations` package and the module of our own expectations, which registers them."""

    gx: Any
    domain: Any


@dataclass(frozen=True)
class AcceptedRows:
    """The failing rows, by their positions in the table, that one accepted warning covers."""

    warning: AcceptedWarning
    rows: tuple[int, ...]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: the expectation's, in snake case.
        outcome: `broken` is a check that could not be made, because of the check or the table; the data was not judged. `accepted` is one
            that fails only where the recipe expects it.
        observed: what was measured, in words; for a broken check, what stopped it.
        failing_rows: positions in the table of what fails and nobody accepts.
        accepted: what the recipe accepts of what was found.
    """

    check: Check
    name: str
    outcome: Outcome
    observed: str
    failing_rows: tuple[int, ...]
    accepted: tuple[AcceptedRows, ...] = ()


def load_library() -> Library:
    """Import Great Expectations, which takes seconds the first time, with its analytics off."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the library's own, while it imports
        import great_expectations as gx

        from phasewise.validations.expectations import domain

    return Library(gx, domain)


def judge_tables(tables: Mapping[str, pd.DataFrame], checks: Sequence[Check]) -> tuple[CheckResult, ...]:
    """Make every check, in a context that lives in memory only. One whose columns are not all there is broken, and not tried."""
    broken = {number: missing for number, check in enumerate(checks) if (missing := check.missing_columns(tables))}
    made = iter(_judge_whole_tables(tables, [check for number, check in enumerate(checks) if number not in broken]))
    return tuple(_without_columns(check, broken[number]) if number in broken else next(made) for number, check in enumerate(checks))


def _judge_whole_tables(tables: Mapping[str, pd.DataFrame], checks: Sequence[Check]) -> tuple[CheckResult, ...]:
    library = load_library()
    context = library.gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas("evidence")
    results: dict[int, CheckResult] = {}
    for name in dict.fromkeys(check.table for check in checks):
        table = tables[name].reset_index(drop=True)
        batch_definition = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all rows")
        batch = batch_definition.get_batch(batch_parameters={"dataframe": table})
        outcome = batch.validate(build_suite(library, name, name, checks), result_format="COMPLETE")
        for result in outcome.to_json_dict()["results"]:
            number: int = result["expectation_config"]["meta"][_CHECK_NUMBER]
            results[number] = _read_result(result, checks[number])
    return tuple(results[number] for number in range(len(checks)))


def build_suite(library: Library, name: str, table: str, checks: Sequence[Check]) -> Any:
    """The checks of one table as a Great Expectations suite."""
    expectations = [_build_expectation(library, check, number) for number, check in enumerate(checks) if check.table == table]
    return library.gx.ExpectationSuite(name=name, expectations=expectations)


def _build_expectation(library: Library, check: Check, number: int) -> Any:
    owner = library.domain if hasattr(library.domain, check.expectation) else library.gx.expectations
    return getattr(owner, check.expectation)(
        **check.arguments, severity=check.severity, description=check.asks, meta={_CHECK_NUMBER: number}
    )


def _without_columns(check: Check, missing: Sequence[str]) -> CheckResult:
    return CheckResult(check, check.name, "broken", f"there is no column {', '.join(missing)}", ())


def _read_result(result: dict[str, Any], check: Check) -> CheckResult:
    name = result["expectation_config"]["type"]
    if message := _exception_message(result["exception_info"]):
        return CheckResult(check, name, "broken", message, ())
    measured = result["result"]
    failing = tuple(measured.get("unexpected_index_list") or ())
    if "unexpected_count" in measured:
        observed = f"{measured['unexpected_count']} of {measured['element_count']} rows fail"
    else:
        if "partial_missing_list" in measured:
            observed = "missing: " + (", ".join(map(str, measured["partial_missing_list"])) or "none")
        else:
            value = measured["observed_value"]
            observed = ", ".join(map(str, cast(list[object], value))) if isinstance(value, list) else str(value)
    return CheckResult(check, name, "passed" if result["success"] else "failed", observed, failing)


def _exception_message(exception_info: dict[str, Any]) -> str | None:
    """The first exception's message. The library gives one record, or one a metric."""
    records = [exception_info] if "raised_exception" in exception_info else list(exception_info.values())
    return next((str(record["exception_message"]) for record in records if record["raised_exception"]), None)


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
