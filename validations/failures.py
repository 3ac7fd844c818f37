"""Reports of a verdict in plain words: lines for the terminal, a page of the Prefect UI, and the form of a waiting phase."""

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from phasewise.trainer.base.decision import Ruling, ruling_of
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.base.wording import plural
from phasewise.validations.expectations.judging import CheckResult, Reason, judge_once, reasons_for
from phasewise.validations.expectations.suites import SUITES, Severity
from phasewise.validations.verdict import KIND_WORDS, MARKS, CheckOutcome, Verdict, read_tables

if TYPE_CHECKING:
    import pandas as pd

MAX_CHARACTERS = 240
SHOWN_CASES = 10
MAX_ROWS, MAX_COLUMNS = 10, 6
STATE_WORDS = {
    "passes": "The phase may go on.",
    "approved": "A person let it pass: the phase may go on.",
    "waits": "The phase waits for a person.",
    "rejected": "A person rejected it: the phase is refused.",
    "fails": "The phase is refused.",
}
PARENT = "parent"  # column with the parent's value
_TOTAL = re.compile(r"\d+ more like these were found, (\d+) in total")
_NONE_FAIL = re.compile(r"0 of (\d+) rows fail")
_ESCAPED = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_[]<>#|~&$"})
"""Characters of Markdown."""


@dataclass(frozen=True)
class Failure:
    """One check that did not pass. `asks` and `table` are empty if the verdict does not assign its reasons to checks."""

    severity: Severity
    is_broken: bool
    asks: str
    table: str
    cases: tuple[Reason, ...]  # at least one case, the worst first
    total: int  # number of cases, including cases that the verdict does not list
    is_unmeasured: bool = False  # a limit without a measurement, no warning

    @property
    def worst(self) -> Reason:
        """The first case."""
        return self.cases[0]


def failures_of(verdict: Verdict) -> tuple[Failure, ...]:
    """Group the reasons by check, causes first: critical checks, warnings, limits without a measurement."""
    groups: dict[str, list[list[Reason]]] = defaultdict(list)
    for name, reasons in groupby(verdict.reasons, key=lambda reason: reason.expectation):
        of_check: list[list[Reason]] = []
        for reason in reasons:  # different advice means another check with the same expectation
            advice = (reason.severity, reason.what_to_do)
            if of_check and (_TOTAL.match(reason.what) or advice == (of_check[-1][0].severity, of_check[-1][0].what_to_do)):
                of_check[-1].append(reason)
            else:
                of_check.append([reason])
        groups[name] += of_check
    placed: list[tuple[int, int, Failure]] = []
    for name, of_name in groups.items():
        checks = [check for check in verdict.checks if check.name == name and check.kind not in ("passed", "accepted")]
        checks.sort(key=lambda check: check.severity != "critical" and check.outcome != "broken")
        known: list[CheckOutcome | None] = [*checks] if len(checks) == len(of_name) else [None] * len(of_name)
        for reasons, check in zip(of_name, known, strict=True):
            totals = [int(match[1]) for reason in reasons if (match := _TOTAL.match(reason.what))]
            cases = tuple(reason for reason in reasons if not _TOTAL.match(reason.what))
            is_broken = check is not None and check.outcome == "broken"
            asks, table = (check.asks, check.table) if check else ("", "")
            is_unmeasured = check is not None and check.kind == "unmeasured"
            failure = Failure(
                reasons[0].severity, is_broken, asks, table, cases or tuple(reasons), max([*totals, len(cases)]), is_unmeasured
            )
            placed.append((2 if is_unmeasured else failure.severity != "critical", verdict.reasons.index(reasons[0]), failure))
    return tuple(failure for _, _, failure in sorted(placed, key=lambda entry: entry[:2]))


def lines_of(verdict: Verdict) -> tuple[str, ...]:
    """Return three lines about the worst failure: location and finding, value and limit, remedy and report. A pass has one line."""
    failures = failures_of(verdict)
    if not failures or failures[0].is_unmeasured:
        return (f"{verdict.subject} {verdict.counts.words}",)
    case, more = failures[0].worst, failures[0].total - 1
    where = "" if case.where in case.what else f" (in {_cut_line(case.where)})"
    rest = f"And {plural(more, 'more case')}. " if more else ""
    return (
        f"{_cut_line(verdict.subject)} {verdict.counts.standing_words}: {_cut_line(case.what)}{where}",
        f"  found: {_cut_line(case.found)}; limit: {_cut_line(case.limit)}",
        f"  to do: {_cut_line(case.what_to_do)} {rest}In all, {verdict.counts.shares}. See {_location_of(verdict)}",
    )


