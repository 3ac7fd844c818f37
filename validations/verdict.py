"""Verdicts: the outcome of the expectations on the evidence, with the digests of the judged data.

Code that acts on a verdict also uses `trainer.base.decision`, the decisions of people, and `judged`, the digests.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, model_validator

from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import NotAsWritten, digest_of_bytes, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.storage import as_path, write_atomically
from phasewise.validations.expectations.judging import CheckResult, Reason, judge_tables, reasons_for
from phasewise.validations.expectations.suites import DATA_SUITE, GATE_SUITE, SUITES, version_of
from phasewise.validations.expectations.waiver_rules import accept, asked_of_suite, told_rows
from phasewise.validations.limits import DataLimits, GateLimits, HealthLimits
from phasewise.validations.outcomes import AcceptedFinding, CheckCounts, CheckOutcome, count_checks
from phasewise.validations.waivers import NOBODY, AcceptedWarning, AsksPeople

if TYPE_CHECKING:
    import pandas as pd

    from phasewise.validations.evidence.parent_comparison import Evaluation


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
    results = [accept(result, tables, accepts) for result in judge_tables(tables, suite.checks(thresholds, tables))]
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
