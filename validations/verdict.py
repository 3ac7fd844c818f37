"""Verdicts: the outcome of the expectations on the evidence, with the digests of the judged data.

Code that acts on a verdict also uses `trainer.base.decision`, the decisions of people, and `judged`, the digests. Terminal, artifact,
report, Data Docs and JSON share the counts and words of outcomes.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, model_validator

from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import NotAsWritten, digest_of_bytes, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.storage import as_path, write_atomically
from phasewise.trainer.base.wording import plural
from phasewise.validations.expectations.judging import CheckResult, Outcome, Reason, judge_once, reasons_for
from phasewise.validations.expectations.suites import DATA_SUITE, GATE_SUITE, SUITES, Severity, version_of
from phasewise.validations.expectations.waiver_rules import accept, asked_of_suite, told_rows
from phasewise.validations.limits import NOBODY, AcceptedWarning, AsksPeople, DataLimits, GateLimits, HealthLimits

if TYPE_CHECKING:
    import pandas as pd

    from phasewise.validations.evidence.parent_comparison import Evaluation

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


def write_tables(folder: str | Path, tables: Mapping[str, "pd.DataFrame"]) -> dict[str, str]:
    """Write each table as `{name}.parquet` under a folder or fsspec URL. Return name → digest of the file."""
    digests: dict[str, str] = {}
    for name, table in tables.items():
        content = io.BytesIO()
        table.to_parquet(content, index=False)
        write_atomically(f"{str(folder).rstrip('/')}/{name}.parquet", content.getvalue())
        digests[name] = digest_of_bytes(content.getvalue())
    return digests


def read_tables(folder: str | Path, digests: Mapping[str, str]) -> dict[str, "pd.DataFrame"]:
    """Read tables by name, with the digests of their verdict. A changed table raises `NotAsWritten`."""
    import pandas as pd  # slow to import

    tables: dict[str, pd.DataFrame] = {}
    for name, digest in digests.items():
        url = f"{str(folder).rstrip('/')}/{name}.parquet"
        content = as_path(url).read_bytes()
        if digest_of_bytes(content) != digest:
            raise NotAsWritten(f"{url} was changed after it was judged: judge again")
        tables[name] = pd.read_parquet(io.BytesIO(content))
    return tables


class Verdict(Frozen):
    """A judgement by one suite."""

    subject: str
    suite: str
    suite_version: str  # number of the suite, and a digest of the code of its checks and of its evidence
    passes: bool  # no critical check failed and no check is broken
    judged: dict[str, str]  # digests of the judged objects: manifests by component, evaluations of a gate, checkpoint and metrics of a run
    decided_by: dict[str, str] = Field(default={})
    """Digests of other inputs of the evidence, such as the order of the rows and the test items."""
    thresholds: dict[str, Any]
    accepts: tuple[AcceptedWarning, ...] = ()  # warnings of this suite that the recipe accepts in this phase
    asks_people: AsksPeople = NOBODY
    reasons: tuple[Reason, ...]  # failures and warnings, critical reasons first. Accepted findings are in `checks`
    checks: tuple[CheckOutcome, ...]
    evidence: str  # folder of the evidence tables
    tables: dict[str, str] = Field(default={})  # name of a table → digest of its file
    notes: tuple[str, ...] = ()  # remarks for readers. The notes of a gate name the smallest effects that its tests can detect

    @property
    def counts(self) -> CheckCounts:
        """Number of checks per outcome."""
        return count_checks(self.checks)

    @model_validator(mode="after")
    def _agrees_with_checks(self) -> "Verdict":
        if self.checks and self.passes != self.counts.passes:
            raise ValueError(f"passes: expected {self.counts.passes} from its checks ({self.counts.words}), found {self.passes}")
        return self


@dataclass(frozen=True)
class DataEvidence:
    """Evidence tables of the data suite. `validations.evidence` has a function per table."""

    caches: "pd.DataFrame"
    differences: "pd.DataFrame"
    mixture: "pd.DataFrame"
    leakage: "pd.DataFrame"
    leaked_items: "pd.DataFrame"
    order: "pd.DataFrame"
    shifts: "pd.DataFrame"
    packing: "pd.DataFrame"
    hand_off: "pd.DataFrame"


def judge_data(
    subject: str,
    evidence: DataEvidence,
    *,
    limits: DataLimits,
    folder: str | Path,
    decided_by: Mapping[str, str] = MappingProxyType({}),
    accepts: Sequence[AcceptedWarning] = (),
    asks_people: AsksPeople = NOBODY,
) -> Verdict:
    """Judge the data of a phase before training, and write the tables to `folder`. `decided_by`: digests of further inputs."""
    tables = {name: getattr(evidence, name) for name in SUITES[DATA_SUITE].tables}
    caches, judged = evidence.caches, dict[str, str]()
    if {"component", "manifest_digest"} <= set(caches):
        judged = dict(zip(caches["component"], caches["manifest_digest"], strict=True))
    verdict = judge_suite(DATA_SUITE, subject, tables, limits, accepts, asks_people, judged=judged, folder=folder)
    return verdict.model_copy(update={"decided_by": dict(decided_by)})


def judge_gate(
    subject: str,
    evaluation: "Evaluation",
    *,
    parent_evaluation: "Evaluation | None",
    limits: GateLimits,
    folder: str | Path,
    accepts: Sequence[AcceptedWarning] = (),
    asks_people: AsksPeople = NOBODY,
) -> Verdict:
    """Judge the evaluation of a phase's last checkpoint, against the parent's if the phase has a parent."""
    from phasewise.validations.evidence.gate import gate_notes, gate_tables  # pandas and SciPy are slow to import

    tables = gate_tables(evaluation, parent_evaluation, limits)
    judged = judged_by_gate(evaluation, parent_evaluation)
    verdict = judge_suite(GATE_SUITE, subject, tables, limits, accepts, asks_people, judged=judged, folder=folder)
    return verdict.model_copy(update={"notes": gate_notes(tables, asks_floor=limits.must_beat_baseline)})


def judge_suite(
    name: str,
    subject: str,
    tables: Mapping[str, "pd.DataFrame"],
    limits: DataLimits | HealthLimits | GateLimits,
    accepts: Sequence[AcceptedWarning],
    asks_people: AsksPeople,
    *,
    judged: dict[str, str],
    folder: str | Path,
) -> Verdict:
    """Judge the tables of a suite, and write them to the folder. `judged`: judged object, such as a metrics file → digest."""
    digests, suite, thresholds = write_tables(folder, tables), SUITES[name], limits.model_dump(mode="json")
    accepts = accepted_by(name, accepts)
    results = [accept(result, tables, accepts) for result in judge_once(suite, tables, digests, thresholds, anew=True)]
    reasons = [reason for result in results for reason in reasons_for(result, tables)]
    checks = tuple(outcome_of(result, tables) for result in results)
    return Verdict(
        subject=subject,
        suite=name,
        suite_version=version_of(suite),
        passes=count_checks(checks).passes,
        judged=judged,
        thresholds=thresholds,
        accepts=accepts,
        asks_people=asked_of_suite(asks_people, name),
        reasons=tuple(sorted(reasons, key=lambda reason: reason.severity != "critical")),
        checks=checks,
        evidence=str(folder),
        tables=digests,
    )


def outcome_of(result: CheckResult, tables: Mapping[str, "pd.DataFrame"]) -> CheckOutcome:
    """Summarise a result for its verdict. Accepted rows are described as if the recipe did not accept them."""
    check = result.check
    findings: list[AcceptedFinding] = []
    for accepted in result.accepted:
        rows = told_rows(check, tables[check.table], accepted.rows)
        reasons = reasons_for(replace(result, outcome="failed", failing_rows=rows, accepted=()), tables)
        findings.append(AcceptedFinding(warning=accepted.warning, rows=len(accepted.rows), worst=reasons[0]))
    return CheckOutcome(
        name=result.name,
        table=check.table,
        asks=check.asks,
        severity=check.severity,
        passes=result.outcome == "passed",
        outcome=result.outcome,
        observed=result.observed,
        accepted=tuple(findings),
    )


def accepted_by(suite: str, accepts: Sequence[AcceptedWarning]) -> tuple[AcceptedWarning, ...]:
    """Select the accepted warnings on the tables of a suite."""
    return tuple(warning for warning in accepts if warning.table in SUITES[suite].tables)


def unused_of(verdicts: Iterable[Verdict]) -> tuple[AcceptedWarning, ...]:
    """List the accepted warnings that these verdicts never found."""
    expected: list[AcceptedWarning] = []
    found: list[AcceptedWarning] = []
    for verdict in verdicts:
        expected += [warning for warning in verdict.accepts if warning not in expected]
        found += [finding.warning for check in verdict.checks for finding in check.accepted]
    return tuple(warning for warning in expected if warning not in found)


def judged_by_gate(evaluation: "Evaluation", parent_evaluation: "Evaluation | None") -> dict[str, str]:
    """Return the digests that a gate's verdict is about."""
    judged = {"evaluation": digest_of_json(dict(evaluation))}
    return judged if parent_evaluation is None else {**judged, "parent's evaluation": digest_of_json(dict(parent_evaluation))}


def write_verdict(path: str | Path, verdict: Verdict) -> None:
    """Write the verdict as sealed JSON, atomically."""
    write_sealed(path, verdict.model_dump(mode="json"))


def read_verdict(path: str | Path) -> Verdict:
    """Read a sealed verdict. Raises VerdictError if the file is missing, invalid, or changed after it was written."""
    try:
        return Verdict.model_validate(read_sealed(path))
    except FileNotFoundError:
        raise VerdictError(f"there is no verdict at {path}: judge the data with `phasewise data verify` first.") from None
    except (ValidationError, ValueError) as error:
        raise VerdictError(f"{path} does not read as a verdict: {in_one_line(error)}. Delete it and judge again.") from None
