"""Putting evidence tables before Great Expectations, and reading what it says."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import pandas as pd

from phasewise.validations.accepted import AcceptedWarning
from phasewise.validations.expectations.check import Check

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
    observed = _observed(measured)
    return CheckResult(check, name, "passed" if result["success"] else "failed", observed, failing)


def _observed(measured: dict[str, Any]) -> str:
    if "unexpected_count" in measured:
        return f"{measured['unexpected_count']} of {measured['element_count']} rows fail"
    if "partial_missing_list" in measured:
        return "missing: " + (", ".join(map(str, measured["partial_missing_list"])) or "none")
    value = measured["observed_value"]
    return ", ".join(map(str, cast(list[object], value))) if isinstance(value, list) else str(value)


def _exception_message(exception_info: dict[str, Any]) -> str | None:
    """The first exception's message. The library gives one record, or one a metric."""
    records = [exception_info] if "raised_exception" in exception_info else list(exception_info.values())
    return next((str(record["exception_message"]) for record in records if record["raised_exception"]), None)
