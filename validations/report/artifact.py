"""A verdict as a page of the Prefect UI, and as the form of a phase that waits for a person."""

from collections.abc import Sequence

import pandas as pd

from phasewise.trainer.base.decision import Ruling, ruling_of
from phasewise.trainer.base.wording import plural
from phasewise.validations.outcomes import KIND_WORDS, MARKS
from phasewise.validations.report.evidence import as_text
from phasewise.validations.report.failures import Failure, accepted_of, failures_of
from phasewise.validations.report.measures import Measure, measures_of
from phasewise.validations.report.words import SHOWN_CASES, accepted_line, escaped, inline, place_of, summary_of, whole_line
from phasewise.validations.verdict import Verdict

STATE_WORDS = {
    "passes": "The phase may go on.",
    "approved": "A person let it pass: the phase may go on.",
    "waits": "The phase waits for a person.",
    "rejected": "A person rejected it: the phase is refused.",
    "fails": "The phase is refused.",
}


def as_markdown(verdict: Verdict, ruling: Ruling | None = None, page: str | None = None) -> str:
    """The verdict in words first, then each check that did not pass with value, limit, the parent's value and its rows; then all checks.

    Args:
        ruling: what follows from it; without it, as nobody had decided.
        page: the address of the verdict on the page beside Prefect's UI; None is no link.
    """
    ruling = ruling or ruling_of(verdict.model_dump(mode="json"), None)
    measures = measures_of(verdict)
    lines = [f"# {MARKS[verdict.counts.standing]} {inline(summary_of(verdict))}", ""]
    lines += [f"**{STATE_WORDS[ruling.state]}** {_worst(verdict)}".rstrip(), ""]
    if ruling.decision:
        lines += [f"{inline(ruling.decision.words[:1].upper() + ruling.decision.words[1:])}", ""]
    if ruling.void:
        lines += [inline(ruling.void), ""]
    if page:
        lines += [f"[This verdict with all its evidence]({page})", ""]
    for failure in failures_of(verdict):
        lines += [*_section(failure, measures), ""]
    if accepted := accepted_of(verdict):
        lines += ["## Accepted by the recipe", "", *map(accepted_line, accepted), ""]
    if verdict.notes:
        lines += ["## What the gate could see", "", *(f"- {escaped(whole_line(note))}" for note in verdict.notes), ""]
    lines += _all_checks(measures)
    lines += ["", f"Suite {verdict.suite}, version {verdict.suite_version}. Read on in `{place_of(verdict).replace('`', '')}`."]
    return "\n".join(lines)


def why_in_a_line(verdict: Verdict) -> str:
    """The worst finding with what was found and the limit, in a line."""
    failures = failures_of(verdict)
    if not failures:
        return f"{verdict.subject} {verdict.counts.words}."
    worst, more = failures[0].worst, len(failures) - 1
    rest = f", and {plural(more, 'more check')} did not pass" if more else ""
    return f"{verdict.subject} {verdict.counts.standing_words}: {whole_line(worst.what)} (found {worst.found}; limit {worst.limit}){rest}."


def form_of(verdict: Verdict, *, page: str | None, command: str) -> str:
    """What is above the form that decides, as Markdown; a form is narrow, so there is no table.

    Args:
        command: what decides in a terminal, as Markdown.
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


def _worst(verdict: Verdict) -> str:
    failures = failures_of(verdict)
    return f"{inline(failures[0].worst.what)}." if failures else ""


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
    if mine and len(mine.rows):
        lines += ["", f"Rows of {failure.table} that fail ({mine.failing:,}):", "", *_table(mine.rows)]
    return lines


def _all_checks(measures: Sequence[Measure]) -> list[str]:
    in_order = sorted(measures, key=lambda one: one.check.passes)
    return ["## Every check", "", *_check_table(in_order)]


def _check_table(measures: Sequence[Measure]) -> list[str]:
    has_parent = any(one.parent for one in measures)
    parent_head, parent_line = (" parent |", "---|") if has_parent else ("", "")
    lines = [f"| | expected | found | limit |{parent_head}", f"|---|---|---|---|{parent_line}"]
    for one in measures:
        parent = f" {inline(one.parent) or '–'} |" if has_parent else ""
        sign = f"{MARKS[one.check.kind]} {KIND_WORDS[one.check.kind]}"
        lines.append(f"| {sign} | {inline(one.check.asks)} | {inline(one.value)} | {inline(one.limit) or '–'} |{parent}")
    return lines


def _table(rows: pd.DataFrame) -> list[str]:
    lines = [f"| {' | '.join(inline(str(name)) for name in rows.columns)} |", "|" + "---|" * rows.shape[1]]
    return [*lines, *(f"| {' | '.join(inline(as_text(cell)) for cell in row)} |" for row in rows.itertuples(index=False))]
