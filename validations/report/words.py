"""A verdict in plain words: three lines for the terminal, Markdown for the Prefect UI."""

from trainer.base.storage import as_path
from trainer.base.wording import plural
from validations.outcomes import KIND_WORDS, MARKS, AcceptedFinding
from validations.report.failures import Failure, accepted_of, failures_of
from validations.verdict import Verdict

MAX_CHARACTERS = 240
SHOWN_CASES = 10


def summary_of(verdict: Verdict) -> str:
    """One line: the subject, its state, and how many checks say so."""
    return f"{verdict.subject} {verdict.counts.words}"


def lines_of(verdict: Verdict) -> tuple[str, ...]:
    """What is wrong and where, what was found against which limit, what to do: three lines about the worst failure.

    The last one says how much more there is, how many checks came out how, and where to read it. A verdict without reasons gets one line.
    """
    failures = failures_of(verdict)
    if not failures:
        return (summary_of(verdict),)
    worst = failures[0]
    case = failures[0].worst
    where = "" if case.where in case.what else f" (in {_one_line(case.where)})"
    return (
        f"{_one_line(verdict.subject)} {verdict.counts.standing_words}: {_one_line(case.what)}{where}",
        f"  found: {_one_line(case.found)}; limit: {_one_line(case.limit)}",
        f"  to do: {_one_line(case.what_to_do)} {_rest(worst)}In all, {verdict.counts.shares}. See {place_of(verdict)}",
    )


def notes_of(verdict: Verdict) -> tuple[str, ...]:
    """What a reader must know beside the checks, a line each; none for most verdicts."""
    return tuple(f"  {_whole_line(note)}" for note in verdict.notes)


def place_of(verdict: Verdict) -> str:
    """Where a person reads on: the verdict's own report where it was built, else the folder of its evidence."""
    report = report_folder_of(verdict) + "/index.html"
    return report if as_path(report).exists() else verdict.evidence


def report_folder_of(verdict: Verdict) -> str:
    """Where the report of this one verdict is: beside its evidence."""
    return f"{verdict.evidence.rstrip('/')}/report"


def as_markdown(verdict: Verdict) -> str:
    """The verdict as a page: the failures first, then every check."""
    lines = [f"# {MARKS[verdict.counts.standing]} {_inline(summary_of(verdict))}", ""]
    for failure in failures_of(verdict):
        lines += [*_section(failure), ""]
    if accepted := accepted_of(verdict):
        lines += ["## Accepted by the recipe", "", *map(_accepted, accepted), ""]
    if verdict.notes:
        lines += ["## What the gate could see", "", *(f"- {_escaped(_whole_line(note))}" for note in verdict.notes), ""]
    lines += ["## Every check", "", "| | expected | table | observed |", "|---|---|---|---|"]
    for check in sorted(verdict.checks, key=lambda check: check.passes):
        lines.append(
            f"| {MARKS[check.kind]} {KIND_WORDS[check.kind]} | {_cell(check.asks)} | {_cell(check.table)} | {_cell(check.observed)} |"
        )
    lines += ["", f"Suite {verdict.suite}, version {verdict.suite_version}. Read on in {_code(place_of(verdict))}."]
    return "\n".join(lines)


def _section(failure: Failure) -> list[str]:
    worst = failure.worst
    word = "Could not be made" if failure.is_broken else "Failed" if failure.severity == "critical" else "Warning"
    lines = [
        f"## {word}: {_inline(worst.what)}",
        "",
        f"- **Found:** {_inline(worst.found)}",
        f"- **Limit:** {_inline(worst.limit)}",
        f"- **Where:** {_inline(worst.where)}",
        f"- **What to do:** {_inline(worst.what_to_do)}",
    ]
    if failure.total > 1:
        lines += ["", f"{failure.total:,} such cases. {'The first' if failure.total > SHOWN_CASES else 'The others'}:", ""]
        lines += [f"{number}. {_inline(case.what)}" for number, case in enumerate(failure.cases[1:SHOWN_CASES], start=2)]
    return lines


def _accepted(finding: AcceptedFinding) -> str:
    return f"- {_inline(finding.worst.what)}. **Accepted:** {_inline(finding.warning.reason)} ({_inline(finding.warning.source)})"


def _rest(worst: Failure) -> str:
    more = worst.total - 1
    return f"And {plural(more, 'more case')}. " if more else ""


def _whole_line(text: str) -> str:
    return " ".join(text.split())


def _one_line(text: str) -> str:
    """The text without line breaks, and not so long that nobody reads it."""
    line = _whole_line(text)
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS - 1] + "…"


def _inline(text: str) -> str:
    """Text that Markdown shows as it is: what comes from data is no markup."""
    return _escaped(_one_line(text))


def _escaped(line: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|~&$" else letter for letter in line)


def _cell(text: str) -> str:
    return _inline(text)


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`"
