"""Verdicts: what the expectations say of the evidence, with the digests that they judged.

Code that decides by a verdict asks `trainer.base.decision`, which knows what people decided of it, and `judged`, which says of which bytes.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from pydantic import Field, ValidationError, model_validator

from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import NotAsWritten, digest_of_bytes, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.storage import as_path, write_atomically
from phasewise.validations.evidence.comparable import Evaluation
from phasewise.validations.evidence.gate import gate_tables
from phasewise.validations.expectations.gate_notes import gate_notes
from phasewise.validations.expectations.judging import AcceptedRows, CheckResult, Reason, judge_tables, reasons_for
from phasewise.validations.expectations.suites import DATA_SUITE, GATE_SUITE, HEALTH_SUITE, SUITES, version_of
from phasewise.validations.expectations.waiver_rules import accept, asked_of_suite, told_rows
from phasewise.validations.limits import DataLimits, GateLimits, HealthLimits
from phasewise.validations.outcomes import AcceptedFinding, CheckCounts, CheckOutcome, count_checks
from phasewise.validations.waivers import NOBODY, AcceptedWarning, AsksPeople


def write_tables(folder: str | Path, tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Write each table as `{name}.parquet` under the folder, which may be any fsspec URL; name → digest of the file."""
    digests: dict[str, str] = {}
    for name, table in tables.items():
        content = io.BytesIO()
        table.to_parquet(content, index=False)
        write_atomically(_url(folder, name), content.getvalue())
        digests[name] = digest_of_bytes(content.getvalue())
    return digests


