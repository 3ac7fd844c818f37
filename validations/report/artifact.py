"""A verdict as a page of the Prefect UI, with value, limit and parent's value of each check, and as the form of a phase that waits."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phasewise.trainer.base.decision import Ruling, ruling_of
from phasewise.trainer.base.wording import plural
from phasewise.validations.expectations.judging import CheckResult, judge_tables, reasons_for
from phasewise.validations.expectations.suites import SUITES, Check
from phasewise.validations.outcomes import KIND_WORDS, MARKS, CheckOutcome
from phasewise.validations.report.failures import (
    SHOWN_CASES,
    Failure,
    accepted_of,
    escaped,
    failures_of,
    inline,
    place_of,
    summary_of,
    whole_line,
)
from phasewise.validations.report.judged_again import as_text
from phasewise.validations.verdict import Verdict, read_tables

STATE_WORDS = {
    "passes": "The phase may go on.",
    "approved": "A person let it pass: the phase may go on.",
    "waits": "The phase waits for a person.",
    "rejected": "A person rejected it: the phase is refused.",
    "fails": "The phase is refused.",
}
MAX_ROWS, MAX_COLUMNS = 10, 6
NONE_FAIL = re.compile(r"0 of (\d+) rows fail")
PARENT = "parent"
"""The column with the parent's value, in tables that have one."""


def as_markdown(verdict: Verdict, ruling: Ruling | None = None, page: str | None = None) -> str:
    """The verdict in words first, then each check that did not pass with value, limit, the parent's value and its rows; then all checks.

    Args:
        ruling: on the verdict; None is the one of its checks alone.
        page: the address of the verdict on the page beside Prefect's UI; None is no link.
    """
    ruling = ruling or ruling_of(verdict.model_dump(mode="json"), None)
    measures, failures = measures_of(verdict), failures_of(verdict)
    worst = f" {inline(failures[0].worst.what)}." if failures else ""
    lines = [f"# {MARKS[verdict.counts.standing]} {inline(summary_of(verdict))}", "", f"**{STATE_WORDS[ruling.state]}**{worst}", ""]
    if ruling.decision:
        lines += [f"{inline(ruling.decision.words[:1].upper() + ruling.decision.words[1:])}", ""]
    if ruling.void:
        lines += [inline(ruling.void), ""]
    if page:
        lines += [f"[This verdict with all its evidence]({page})", ""]
    for failure in failures:
        lines += [*_section(failure, measures), ""]
    if accepted := accepted_of(verdict):
        lines += ["## Accepted by the recipe", ""]
        lines += [
            f"- {inline(one.worst.what)}. **Accepted:** {inline(one.warning.reason)} ({inline(one.warning.source)})" for one in accepted
        ]
        lines += [""]
    if verdict.notes:
        lines += ["## What the gate could see", "", *(f"- {escaped(whole_line(note))}" for note in verdict.notes), ""]
    lines += ["## Every check", "", *_check_table(sorted(measures, key=lambda one: one.check.passes))]
    lines += ["", f"Suite {verdict.suite}, version {verdict.suite_version}. Read on in `{place_of(verdict).replace('`', '')}`."]
    return "\n".join(lines)


def why_in_a_line(verdict: Verdict) -> str:
    """The worst finding with its value and the limit, in a line."""
    failures = failures_of(verdict)
    if not failures:
        return f"{verdict.subject} {verdict.counts.words}."
    worst, more = failures[0].worst, len(failures) - 1
    rest = f", and {plural(more, 'more check')} did not pass" if more else ""
    return f"{verdict.subject} {verdict.counts.standing_words}: {whole_line(worst.what)} (found {worst.found}; limit {worst.limit}){rest}."


def form_of(verdict: Verdict, *, page: str | None, command: str) -> str:
    """Markdown above the form of a decision; a form is narrow, so there is no table.

    Args:
        command: the command that decides in a terminal, as Markdown.
    """
    lines = [f"**{inline(verdict.subject)} {verdict.counts.standing_words}.** The phase waits for you.", ""]
    measures = {(one.check.table, one.check.asks): one for one in measures_of(verdict)}
    for failure in failures_of(verdict):
        worst, measure = failure.worst, measures.get((failure.table, failure.asks))
        parent = f"; parent: {inline(measure.parent)}" if measure and measure.parent else ""
        lines.append(f"- {inline(worst.what)}. Found: {inline(worst.found)}; limit: {inline(worst.limit)}{parent}")
    if page:
        lines += ["", f"[The verdict with all its evidence]({page})"]
    return "\n".join([*lines, "", command])


@dataclass(frozen=True)
class Measure:
    """One check with the value of its worst row; empty if it measures no number.

    Attributes:
        rows: its failing rows, the first few.
        failing: number of failing rows.
    """

    check: CheckOutcome
    value: str
    limit: str = ""
    parent: str = ""
    rows: pd.DataFrame | None = None
    failing: int = 0


