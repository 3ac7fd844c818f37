"""A verdict in plain words, and text that Markdown shows as it is."""

from phasewise.trainer.base.storage import as_path
from phasewise.trainer.base.wording import plural
from phasewise.validations.outcomes import AcceptedFinding
from phasewise.validations.report.failures import Failure, failures_of
from phasewise.validations.verdict import Verdict

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
    return tuple(f"  {whole_line(note)}" for note in verdict.notes)


def place_of(verdict: Verdict) -> str:
    """Where a person reads on: the verdict's own report where it was built, else the folder of its evidence."""
    report = report_folder_of(verdict) + "/index.html"
    return report if as_path(report).exists() else verdict.evidence


def report_folder_of(verdict: Verdict) -> str:
    """Where the report of this one verdict is: beside its evidence."""
    return f"{verdict.evidence.rstrip('/')}/report"


def accepted_line(finding: AcceptedFinding) -> str:
    """What was found and why the recipe accepts it, as Markdown."""
    return f"- {inline(finding.worst.what)}. **Accepted:** {inline(finding.warning.reason)} ({inline(finding.warning.source)})"


def _rest(worst: Failure) -> str:
    more = worst.total - 1
    return f"And {plural(more, 'more case')}. " if more else ""


def whole_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


def _one_line(text: str) -> str:
    """The text without line breaks, and not so long that nobody reads it."""
    line = whole_line(text)
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS - 1] + "…"


def inline(text: str) -> str:
    """Text that Markdown shows as it is: what comes from data is no markup."""
    return escaped(_one_line(text))


def escaped(line: str) -> str:
    """The line without markup of its own."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|~&$" else letter for letter in line)
