"""The outcomes of the checks of a verdict, and how many there are of each.

Terminal, Prefect artifact, HTML report, Data Docs and JSON all take their numbers and their words from here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.wording import plural
from phasewise.validations.expectations.judging import Outcome, Reason
from phasewise.validations.expectations.suites import Severity
from phasewise.validations.waivers import AcceptedWarning

Kind = Literal["passed", "accepted", "warned", "failed", "broken"]
Standing = Literal["passed", "warned", "failed"]
KIND_WORDS: Mapping[Kind, str] = {
    "passed": "passed",
    "accepted": "accepted",
    "warned": "warning",
    "failed": "failed",
    "broken": "could not be made",
}
STANDINGS: tuple[Standing, ...] = ("failed", "warned", "passed")
"""The states of a verdict, the one to look at first before the others."""
MARKS: Mapping[Kind, str] = {"passed": "✓", "accepted": "✓", "warned": "!", "failed": "✗", "broken": "✗"}
"""The sign beside the word, so that no colour is needed to read it."""


class AcceptedFinding(Frozen):
    """What a check found and the recipe accepts: the worst case in words, and how many rows are like it."""

    warning: AcceptedWarning
    rows: int = Field(gt=0)
    worst: Reason

    @property
    def sentence(self) -> str:
        """What was found, and why it is accepted."""
        return f"{self.worst.what}. Accepted: {self.warning.reason} ({self.warning.source})"


class CheckOutcome(Frozen):
    """One expectation and its outcome; `broken` could not be made, `accepted` warned only of what the recipe accepts.

    `passes` is whether it found nothing. `accepted` has what the recipe accepts, also where the check warns of something else besides.
    """

    name: str
    table: str
    asks: str
    severity: Severity
    passes: bool
    outcome: Outcome
    observed: str
    accepted: tuple[AcceptedFinding, ...] = ()

    @property
    def kind(self) -> Kind:
        """How it counts. A check that could not be made is no warning, whatever its severity."""
        return "warned" if self.outcome == "failed" and self.severity == "warning" else self.outcome


class CheckCounts(Frozen):
    """How many checks came out how; each check is counted once."""

    passed: int = Field(default=0, ge=0)
    accepted: int = Field(default=0, ge=0)
    warned: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)
    broken: int = Field(default=0, ge=0)

    @property
    def total(self) -> int:
        """All of them."""
        return self.passed + self.accepted + self.warned + self.failed + self.broken

    @property
    def passes(self) -> bool:
        """Nothing failed, nothing is broken, and something was checked at all."""
        return self.total > 0 and not self.failed and not self.broken

    @property
    def standing(self) -> Standing:
        """Whether it fails, passes with something to look at, or passes."""
        if not self.passes:
            return "failed"
        return "warned" if self.warned else "passed"

    @property
    def standing_words(self) -> str:
        """`failed`, `passed with 2 warnings` or `passed`."""
        return f"passed with {plural(self.warned, 'warning')}" if self.standing == "warned" else self.standing

    @property
    def shares(self) -> str:
        """`15 of 18 checks passed, 1 failed, 1 warning, 1 warning accepted by the recipe`."""
        return f"{self.passed:,} of {plural(self.total, 'check')} passed{self._others()}"

    @property
    def words(self) -> str:
        """The standing and all counts: `passed: 17 of 18 checks, 1 warning accepted by the recipe`."""
        if not self.passes:
            return f"failed: {self.shares}"
        return f"{self.standing_words}: {self.passed:,} of {plural(self.total, 'check')}{self._accepted()}"

    def __add__(self, other: "CheckCounts") -> "CheckCounts":
        return CheckCounts(**{name: getattr(self, name) + getattr(other, name) for name in CheckCounts.model_fields})

    def _others(self) -> str:
        failed = f", {self.failed:,} failed" if self.failed else ""
        broken = f", {self.broken:,} could not be made" if self.broken else ""
        warned = f", {plural(self.warned, 'warning')}" if self.warned else ""
        return f"{failed}{broken}{warned}{self._accepted()}"

    def _accepted(self) -> str:
        return f", {plural(self.accepted, 'warning')} accepted by the recipe" if self.accepted else ""


def count_checks(checks: Iterable[CheckOutcome]) -> CheckCounts:
    """How many checks passed, are accepted, warned, failed, and could not be made. Nothing else counts them."""
    kinds = [check.kind for check in checks]
    return CheckCounts(**{kind: kinds.count(kind) for kind in KIND_WORDS})


def verdicts_in_words(verdicts: Sequence[CheckCounts]) -> str:
    """One sentence on several verdicts: `16 of 18 verdicts passed, 1 of them with warnings, 2 failed`."""
    passed = count_passed(verdicts)
    warned = sum(verdict.standing == "warned" for verdict in verdicts)
    with_warnings = f", {warned:,} of them with warnings" if warned else ""
    failed = f", {len(verdicts) - passed:,} failed" if passed < len(verdicts) else ""
    return f"{passed:,} of {plural(len(verdicts), 'verdict')} passed{with_warnings}{failed}"


def count_passed(verdicts: Sequence[CheckCounts]) -> int:
    """How many verdicts pass, with warnings or without."""
    return sum(verdict.passes for verdict in verdicts)


def sum_counts(verdicts: Iterable[CheckCounts]) -> CheckCounts:
    """The checks of several verdicts together."""
    return sum(verdicts, CheckCounts())
