"""Verdicts: what the expectations say of the evidence, with the digests that they judged.

Whoever decides by a verdict reads two of its fields: `passes`, and `judged`, which says of which bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from trainer.config import Frozen
from trainer.errors import VerdictError
from trainer.storage import digest_of_json, read_json, write_json
from validations.evidence.evaluation import BENCHMARK, BITS_PER_BYTE, Evaluation, gate_evidence
from validations.evidence.tables import write_tables
from validations.expectations.check import Severity
from validations.expectations.data_suite import DATA_SUITE
from validations.expectations.gate_suite import GATE_SUITE
from validations.expectations.health_suite import HEALTH_SUITE
from validations.expectations.judging import CheckResult, Outcome, judge_tables
from validations.expectations.reasons import Reason, reasons_for
from validations.expectations.suites import SUITES, version_of
from validations.limits import DataLimits, GateLimits, HealthLimits


class CheckOutcome(Frozen):
    """One expectation and what came of it; `broken` could not be made."""

    name: str
    table: str
    asks: str
    severity: Severity
    passes: bool
    outcome: Outcome
    observed: str


class Verdict(Frozen):
    """The judgement.

    Attributes:
        subject: what was judged, in words.
        passes: no critical check failed and none is broken.
        suite_version: the suite's number, and a digest of the code of the checks.
        judged: component → digest of the manifest of the cache that was judged; for a gate, which evaluation → its digest; for
            health, what the metrics are of → digest.
        thresholds: the limits that were measured against.
        reasons: why it fails or warns, the critical ones first.
        checks: every expectation.
        evidence: the folder of the evidence tables.
    """

    subject: str
    suite: str
    suite_version: str
    passes: bool
    judged: dict[str, str]
    thresholds: dict[str, Any]
    reasons: tuple[Reason, ...]
    checks: tuple[CheckOutcome, ...]
    evidence: str


@dataclass(frozen=True)
class DataEvidence:
    """The tables that data is judged by; each is made by the function of its name in `validations.evidence`."""

    caches: pd.DataFrame
    differences: pd.DataFrame
    mixture: pd.DataFrame
    leakage: pd.DataFrame
    leaked_items: pd.DataFrame
    order: pd.DataFrame
    shifts: pd.DataFrame
    hand_off: pd.DataFrame


def judge_data(subject: str, evidence: DataEvidence, *, limits: DataLimits, folder: str | Path) -> Verdict:
    """Judge all that is known of a phase's data before it trains. The evidence tables are written to the folder."""
    tables = {name: getattr(evidence, name) for name in SUITES[DATA_SUITE].tables}
    return _judge(subject, DATA_SUITE, tables, thresholds=limits.model_dump(mode="json"), judged=_digests(evidence.caches), folder=folder)


def judge_health(subject: str, table: pd.DataFrame, *, limits: HealthLimits, judged: dict[str, str], folder: str | Path) -> Verdict:
    """Judge how a phase trained.

    Args:
        table: what its metrics were measured for.
        judged: what names the run: its checkpoint, its metrics file → digest.
    """
    return _judge(subject, HEALTH_SUITE, {"health": table}, thresholds=limits.model_dump(mode="json"), judged=judged, folder=folder)


def judge_gate(
    subject: str, evaluation: Evaluation, *, parent_evaluation: Evaluation | None, limits: GateLimits, folder: str | Path
) -> Verdict:
    """Judge the evaluation of a phase's last checkpoint, against its parent's where there is one."""
    evidence = gate_evidence(evaluation, parent_evaluation)
    tables = {
        "benchmarks": evidence[evidence["kind"] == BENCHMARK].reset_index(drop=True),
        "bits_per_byte": evidence[evidence["kind"] == BITS_PER_BYTE].reset_index(drop=True),
    }
    judged = judged_by_gate(evaluation, parent_evaluation)
    return _judge(subject, GATE_SUITE, tables, thresholds=limits.model_dump(mode="json"), judged=judged, folder=folder)


def judged_by_gate(evaluation: Evaluation, parent_evaluation: Evaluation | None) -> dict[str, str]:
    """What a gate's verdict is about: an evaluation, and the one that it is compared with."""
    judged = {"evaluation": digest_of_json(dict(evaluation))}
    return judged if parent_evaluation is None else {**judged, "parent's evaluation": digest_of_json(dict(parent_evaluation))}


def write_verdict(path: str | Path, verdict: Verdict) -> None:
    """Write the verdict as JSON, atomically."""
    write_json(path, verdict.model_dump(mode="json"))


def read_verdict(path: str | Path) -> Verdict:
    """The verdict in the file.

    Raises:
        VerdictError: there is none, or it does not read as one.
    """
    try:
        return Verdict.model_validate(read_json(path))
    except FileNotFoundError:
        raise VerdictError(f"there is no verdict at {path}: judge the data with `phasewise data verify` first.") from None
    except (ValidationError, ValueError) as error:
        raise VerdictError(f"{path} does not read as a verdict: {error}. Delete it and judge again.") from None


def _judge(
    subject: str,
    suite: str,
    tables: Mapping[str, pd.DataFrame],
    *,
    thresholds: dict[str, Any],
    judged: dict[str, str],
    folder: str | Path,
) -> Verdict:
    write_tables(folder, tables)
    results = judge_tables(tables, SUITES[suite].checks(thresholds, tables))
    reasons = [reason for result in results for reason in reasons_for(result, tables)]
    return Verdict(
        subject=subject,
        suite=suite,
        suite_version=version_of(SUITES[suite]),
        passes=all(_lets_pass(result) for result in results),
        judged=judged,
        thresholds=thresholds,
        reasons=tuple(sorted(reasons, key=lambda reason: reason.severity != "critical")),
        checks=tuple(_outcome(result) for result in results),
        evidence=str(folder),
    )


def _digests(caches: pd.DataFrame) -> dict[str, str]:
    """Component → digest of the manifest that was judged; none where the table does not say."""
    if not {"component", "manifest_digest"} <= set(caches):
        return {}
    return dict(zip(caches["component"], caches["manifest_digest"], strict=True))


def _lets_pass(result: CheckResult) -> bool:
    return result.outcome == "passed" or (result.outcome == "failed" and result.check.severity == "warning")


def _outcome(result: CheckResult) -> CheckOutcome:
    return CheckOutcome(
        name=result.name,
        table=result.check.table,
        asks=result.check.asks,
        severity=result.check.severity,
        passes=result.outcome == "passed",
        outcome=result.outcome,
        observed=result.observed,
    )
