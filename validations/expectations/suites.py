"""The suites: the checks that `suites.yaml` lists, within the limits of a recipe and for the tables that are judged."""

import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import yaml

from phasewise.trainer.base.identity import code_digest, digest_of_file, digest_of_json
from phasewise.trainer.metrics import ALL_GROUPS
from phasewise.validations.evidence.floor import NUM_TESTS
from phasewise.validations.evidence.health.evidence import PHENOMENA, grad_norm_spikes_of, param_norm_jumps_of
from phasewise.validations.limits import DataLimits, GateLimits, HealthLimits

DATA_SUITE, HEALTH_SUITE, GATE_SUITE = "data", "health", "gate"
SUITE_FILE = Path(__file__).with_name("suites.yaml")
SUITE_DATA: Mapping[str, Any] = yaml.load(SUITE_FILE.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
OBSERVED = "observed"
OF_GROUPS = {name(group) for name in (grad_norm_spikes_of, param_norm_jumps_of) for group in ALL_GROUPS}
_VALUE = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")

Severity = Literal["critical", "warning"]
Tables = Mapping[str, pd.DataFrame]


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
    """An expectation over one evidence table.

    Attributes:
        expectation: class name, in `domain` or in Great Expectations.
        arguments: of that class.
        asks: one sentence, for Data Docs.
        what, found, limit, where, what_to_do: how a failure is reported; format strings over the failing row (or its details' rows).
            A failure of the table as a whole has no row: there only `{observed}` can be named.
        accept_by: the columns that a recipe has to name to accept a warning of this check; without any, nobody can accept one.
        narrow_by: more columns that it may name.
        speaks_for: which rows a failing row speaks for, if it is one for several.
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

    def missing_columns(self, tables: Tables) -> list[str]:
        """`table.column` of each missing column that the check measures or reports; without it the check cannot be made."""
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


def _named_in(*words: str) -> list[str]:
    """The cells that format strings name."""
    named = [name for text in words for _, name, _, _ in string.Formatter().parse(text) if name]
    return [name for name in named if name != OBSERVED]


def _absent(table: str, names: Iterable[str], columns: Collection[str]) -> list[str]:
    return [f"{table}.{name}" for name in dict.fromkeys(names) if name not in columns]


@dataclass(frozen=True)
class Suite:
    """One judgement's expectations.

    Attributes:
        number: raised when the suite asks for something else than before; for people, see `version_of`.
        tables: the tables in a verdict's folder.
        checks: makes the checks from thresholds and tables.
        evidence: globs of the files of `validations/evidence` that make the tables.
    """

    name: str
    number: int
    tables: tuple[str, ...]
    checks: Callable[[Mapping[str, Any], Tables], tuple[Check, ...]]
    evidence: tuple[str, ...] = ()


def _data_checks(thresholds: Mapping[str, Any], tables: Tables) -> tuple[Check, ...]:
    """The components that the mixture draws must be among those that the other tables judge."""
    limits, mixture = DataLimits.model_validate(thresholds), tables["mixture"]

    def with_some(column: str) -> list[str]:
        """The components of which a stage has something; none if the table lacks a column, which breaks the table's own checks."""
        return sorted(mixture["component"][mixture[column] > 0].unique()) if {"component", column} <= set(mixture) else []

    drawn = with_some("sequences")
    drawn_with_rows = [name for name in with_some("rows") if name in drawn]
    leaked = int((tables["leakage"]["items_hit"] > 0).sum()) if "items_hit" in tables["leakage"] else 0
    num_orders = len(tables["order"]) + (len(tables["shifts"]) if "shifts" in tables else 0)
    max_items = limits.leakage.max_items
    values: dict[str, Any] = {
        **limits.model_dump(),
        **limits.leakage.model_dump(),
        **limits.order.model_dump(),
        **limits.packing.model_dump(),
        "drawn": drawn,
        "drawn_words": ", ".join(drawn),
        "drawn_with_rows": drawn_with_rows,
        "drawn_with_rows_words": ", ".join(drawn_with_rows),
        "judged_manifests": sorted(tables["caches"]["manifest_digest"]) if "manifest_digest" in tables["caches"] else [],
        "leak_asks": "No test item is in the training data." if max_items == 0 else "Few test items are in the training data.",
        "leaked_rows": leaked,
        "max_leaked_rows": None if leaked else 0,
        "leaked_rows_limit": f"at least {leaked} items" if leaked else "0 items",
        "order_rate": limits.order.false_alarm_rate / max(num_orders, 1),
    }
    return _build_checks(DATA_SUITE, values)


def _gate_checks(thresholds: Mapping[str, Any], tables: Tables) -> tuple[Check, ...]:
    """The parent is compared with if there is one: falls and rises if the table `comparable` asks for them, or lacks the column."""
    limits, comparable = GateLimits.model_validate(thresholds), tables["comparable"]
    floor = limits.asked_floor_error_rate
    compares = limits.false_refusal_rate is not None
    answers, likelihoods = tables["answers"], tables["likelihoods"]
    has_parent_answers = answers.empty or answers.get("against", pd.Series(["unknown"])).ne("").any()
    values: dict[str, Any] = {
        **limits.model_dump(),
        "floor_error_rate": floor,
        "half_floor_error_rate": None if floor is None else floor / NUM_TESTS,
        "has_parent": tables["bits_per_byte"].get("has_parent", pd.Series([True])).any(),
        "asks_falls": compares and (comparable.get("asks_fall", pd.Series([True])).any() or not tables["falls"].empty),
        "asks_rises": compares and (comparable.get("asks_rise", pd.Series([True])).any() or not tables["rises"].empty),
        "asks_likelihoods": compares and (len(likelihoods) > 0 or not len(likelihoods.columns)),
        "asks_answers": limits.min_answer_gain_nats is not None and has_parent_answers,
        "max_score_fall_percent": _percent(limits.max_score_fall),
        "max_score_rise_percent": _percent(limits.max_score_rise),
    }
    return _build_checks(GATE_SUITE, values)


def _percent(share: float | None) -> str:
    return "any share" if share is None else f"{100 * share:g} %"


def _health_checks(thresholds: Mapping[str, Any], tables: Tables) -> tuple[Check, ...]:
    """A measure that was not made is judged by the checks of the whole table, not by its limit.

    What stops: numbers that are not finite, loss spikes beyond the limit, experts that collapse, and rows without the numbers of every run.
    All else warns, such as gradient norm spikes, because clipping bounds their harm to the weights.
    """
    table = tables["health"]
    values = {**HealthLimits.model_validate(thresholds).model_dump(), "phenomena": sorted(map(str, PHENOMENA))}
    rules = SUITE_DATA["health_measures"]
    has_measured = {"measure", "is_measured"} <= set(table)
    measured = (
        set(table["measure"][table["is_measured"].astype(bool)]) if has_measured else {*(rule["measure"] for rule in rules), *OF_GROUPS}
    )
    checks = [*_build_checks(HEALTH_SUITE, values)]
    for rule in rules:
        measure, limit, unit = rule["measure"], _fill(rule["limit"], values), rule["unit"]
        if measure not in measured or limit is None:
            continue
        phenomenon = PHENOMENA[measure]
        checks.append(
            Check(
                table="health",
                expectation=rule["expectation"],
                arguments={"column": "value", "limit": limit, "row_condition": _measure_is("==", measure)},
                severity=rule["severity"],
                asks=f"No {phenomenon.name}: {measure} keeps to its limit. {phenomenon.described_in}.",
                what=f"{phenomenon.name}: {{detail}} (described in {phenomenon.described_in})",
                found=f"{{value:.3g}}{unit}",
                limit=f"at most {limit:g}{unit}",
                where="step {at_step}",
                what_to_do=rule["what_to_do"],
            )
        )
    if of_groups := sorted(measured & OF_GROUPS):
        limit = values["max_spike_percent"]
        checks.append(
            Check(
                table="health",
                expectation="ExpectSpikesWithinLimit",
                arguments={"column": "value", "limit": limit, "row_condition": _measure_is("IN", of_groups)},
                severity="warning",
                asks="In no group of weights do the gradient norm or the weights' own norm jump more often than allowed.",
                what="{measure}: {detail} (described in {described_in})",
                found="{value:.3g} % of the updates",
                limit=f"at most {limit:g} % of the updates",
                where="step {at_step}",
                what_to_do="See whether the loss spikes there too, and which weights move first.",
            )
        )
    return tuple(checks)


def _measure_is(operator: str, measures: str | list[str]) -> dict[str, object]:
    """The rows that are judged, as Great Expectations reads a condition."""
    return {"type": "comparison", "column": {"name": "measure"}, "operator": operator, "parameter": measures}


def _build_checks(suite: str, values: Mapping[str, Any]) -> tuple[Check, ...]:
    """The checks that the file lists for a suite, with these limits and facts filled in."""
    return tuple(_build_check(row, values) for row in SUITE_DATA[suite] if "when" not in row or _is_asked(values[row["when"]]))


def _is_asked(value: Any) -> bool:
    return bool(value) if isinstance(value, bool | np.bool_) else value is not None


def _build_check(row: Mapping[str, Any], values: Mapping[str, Any]) -> Check:
    if "rows" in row:
        return expect_rows(row["rows"], row["what_to_do"])
    filled: dict[str, Any] = {name: _fill(value, values) for name, value in row.items() if name != "when"}
    if details := filled.get("details"):
        filled["details"] = Details(**details | {"keys": tuple(details["keys"])})
    if speaks_for := filled.get("speaks_for"):
        filled["speaks_for"] = SpeaksFor(**speaks_for)
    for name in ("accept_by", "narrow_by"):
        filled[name] = tuple(filled.get(name, ()))
    return Check(**filled)


def _fill(value: Any, values: Mapping[str, Any]) -> Any:
    """`value` with its `${name}` filled in; a text that is nothing else becomes the value itself."""
    if isinstance(value, dict):
        return {name: _fill(each, values) for name, each in value.items()}
    if not isinstance(value, str):
        return value
    whole = _VALUE.fullmatch(value)
    if whole and whole[2] is None:
        return values[whole[1]]
    return _VALUE.sub(lambda found: format(values[found[1]], found[2] or ""), value)


def expect_rows(table: str, what_to_do: str) -> Check:
    """Expect at least one row: without rows, most expectations pass."""
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


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            DATA_SUITE,
            4,
            ("caches", "differences", "mixture", "leakage", "leaked_items", "order", "shifts", "packing", "hand_off"),
            _data_checks,
            ("caches.py", "mixture.py", "leakage/*.py", "order/*.py"),
        ),
        Suite(HEALTH_SUITE, 1, ("health",), _health_checks, ("health/*.py",)),
        Suite(
            GATE_SUITE,
            7,
            ("asked", "benchmarks", "bits_per_byte", "comparable", "falls", "rises", "likelihoods", "needles", "exposure", "answers"),
            _gate_checks,
            ("gate.py", "floor.py", "exposure.py", "comparable.py", "parent_comparison.py", "proportions.py"),
        ),
    )
}


def checks_of(name: str, thresholds: Mapping[str, Any]) -> tuple[Check, ...]:
    """Every check that a suite can make within these thresholds, whatever the tables will hold."""
    suite = SUITES[name]
    return suite.checks(thresholds, {table: pd.DataFrame() for table in suite.tables})


def version_of(suite: Suite) -> str:
    """The suite's number, and a digest of its checks and of the code that makes its evidence: an edit always changes it."""
    code = code_digest("validations/expectations/*.py", *(f"validations/evidence/{name}" for name in suite.evidence))
    return f"{suite.number}-{digest_of_json([code, digest_of_file(SUITE_FILE)])[:8]}"
