"""Suites: the checks of `suites.yaml` with the limits of a recipe, for the given evidence tables."""

import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from phasewise.trainer.base.identity import code_digest, digest_of_file, digest_of_json
from phasewise.trainer.base.storage import read_yaml
from phasewise.trainer.metrics import ALL_GROUPS
from phasewise.validations.evidence.floor import NUM_TESTS
from phasewise.validations.evidence.health.phenomena import GROUP_MEASURES, PHENOMENA
from phasewise.validations.limits import DataLimits, GateLimits, HealthLimits

if TYPE_CHECKING:
    import pandas as pd

DATA_SUITE, HEALTH_SUITE, GATE_SUITE = "data", "health", "gate"
SUITE_FILE = Path(__file__).with_name("suites.yaml")
SUITE_DATA: Mapping[str, Any] = read_yaml(SUITE_FILE)
OBSERVED = "observed"
BY_GROUP = "by_group"  # rule of `suites.yaml` for all measures per group of weights
OF_GROUPS = {f"{measure}/{group}" for measure in GROUP_MEASURES for group in ALL_GROUPS}
_VALUE = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")

Severity = Literal["critical", "warning"]
Tables = Mapping[str, "pd.DataFrame"]


@dataclass(frozen=True)
class Details:
    """Details of a failing row: the rows of `table` that share its `keys`, the highest `order_by` first.

    A failing row with at most `at_most` details has a reason per detail, in the words given here. A row with more details has a single
    reason in the check's words, which may name cells of the first detail.
    """

    table: str
    keys: tuple[str, ...]
    order_by: str
    at_most: int
    what: str
    where: str


@dataclass(frozen=True)
class SpeaksFor:
    """A failing row stands for every row whose cell `passes` is False. The row with the lowest `order_by` is named."""

    passes: str
    order_by: str