def read_tables(folder: str | Path, digests: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    """The named tables of a folder.

    Args:
        digests: name of a table → the digest that its verdict names.

    Raises:
        FileNotFoundError: a table is missing.
        NotAsWritten: a table is not the one that was judged.
    """
    return {name: _read_table(_url(folder, name), digest) for name, digest in digests.items()}


def _read_table(url: str, digest: str) -> pd.DataFrame:
    content = as_path(url).read_bytes()
    if digest_of_bytes(content) != digest:
        raise NotAsWritten(f"{url} was changed after it was judged: judge again")
    return pd.read_parquet(io.BytesIO(content))


def _url(folder: str | Path, name: str) -> str:
    return f"{str(folder).rstrip('/')}/{name}.parquet"


class Verdict(Frozen):
    """The judgement.

    Attributes:
        subject: what was judged, in words.
        passes: no critical check failed and none is broken.
        suite_version: the suite's number, and a digest of the code of the checks and of the evidence.
        judged: component → digest of the manifest of the cache that was judged; for a gate, which evaluation → its digest; for
            health, what the metrics are of → digest.
        decided_by: what else decided the evidence → its digest, such as the order of the rows and the test items that are looked for.
        thresholds: the limits that were measured against.
        accepts: the warnings that the recipe accepts from this suite in this phase. Like the limits, they decide the verdict.
        asks_people: what of it the recipe puts to people. `trainer.base.decision` says what follows.
        reasons: why it fails or warns, the critical ones first. What the recipe accepts is not among them; the checks have it.
        checks: every expectation.
        evidence: the folder of the evidence tables.
        tables: name of a table → digest of its file.
        notes: what a reader must know beside the checks: of a gate, what it could see, and what it did not compare.
    """

    subject: str
    suite: str
    suite_version: str
    passes: bool
    judged: dict[str, str]
    decided_by: dict[str, str] = Field(default={})
    thresholds: dict[str, Any]
    accepts: tuple[AcceptedWarning, ...] = ()
    asks_people: AsksPeople = NOBODY
    reasons: tuple[Reason, ...]
    checks: tuple[CheckOutcome, ...]
    evidence: str
    tables: dict[str, str] = Field(default={})
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> CheckCounts:
        """How many of its checks came out how."""
        return count_checks(self.checks)

    @model_validator(mode="after")
    def _says_what_its_checks_say(self) -> "Verdict":
        if self.checks and self.passes != self.counts.passes:
            raise ValueError(f"it must pass where no check failed or could not be made; found passes {self.passes} and {self.counts.words}")
        return self


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
    packing: pd.DataFrame
    hand_off: pd.DataFrame


@dataclass(frozen=True)
class _Terms:
    """What a suite measures against: the limits as JSON, the warnings that are expected, and what is put to people."""

    suite: str
    thresholds: dict[str, Any]
    accepts: tuple[AcceptedWarning, ...]
    asks_people: AsksPeople


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
    """Judge all that is known of a phase's data before it trains. The evidence tables are written to the folder.

    Args:
        decided_by: what decided the evidence beside the caches; the verdict keeps it.
        accepts: the warnings that the recipe accepts in this phase; those of other suites are left out. None are, unless it says so.
        asks_people: what the recipe puts to people in this phase; nothing, unless it says so.
    """
    tables = {name: getattr(evidence, name) for name in SUITES[DATA_SUITE].tables}
    verdict = _judge(subject, tables, _terms(DATA_SUITE, limits, accepts, asks_people), judged=_digests(evidence.caches), folder=folder)
    return verdict.model_copy(update={"decided_by": dict(decided_by)})


def judge_health(
    subject: str,
    table: pd.DataFrame,
    *,
    limits: HealthLimits,
    judged: dict[str, str],
    folder: str | Path,
    accepts: Sequence[AcceptedWarning] = (),
    asks_people: AsksPeople = NOBODY,
) -> Verdict:
    """Judge how a phase trained.

    Args:
        table: what its metrics were measured for.
        judged: what names the run: its checkpoint, its metrics file → digest.
        accepts: as `judge_data`.
    """
    return _judge(subject, {"health": table}, _terms(HEALTH_SUITE, limits, accepts, asks_people), judged=judged, folder=folder)


def judge_gate(
    subject: str,
    evaluation: Evaluation,
    *,
    parent_evaluation: Evaluation | None,
    limits: GateLimits,
    folder: str | Path,
    accepts: Sequence[AcceptedWarning] = (),
    asks_people: AsksPeople = NOBODY,
) -> Verdict:
    """Judge the evaluation of a phase's last checkpoint, against its parent's where there is one; `accepts` as `judge_data`."""
    tables = gate_tables(evaluation, parent_evaluation, limits)
    judged = judged_by_gate(evaluation, parent_evaluation)
    verdict = _judge(subject, tables, _terms(GATE_SUITE, limits, accepts, asks_people), judged=judged, folder=folder)
    return verdict.model_copy(update={"notes": gate_notes(tables, asks_floor=limits.must_beat_baseline)})


def unused_of(verdicts: Iterable[Verdict]) -> tuple[AcceptedWarning, ...]:
    """The warnings that the recipe accepts and that none of these verdicts found."""
    expected: list[AcceptedWarning] = []
    found: list[AcceptedWarning] = []
    for verdict in verdicts:
        expected += [one for one in verdict.accepts if one not in expected]
        found += [finding.warning for check in verdict.checks for finding in check.accepted]
    return tuple(one for one in expected if one not in found)


def judged_by_gate(evaluation: Evaluation, parent_evaluation: Evaluation | None) -> dict[str, str]:
    """What a gate's verdict is about: an evaluation, and the one that it is compared with."""
    judged = {"evaluation": digest_of_json(dict(evaluation))}
    return judged if parent_evaluation is None else {**judged, "parent's evaluation": digest_of_json(dict(parent_evaluation))}


def write_verdict(path: str | Path, verdict: Verdict) -> None:
    """Write the verdict as sealed JSON, atomically."""
    write_sealed(path, verdict.model_dump(mode="json"))


def read_verdict(path: str | Path) -> Verdict:
    """The verdict in the file.

    Raises:
        VerdictError: there is none, it does not read as one, or it was changed after it was written.
    """
    try:
        return Verdict.model_validate(read_sealed(path))
    except FileNotFoundError:
        raise VerdictError(f"there is no verdict at {path}: judge the data with `phasewise data verify` first.") from None
    except (ValidationError, ValueError) as error:
        raise VerdictError(f"{path} does not read as a verdict: {in_one_line(error)}. Delete it and judge again.") from None


def accepted_by(suite: str, accepts: Sequence[AcceptedWarning]) -> tuple[AcceptedWarning, ...]:
    """The accepted warnings that are about the tables of a suite."""
    return tuple(one for one in accepts if one.table in SUITES[suite].tables)


def _terms(
    suite: str, limits: DataLimits | HealthLimits | GateLimits, accepts: Sequence[AcceptedWarning], asks_people: AsksPeople
) -> _Terms:
    return _Terms(suite, limits.model_dump(mode="json"), accepted_by(suite, accepts), asked_of_suite(asks_people, suite))


def _judge(subject: str, tables: Mapping[str, pd.DataFrame], terms: _Terms, *, judged: dict[str, str], folder: str | Path) -> Verdict:
    digests = write_tables(folder, tables)
    suite = SUITES[terms.suite]
    results = [accept(result, tables, terms.accepts) for result in judge_tables(tables, suite.checks(terms.thresholds, tables))]
    reasons = [reason for result in results for reason in reasons_for(result, tables)]
    checks = tuple(outcome_of(result, tables) for result in results)
    return Verdict(
        subject=subject,
        suite=suite.name,
        suite_version=version_of(suite),
        passes=count_checks(checks).passes,
        judged=judged,
        thresholds=terms.thresholds,
        accepts=terms.accepts,
        asks_people=terms.asks_people,
        reasons=tuple(sorted(reasons, key=lambda reason: reason.severity != "critical")),
        checks=checks,
        evidence=str(folder),
        tables=digests,
    )


def _digests(caches: pd.DataFrame) -> dict[str, str]:
    """Component → digest of the manifest that was judged; none where the table does not say."""
    if not {"component", "manifest_digest"} <= set(caches):
        return {}
    return dict(zip(caches["component"], caches["manifest_digest"], strict=True))


def outcome_of(result: CheckResult, tables: Mapping[str, pd.DataFrame]) -> CheckOutcome:
    """What a verdict keeps of a result."""
    return CheckOutcome(
        name=result.name,
        table=result.check.table,
        asks=result.check.asks,
        severity=result.check.severity,
        passes=result.outcome == "passed",
        outcome=result.outcome,
        observed=result.observed,
        accepted=tuple(_finding(result, accepted, tables) for accepted in result.accepted),
    )


def _finding(result: CheckResult, accepted: AcceptedRows, tables: Mapping[str, pd.DataFrame]) -> AcceptedFinding:
    """The worst of the rows that an accepted warning covers, said as it would be if nobody had accepted it."""
    check = result.check
    rows = accepted.rows
    alone = replace(result, outcome="failed", failing_rows=told_rows(check, tables[check.table], rows), accepted=())
    return AcceptedFinding(warning=accepted.warning, rows=len(rows), worst=reasons_for(alone, tables)[0])