def report_folder_of(verdict: Verdict) -> str:
    """Return the folder of the verdict's report, inside its evidence folder."""
    return f"{verdict.evidence.rstrip('/')}/report"


def why_in_a_line(verdict: Verdict) -> str:
    """Return the worst finding with its value and limit as one line."""
    failures = failures_of(verdict)
    if not failures or failures[0].is_unmeasured:
        return f"{verdict.subject} {verdict.counts.words}."
    worst, more = failures[0].worst, len(failures) - 1
    rest = f", and {plural(more, 'more check')} did not pass" if more else ""
    finding = f"{' '.join(worst.what.split())} (found {worst.found}; limit {worst.limit})"
    return f"{verdict.subject} {verdict.counts.standing_words}: {finding}{rest}."


def as_markdown(verdict: Verdict, ruling: Ruling | None = None, page: str | None = None) -> str:
    """Return the verdict as Markdown: state, checks that did not pass with values and rows, every check. `page`: an address."""
    from phasewise.validations.reevaluate import as_text  # pandas is slow to import

    ruling = ruling or ruling_of(verdict.model_dump(mode="json"), None)
    measures, failures, counts = _measures_of(verdict), failures_of(verdict), verdict.counts
    worst = f" {_inline(failures[0].worst.what)}." if failures else ""
    title = _inline(f"{verdict.subject} {counts.words}")
    lines = [f"# {MARKS[counts.standing]} {title}", "", f"**{STATE_WORDS[ruling.state]}**{worst}", ""]
    if ruling.decision:
        lines += [f"{_inline(ruling.decision.words[:1].upper() + ruling.decision.words[1:])}", ""]
    if ruling.void:
        lines += [_inline(ruling.void), ""]
    if page:
        lines += [f"[This verdict with all its evidence]({page})", ""]
    for failure in failures:
        mine = next((one for one in measures if (one.check.table, one.check.asks) == (failure.table, failure.asks)), None)
        word = (
            "Not measurable"
            if failure.is_unmeasured
            else "Could not be made"
            if failure.is_broken
            else "Failed"
            if failure.severity == "critical"
            else "Warning"
        )
        case = failure.worst
        lines += [f"## {word}: {_inline(case.what)}", "", f"- **Found:** {_inline(case.found)}", f"- **Limit:** {_inline(case.limit)}"]
        lines += [f"- **Parent's value:** {_inline(mine.parent)}"] if mine and mine.parent else []
        lines += [f"- **Where:** {_inline(case.where)}", f"- **What to do:** {_inline(case.what_to_do)}"]
        if failure.total > 1:
            lines += ["", f"{failure.total:,} such cases. {'The first' if failure.total > SHOWN_CASES else 'The others'}:", ""]
            lines += [f"{number}. {_inline(other.what)}" for number, other in enumerate(failure.cases[1:SHOWN_CASES], start=2)]
        if mine and mine.rows is not None and len(mine.rows):
            failing = [[_inline(as_text(cell)) for cell in row] for row in mine.rows.itertuples(index=False)]
            head = [_inline(str(name)) for name in mine.rows.columns]
            lines += ["", f"Rows of {failure.table} that fail ({mine.failing:,}):", "", *_table(head, failing)]
        lines.append("")
    if accepted := [finding for check in verdict.checks for finding in check.accepted]:
        lines += ["## Accepted by the recipe", ""]
        for finding in accepted:
            warning = finding.warning
            lines.append(f"- {_inline(finding.worst.what)}. **Accepted:** {_inline(warning.reason)} ({_inline(warning.source)})")
        lines.append("")
    if verdict.notes:
        lines += ["## What the gate could see", "", *(f"- {' '.join(note.split()).translate(_ESCAPED)}" for note in verdict.notes), ""]
    rows: list[list[str]] = []
    for one in sorted(measures, key=lambda one: one.check.passes):
        cells = (one.check.asks, one.value, one.limit, one.parent)
        rows.append([f"{MARKS[one.check.kind]} {KIND_WORDS[one.check.kind]}", *(_inline(text) or "–" for text in cells)])
    width = 5 if any(one.parent for one in measures) else 4
    head = ["", "expected", "found", "limit", "parent"]
    lines += ["## Every check", "", *_table(head[:width], [row[:width] for row in rows])]
    location = _location_of(verdict).replace("`", "")
    return "\n".join([*lines, "", f"Suite {verdict.suite}, version {verdict.suite_version}. Read on in `{location}`."])


