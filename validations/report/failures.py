"""The failures of a verdict in the order in which a person needs them, in plain words. Page, artifact and terminal show the same ones."""

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

from phasewise.trainer.base.storage import as_path
from phasewise.trainer.base.wording import plural
from phasewise.validations.expectations.judging import Reason
from phasewise.validations.expectations.suites import Severity
from phasewise.validations.outcomes import AcceptedFinding, CheckOutcome
from phasewise.validations.verdict import Verdict

MAX_CHARACTERS = 240
SHOWN_CASES = 10
_TOTAL = re.compile(r"\d+ more like these were found, (\d+) in total")


@dataclass(frozen=True)
class Failure:
    """One check that did not pass.

    Attributes:
        asks: the check's expectation; empty if the verdict does not say which check the reasons belong to.
        table: the evidence table that was judged; empty likewise.
        cases: the worst first. There is at least one.
        total: number of such cases; a verdict names only some of them.
    """

    severity: Severity
    is_broken: bool
    asks: str
    table: str
    cases: tuple[Reason, ...]
    total: int

    @property
    def worst(self) -> Reason:
        """The case that is named first."""
        return self.cases[0]


def failures_of(verdict: Verdict) -> tuple[Failure, ...]:
    """The reasons of the verdict, a failure for each check: critical ones before warnings, then in the order of the suite.

    A suite goes from causes to their effects: a stale cache is named before the test items that are still in it.
    """
    groups: dict[str, list[list[Reason]]] = defaultdict(list)
    for name, reasons in groupby(verdict.reasons, key=lambda reason: reason.expectation):
        of_check: list[list[Reason]] = []
        for reason in reasons:  # another check of the same kind begins where the advice changes
            advice = (reason.severity, reason.what_to_do)
            if of_check and (_TOTAL.match(reason.what) or advice == (of_check[-1][0].severity, of_check[-1][0].what_to_do)):
                of_check[-1].append(reason)
            else:
                of_check.append([reason])
        groups[name] += of_check
    placed: list[tuple[bool, int, Failure]] = []
    for name, of_name in groups.items():
        checks = [check for check in verdict.checks if check.name == name and check.kind not in ("passed", "accepted")]
        checks.sort(key=lambda check: check.severity != "critical" and check.outcome != "broken")
        known: list[CheckOutcome | None] = [*checks] if len(checks) == len(of_name) else [None] * len(of_name)
        for reasons, check in zip(of_name, known, strict=True):
            totals = [int(match[1]) for reason in reasons if (match := _TOTAL.match(reason.what))]
            cases = tuple(reason for reason in reasons if not _TOTAL.match(reason.what))
            is_broken = check is not None and check.outcome == "broken"
            asks, table = (check.asks, check.table) if check else ("", "")
            failure = Failure(reasons[0].severity, is_broken, asks, table, cases or tuple(reasons), max([*totals, len(cases)]))
            placed.append((failure.severity != "critical", verdict.reasons.index(reasons[0]), failure))
    return tuple(failure for _, _, failure in sorted(placed, key=lambda one: one[:2]))


def accepted_of(verdict: Verdict) -> tuple[AcceptedFinding, ...]:
    """The findings that the recipe accepts, in the order of the suite."""
    return tuple(finding for check in verdict.checks for finding in check.accepted)


def summary_of(verdict: Verdict) -> str:
    """One line: the subject, its state, and the number of checks."""
    return f"{verdict.subject} {verdict.counts.words}"


def lines_of(verdict: Verdict) -> tuple[str, ...]:
    """Three lines about the worst failure: place and finding, value and limit, remedy with the number of other failures and the report.

    A verdict without reasons has one line.
    """
    failures = failures_of(verdict)
    if not failures:
        return (summary_of(verdict),)
    case, more = failures[0].worst, failures[0].total - 1
    where = "" if case.where in case.what else f" (in {_cut_line(case.where)})"
    rest = f"And {plural(more, 'more case')}. " if more else ""
    return (
        f"{_cut_line(verdict.subject)} {verdict.counts.standing_words}: {_cut_line(case.what)}{where}",
        f"  found: {_cut_line(case.found)}; limit: {_cut_line(case.limit)}",
        f"  to do: {_cut_line(case.what_to_do)} {rest}In all, {verdict.counts.shares}. See {place_of(verdict)}",
    )


def notes_of(verdict: Verdict) -> tuple[str, ...]:
    """The verdict's notes, a line each; most verdicts have none."""
    return tuple(f"  {whole_line(note)}" for note in verdict.notes)


def place_of(verdict: Verdict) -> str:
    """The verdict's own report if it was built, else the folder of its evidence."""
    report = report_folder_of(verdict) + "/index.html"
    return report if as_path(report).exists() else verdict.evidence


def report_folder_of(verdict: Verdict) -> str:
    """The folder of the report of this one verdict, beside its evidence."""
    return f"{verdict.evidence.rstrip('/')}/report"


def whole_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


def _cut_line(text: str) -> str:
    line = whole_line(text)
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS - 1] + "…"


def inline(text: str) -> str:
    """One line of bounded length that Markdown shows as it is: text from data is not markup."""
    return escaped(_cut_line(text))


def escaped(line: str) -> str:
    """The line without markup of its own."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|~&$" else letter for letter in line)