def measures_of(verdict: Verdict) -> list[Measure]:
    """The measure of each check, in the order of the verdict; without numbers if the evidence is gone or cannot be judged again."""
    suite = SUITES.get(verdict.suite)
    tables: dict[str, pd.DataFrame] = {}
    found: dict[tuple[str, str, str], CheckResult] = {}
    for name in suite.tables if suite else ():
        with suppress(OSError, ValueError, KeyError):
            tables |= read_tables(verdict.evidence, {name: verdict.tables[name]})
    if suite and len(tables) == len(suite.tables):
        with suppress(Exception):  # whatever an older verdict lacks
            results = judge_tables(tables, suite.checks(verdict.thresholds, tables))
            found = {(one.check.table, one.name, one.check.asks): one for one in results}
    return [_measure(check, found.get((check.table, check.name, check.asks)), tables) for check in verdict.checks]


def _measure(check: CheckOutcome, result: CheckResult | None, tables: Mapping[str, pd.DataFrame]) -> Measure:
    match = NONE_FAIL.fullmatch(check.observed)
    observed = f"holds in {match[1]} of {match[1]} rows" if match else check.observed
    if result is None:
        return Measure(check, observed)
    table = tables[check.table].reset_index(drop=True)
    failing = table.iloc[list(result.failing_rows)]
    arguments, value, limit = result.check.arguments, "", ""
    row = _worst_row(result.check, failing if len(failing) else table)
    bounds = [(word, arguments[name]) for name, word in (("limit", "at most"), ("floor", "above")) if name in arguments]
    if row is not None and bounds:
        word, bound = bounds[0]
        value, limit = as_text(row[arguments["column"]]), "no limit" if bound is None else f"{word} {as_text(bound)}"
    if reasons := reasons_for(result, tables):
        value, limit = reasons[0].found, reasons[0].limit
    parent = as_text(row[PARENT]) if row is not None and PARENT in row and pd.api.types.is_number(row[PARENT]) else ""
    return Measure(check, value or observed, limit, parent, _shown(result.check, failing), len(failing))


def _worst_row(check: Check, rows: pd.DataFrame) -> pd.Series | None:
    """The row nearest to the limit, or farthest beyond it."""
    column = check.arguments.get("column")
    if column not in rows or not len(rows):
        return None
    numbers = pd.to_numeric(rows[column], errors="coerce").to_numpy()
    if np.isnan(numbers).all():
        return rows.iloc[0]
    return rows.iloc[int(np.nanargmin(numbers) if "floor" in check.arguments else np.nanargmax(numbers))]


def _shown(check: Check, failing: pd.DataFrame) -> pd.DataFrame:
    """The first failing rows: the columns that the check names first, then the measured one, then the others."""
    names = [str(name) for name in failing.columns]
    measured = [name for name in names if name == check.arguments.get("column")]
    words = " ".join((check.what, check.found, check.where))
    named = [name for name in names if f"{{{name}" in words and name not in measured]
    return failing[list(dict.fromkeys([*named, *measured, *names]))[:MAX_COLUMNS]].head(MAX_ROWS)


def _section(failure: Failure, measures: Sequence[Measure]) -> list[str]:
    worst = failure.worst
    word = "Could not be made" if failure.is_broken else "Failed" if failure.severity == "critical" else "Warning"
    mine = next((one for one in measures if (one.check.table, one.check.asks) == (failure.table, failure.asks)), None)
    lines = [f"## {word}: {inline(worst.what)}", "", f"- **Found:** {inline(worst.found)}", f"- **Limit:** {inline(worst.limit)}"]
    lines += [f"- **Parent's value:** {inline(mine.parent)}"] if mine and mine.parent else []
    lines += [f"- **Where:** {inline(worst.where)}", f"- **What to do:** {inline(worst.what_to_do)}"]
    if failure.total > 1:
        lines += ["", f"{failure.total:,} such cases. {'The first' if failure.total > SHOWN_CASES else 'The others'}:", ""]
        lines += [f"{number}. {inline(case.what)}" for number, case in enumerate(failure.cases[1:SHOWN_CASES], start=2)]
    if mine and mine.rows is not None and len(mine.rows):
        rows = [[inline(as_text(cell)) for cell in row] for row in mine.rows.itertuples(index=False)]
        head = [inline(str(name)) for name in mine.rows.columns]
        lines += ["", f"Rows of {failure.table} that fail ({mine.failing:,}):", "", *_table(head, rows)]
    return lines


def _check_table(measures: Sequence[Measure]) -> list[str]:
    head = ["", "expected", "found", "limit", "parent"]
    rows = [
        [
            f"{MARKS[one.check.kind]} {KIND_WORDS[one.check.kind]}",
            *(inline(text) or "–" for text in (one.check.asks, one.value, one.limit, one.parent)),
        ]
        for one in measures
    ]
    width = 5 if any(one.parent for one in measures) else 4
    return _table(head[:width], [row[:width] for row in rows])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