def form_of(verdict: Verdict, *, page: str | None, command: str) -> str:
    """Return the Markdown above the form of a decision. `command` decides in a terminal. The form is too narrow for tables."""
    lines = [f"**{_inline(verdict.subject)} {verdict.counts.standing_words}.** The phase waits for you.", ""]
    measures = {(one.check.table, one.check.asks): one for one in _measures_of(verdict)}
    for failure in failures_of(verdict):
        worst, measure = failure.worst, measures.get((failure.table, failure.asks))
        parent = f"; parent: {_inline(measure.parent)}" if measure and measure.parent else ""
        lines.append(f"- {_inline(worst.what)}. Found: {_inline(worst.found)}; limit: {_inline(worst.limit)}{parent}")
    if page:
        lines += ["", f"[The verdict with all its evidence]({page})"]
    return "\n".join([*lines, "", command])


@dataclass(frozen=True)
class _Measure:
    """A check with the value of its worst row. The texts are empty if the check measures no number."""

    check: CheckOutcome
    value: str
    limit: str = ""
    parent: str = ""
    rows: "pd.DataFrame | None" = None
    failing: int = 0


def _measures_of(verdict: Verdict) -> list[_Measure]:
    """Measure each check in the verdict's order, without numbers if the evidence is missing or cannot be judged again."""
    import numpy as np
    import pandas as pd  # slow to import

    from phasewise.validations.reevaluate import as_text

    suite = SUITES.get(verdict.suite)
    tables: dict[str, pd.DataFrame] = {}
    found: dict[tuple[str, str, str], CheckResult] = {}
    for name in suite.tables if suite else ():
        with suppress(OSError, ValueError, KeyError):
            tables |= read_tables(verdict.evidence, {name: verdict.tables[name]})
    if suite and len(tables) == len(suite.tables):
        with suppress(Exception):  # an older verdict may lack any field
            results = judge_once(suite, tables, verdict.tables, verdict.thresholds, anew=False)
            found = {(result.check.table, result.name, result.check.asks): result for result in results}
    measures: list[_Measure] = []
    for check in verdict.checks:
        match = _NONE_FAIL.fullmatch(check.observed)
        observed = f"holds in {match[1]} of {match[1]} rows" if match else check.observed
        result = found.get((check.table, check.name, check.asks))
        if result is None:
            measures.append(_Measure(check, observed))
            continue
        table = tables[check.table].reset_index(drop=True)
        failing = table.iloc[list(result.failing_rows)]
        arguments, value, limit, row = result.check.arguments, "", "", None
        rows, column = failing if len(failing) else table, arguments.get("column")
        if column in rows and len(rows):  # the row nearest to the limit, or farthest beyond it
            numbers = pd.to_numeric(rows[column], errors="coerce").to_numpy()
            worst = 0 if np.isnan(numbers).all() else int(np.nanargmin(numbers) if "floor" in arguments else np.nanargmax(numbers))
            row = rows.iloc[worst]
        bounds = [(word, arguments[name]) for name, word in (("limit", "at most"), ("floor", "above")) if name in arguments]
        if row is not None and bounds:
            word, bound = bounds[0]
            value, limit = as_text(row[str(column)]), "no limit" if bound is None else f"{word} {as_text(bound)}"
        if reasons := reasons_for(result, tables):
            value, limit = reasons[0].found, reasons[0].limit
        parent = as_text(row[PARENT]) if row is not None and PARENT in row and pd.api.types.is_number(row[PARENT]) else ""
        # First the columns that the check's texts name, then the measured column
        names = [str(name) for name in failing.columns]
        words = " ".join((result.check.what, result.check.found, result.check.where))
        named = [name for name in names if f"{{{name}" in words and name != column]
        measured = [name for name in names if name == column]
        shown = failing[list(dict.fromkeys([*named, *measured, *names]))[:MAX_COLUMNS]].head(MAX_ROWS)
        measures.append(_Measure(check, value or observed, limit, parent, shown, len(failing)))
    return measures


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]


def _location_of(verdict: Verdict) -> str:
    """Return the verdict's report if it was built, else its evidence folder."""
    report = report_folder_of(verdict) + "/index.html"
    return report if as_path(report).exists() else verdict.evidence


def _cut_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS - 1] + "…"


def _inline(text: str) -> str:
    """Return one line of bounded length that Markdown shows unchanged: text from data is not markup."""
    return _cut_line(text).translate(_ESCAPED)