@dataclass(frozen=True)
class Check:
    """An expectation on one evidence table."""

    table: str
    expectation: str  # class in `domain` or in Great Expectations
    arguments: Mapping[str, Any]
    severity: Severity
    asks: str  # sentence for Data Docs
    what: str  # this text and the next four are format strings over the failing row. A failure of the whole table has only `{observed}`
    found: str
    limit: str
    where: str
    what_to_do: str
    details: Details | None = None
    accept_by: tuple[str, ...] = ()  # columns that a recipe must name to accept a warning. Without columns, no warning can be accepted
    narrow_by: tuple[str, ...] = ()  # columns that a recipe may name as well
    speaks_for: SpeaksFor | None = None

    @property
    def name(self) -> str:
        """The expectation in snake case, as in Great Expectations and in verdicts."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.expectation).lower()

    def missing_columns(self, tables: Tables) -> list[str]:
        """Return `table.column` of each missing column that the check measures or reports."""
        here, details = tables[self.table].columns, self.details
        needed = [str(self.arguments[name]) for name in ("column", "column_A", "column_B") if name in self.arguments]
        needed += [*self.accept_by, *self.narrow_by]
        needed += [self.speaks_for.passes, self.speaks_for.order_by] if self.speaks_for else []
        told = _cells_in(self.what, self.found, self.limit, self.where, self.what_to_do)
        missing: list[str] = []
        if details is None:
            needed += told
        else:
            there = tables[details.table].columns
            needed += [*details.keys, *(name for name in told if name not in there)]
            of_details = [*details.keys, details.order_by, *(name for name in _cells_in(details.what, details.where) if name not in here)]
            missing = [f"{details.table}.{name}" for name in dict.fromkeys(of_details) if name not in there]
        return [*(f"{self.table}.{name}" for name in dict.fromkeys(needed) if name not in here), *missing]


def _cells_in(*texts: str) -> list[str]:
    names = [name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name]
    return [name for name in names if name != OBSERVED]


@dataclass(frozen=True)
class Suite:
    """Expectations of one kind of verdict."""

    name: str
    number: int  # raised by hand when the suite's expectations change. `version_of` detects every edit
    tables: Sequence[str]
    checks: Callable[[Mapping[str, Any], Tables], tuple[Check, ...]]  # builds the checks from thresholds and tables
    evidence: Sequence[str] = ()  # globs below `validations/evidence` of the modules that make the tables


def _data_checks(thresholds: Mapping[str, Any], tables: Tables) -> tuple[Check, ...]:
    """Build the data checks. The other tables must judge every component that the mixture draws."""
    limits, mixture = DataLimits.model_validate(thresholds), tables["mixture"]
    drawn, with_rows = (
        sorted(mixture["component"][mixture[column] > 0].unique()) if {"component", column} <= set(mixture) else []
        for column in ("sequences", "rows")
    )
    drawn_with_rows = [name for name in with_rows if name in drawn]
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
        "leak_column": "items_hit" if limits.leakage.max_held_out_percent is None else "benchmark_items_hit",
        "leak_asks": "No test item is in the training data." if max_items == 0 else "Few test items are in the training data.",
        "leaked_rows": leaked,
        "max_leaked_rows": None if leaked else 0,
        "leaked_rows_limit": f"at least {leaked} items" if leaked else "0 items",
        "order_rate": limits.order.false_alarm_rate / max(num_orders, 1),
    }
    return _build_checks(DATA_SUITE, values)


def _gate_checks(thresholds: Mapping[str, Any], tables: Tables) -> tuple[Check, ...]:
    """Build the gate checks. Falls and rises are checked if the table `comparable` requests them, or lacks the column."""
    limits, comparable = GateLimits.model_validate(thresholds), tables["comparable"]
    floor = limits.floor_error_rate if limits.must_beat_baseline else None
    compares = limits.false_refusal_rate is not None
    answers, likelihoods = tables["answers"], tables["likelihoods"]
    has_parent_answers = not len(answers) or "against" not in answers or answers["against"].ne("").any()
    values: dict[str, Any] = {
        **limits.model_dump(),
        "floor_error_rate": floor,
        "half_floor_error_rate": None if floor is None else floor / NUM_TESTS,
        "has_parent": "has_parent" not in tables["bits_per_byte"] or tables["bits_per_byte"]["has_parent"].any(),
        "asks_falls": compares and ("asks_fall" not in comparable or comparable["asks_fall"].any() or len(tables["falls"]) > 0),
        "asks_rises": compares and ("asks_rise" not in comparable or comparable["asks_rise"].any() or len(tables["rises"]) > 0),
        "asks_likelihoods": compares and (len(likelihoods) > 0 or not list(likelihoods)),
        "asks_answers": limits.min_answer_gain_nats is not None and has_parent_answers,
    }
    for name, share in (("max_score_fall_percent", limits.max_score_fall), ("max_score_rise_percent", limits.max_score_rise)):
        values[name] = "any share" if share is None else f"{100 * share:g} %"
    return _build_checks(GATE_SUITE, values)


def _health_checks(thresholds: Mapping[str, Any], tables: Tables) -> tuple[Check, ...]:
    """Build the health checks, with a limit for each measured row.

    Critical: values that are not finite, spikes of the loss, collapsed experts, and missing required columns. Other findings warn: for
    example, clipping limits the harm of gradient norm spikes.
    """
    table = tables["health"]
    values: dict[str, Any] = {**HealthLimits.model_validate(thresholds).model_dump(), "phenomena": sorted(map(str, PHENOMENA))}
    rules = {rule["measure"]: rule for rule in SUITE_DATA["health_measures"]}
    if {"measure", "is_measured"} <= set(table):
        measured = set(table["measure"][table["is_measured"].astype(bool)])
    else:
        measured = {*rules, *OF_GROUPS}
    checks = [*_build_checks(HEALTH_SUITE, values)]
    for measure, rule in rules.items():
        limit, of_groups = _fill(rule["limit"], values), sorted(measured & OF_GROUPS)
        if limit is None or not (of_groups if measure == BY_GROUP else measure in measured):
            continue
        phenomenon = PHENOMENA.get(measure)
        name, described_in = phenomenon or ("{measure}", "{described_in}")
        operator, measures = ("IN", of_groups) if measure == BY_GROUP else ("==", measure)
        condition = {"type": "comparison", "column": {"name": "measure"}, "operator": operator, "parameter": measures}
        checks.append(
            Check(
                table="health",
                expectation=rule["expectation"],
                arguments={"column": "value", "limit": limit, "row_condition": condition},
                severity=rule["severity"],
                asks=rule.get("asks", f"No {name}: {measure} keeps to its limit. {described_in}."),
                what=f"{name}: {{detail}} (described in {described_in})",
                found=f"{{value:.3g}}{rule['unit']}",
                limit=f"at most {limit:g}{rule['unit']}",
                where="step {at_step}",
                what_to_do=rule["what_to_do"],
            )
        )
    return tuple(checks)


def _build_checks(suite: str, values: Mapping[str, Any]) -> tuple[Check, ...]:
    """Fill limits and facts into the checks that `suites.yaml` lists for a suite. `when` names the value that turns a check on."""
    checks: list[Check] = []
    for row in SUITE_DATA[suite]:
        switch = values[row["when"]] if "when" in row else True
        is_on = bool(switch) if isinstance(switch, bool | np.bool_) else switch is not None
        if not is_on:
            continue
        if "rows" in row:
            checks.append(expect_rows(row["rows"], row["what_to_do"]))
            continue
        filled: dict[str, Any] = {name: _fill(value, values) for name, value in row.items() if name != "when"}
        if details := filled.get("details"):
            filled["details"] = Details(**details | {"keys": tuple(details["keys"])})
        if speaks_for := filled.get("speaks_for"):
            filled["speaks_for"] = SpeaksFor(**speaks_for)
        for name in ("accept_by", "narrow_by"):
            filled[name] = tuple(filled.get(name, ()))
        checks.append(Check(**filled))
    return tuple(checks)


def _fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Replace each `${name}`. A text that is only `${name}` becomes the value itself."""
    if isinstance(value, dict):
        return {name: _fill(each, values) for name, each in value.items()}
    if not isinstance(value, str):
        return value
    whole = _VALUE.fullmatch(value)
    if whole and whole[2] is None:
        return values[whole[1]]
    return _VALUE.sub(lambda found: format(values[found[1]], found[2] or ""), value)


def expect_rows(table: str, what_to_do: str) -> Check:
    """Expect at least one row: most expectations pass on an empty table."""
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


_BUILDERS = {DATA_SUITE: _data_checks, HEALTH_SUITE: _health_checks, GATE_SUITE: _gate_checks}
SUITES = {name: Suite(name, checks=checks, **SUITE_DATA["suites"][name]) for name, checks in _BUILDERS.items()}


def checks_of(name: str, thresholds: Mapping[str, Any]) -> tuple[Check, ...]:
    """Return every check that a suite may build for these thresholds, whatever its tables."""
    suite = SUITES[name]
    tables: dict[str, Any] = {table: {} for table in suite.tables}  # as data frames without columns, without the import of pandas
    return suite.checks(thresholds, tables)


def version_of(suite: Suite) -> str:
    """Return the suite's number, and a digest of its checks and of the code that makes its evidence."""
    code = code_digest("validations/expectations/*.py", *(f"validations/evidence/{name}" for name in suite.evidence))
    return f"{suite.number}-{digest_of_json([code, digest_of_file(SUITE_FILE)])[:8]}"
