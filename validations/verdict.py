"""Verdicts: what the expectations say of the evidence, with the digests that they judged.

Whoever decides by a verdict reads two of its fields: `passes`, and `judged`, which says of which bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field, ValidationError

from trainer.config import Frozen
from trainer.errors import VerdictError
from trainer.storage import digest_of_json, read_json, write_json
from validations.evidence.evaluation import BENCHMARK, BITS_PER_BYTE, Evaluation, gate_evidence
from validations.evidence.tables import write_tables
from validations.expectations.check import Severity
from validations.expectations.data_suite import DATA_SUITE
from validations.expectations.gate_suite import GATE_SUITE
from validations.expectations.judging import CheckResult, Outcome, judge_tables
from validations.expectations.reasons import Reason, reasons_for
from validations.expectations.suites import SUITE_VERSION, SUITES
from validations.limits import DataLimits, GateLimits


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
        judged: component → digest of the manifest of the cache that was judged; for a gate, checkpoint → digest of its evaluation.
        thresholds: the limits that were measured against.
        reasons: why it fails or warns, the critical ones first.
        checks: every expectation.
        evidence: the folder of the evidence tables.
    """

    subject: str
    suite: str
    suite_version: int = Field(gt=0)
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
    mixture: pd.DataFrame
    leakage: pd.DataFrame
    leaked_items: pd.DataFrame


def judge_data(subject: str, evidence: DataEvidence, *, limits: DataLimits, folder: str | Path) -> Verdict:
    """Judge the caches of a phase, its mixture and its leakage. The evidence tables are written to the folder."""
    tables = {
        "caches": evidence.caches,
        "mixture": evidence.mixture,
        "leakage": evidence.leakage,
        "leaked_items": evidence.leaked_items,
    }
    judged = {} if evidence.caches.empty else dict(zip(evidence.caches["component"], evidence.caches["manifest_digest"], strict=True))
    return _judge(subject, DATA_SUITE, tables, thresholds=limits.model_dump(mode="json"), judged=judged, folder=folder)


def judge_gate(
    subject: str, evaluation: Evaluation, *, parent_evaluation: Evaluation | None, limits: GateLimits, folder: str | Path
) -> Verdict:
    """Judge the evaluation of a phase's last checkpoint, against its parent's where there is one."""
    evidence = gate_evidence(evaluation, parent_evaluation)
    tables = {
        "benchmarks": evidence[evidence["kind"] == BENCHMARK].reset_index(drop=True),
        "bits_per_byte": evidence[evidence["kind"] == BITS_PER_BYTE].reset_index(drop=True),
    }
    judged = {str(evaluation["checkpoint"]): digest_of_json(dict(evaluation))}
    return _judge(subject, GATE_SUITE, tables, thresholds=limits.model_dump(mode="json"), judged=judged, folder=folder)


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
        suite_version=SUITE_VERSION,
        passes=all(_lets_pass(result) for result in results),
        judged=judged,
        thresholds=thresholds,
        reasons=tuple(sorted(reasons, key=lambda reason: reason.severity != "critical")),
        checks=tuple(_outcome(result) for result in results),
        evidence=str(folder),
    )


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
