"""Outcomes of the checks of a verdict and their counts. Terminal, artifact, report, Data Docs and JSON share these numbers and words."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.wording import plural
from phasewise.validations.expectations.judging import Outcome, Reason
from phasewise.validations.expectations.suites import Severity
from phasewise.validations.waivers import AcceptedWarning

Kind = Literal["passed", "accepted", "unmeasured", "warned", "failed", "broken"]
Standing = Literal["passed", "warned", "failed"]
KIND_WORDS: Mapping[Kind, str] = {
    "passed": "passed",
    "accepted": "accepted",
    "unmeasured": "not measurable",
    "warned": "warning",
    "failed": "failed",
    "broken": "could not be made",
}
STANDINGS: tuple[Standing, ...] = ("failed", "warned", "passed")  # states of a verdict, the most urgent first
MARKS: Mapping[Kind, str] = {"passed": "✓", "accepted": "✓", "unmeasured": "–", "warned": "!", "failed": "✗", "broken": "✗"}
"""Signs, for readers who see no colours."""
MEASURABLE = "Whatever the recipe limits could be measured."
"""The check that finds limits without a measurement: a short run has no trend to judge. A finding of it is not a warning."""


class AcceptedFinding(Frozen):
    """A warning that the recipe accepts, with the number of its rows and the worst row."""

    warning: AcceptedWarning
    rows: int = Field(gt=0)
    worst: Reason


class CheckOutcome(Frozen):
    """An expectation and its outcome."""

    name: str
    table: str
    asks: str
    severity: Severity
    passes: bool  # the check found nothing, not even accepted rows
    outcome: Outcome  # `broken`: the check could not run. `accepted`: the check found only rows that the recipe accepts
    observed: str
    accepted: tuple[AcceptedFinding, ...] = ()  # accepted rows. A check may have accepted rows and still warn of other rows

    @property
    def kind(self) -> Kind:
        """The outcome by severity. A broken check is not a warning, whatever its severity."""
        if self.outcome == "failed" and self.severity == "warning":
            return "unmeasured" if self.asks == MEASURABLE else "warned"
        return self.outcome


class CheckCounts(Frozen):
    """Number of checks per outcome. Each check counts once."""

    passed: int = Field(default=0, ge=0)
    accepted: int = Field(default=0, ge=0)
    unmeasured: int = Field(default=0, ge=0)
    warned: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)
    broken: int = Field(default=0, ge=0)

    @property
    def total(self) -> int:
        """Number of checks."""
        return self.passed + self.accepted + self.unmeasured + self.warned + self.failed + self.broken

    @property
    def passes(self) -> bool:
        """Return whether no check failed or is broken, and at least one check ran."""
        return self.total > 0 and not self.failed and not self.broken

    @property
    def standing(self) -> Standing:
        """State of the verdict."""
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
        parts = [f"{self.passed:,} of {plural(self.total, 'check')} passed"]
        parts += [f"{self.failed:,} failed"] if self.failed else []
        parts += [f"{self.broken:,} could not be made"] if self.broken else []
        parts += [plural(self.warned, "warning")] if self.warned else []
        parts += [f"{plural(self.accepted, 'warning')} accepted by the recipe"] if self.accepted else []
        parts += [f"{self.unmeasured:,} not measurable"] if self.unmeasured else []
        return ", ".join(parts)

    @property
    def words(self) -> str:
        """The state and all counts, such as `passed: 17 of 18 checks, 1 warning accepted by the recipe`."""
        if not self.passes:
            return f"failed: {self.shares}"
        accepted = f", {plural(self.accepted, 'warning')} accepted by the recipe" if self.accepted else ""
        unmeasured = f", {self.unmeasured:,} not measurable" if self.unmeasured else ""
        return f"{self.standing_words}: {self.passed:,} of {plural(self.total, 'check')}{accepted}{unmeasured}"


def count_checks(checks: Iterable[CheckOutcome]) -> CheckCounts:
    """Count the checks of one verdict per outcome."""
    kinds = [check.kind for check in checks]
    return CheckCounts(**{kind: kinds.count(kind) for kind in KIND_WORDS})


def verdicts_in_words(verdicts: Sequence[CheckCounts]) -> str:
    """Summarise several verdicts: `16 of 18 verdicts passed, 1 of them with warnings, 2 failed`."""
    passed = sum(verdict.passes for verdict in verdicts)
    warned = sum(verdict.standing == "warned" for verdict in verdicts)
    with_warnings = f", {warned:,} of them with warnings" if warned else ""
    failed = f", {len(verdicts) - passed:,} failed" if passed < len(verdicts) else ""
    return f"{passed:,} of {plural(len(verdicts), 'verdict')} passed{with_warnings}{failed}"


def sum_counts(verdicts: Iterable[CheckCounts]) -> CheckCounts:
    """Add up the checks of several verdicts."""
    every = list(verdicts)
    return CheckCounts(**{name: sum(getattr(verdict, name) for verdict in every) for name in CheckCounts.model_fields})
