"""Giving a verdict again from the bytes that it rests on: metrics, evaluations and evidence tables."""

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from phasewise.tasks.publication.card.gate_claims import Gate
from phasewise.tasks.publication.card.home_files import HomeFiles
from phasewise.tasks.publication.card.training_claims import Trained
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.metrics import read_metrics
from phasewise.validations.evidence.health import health_evidence
from phasewise.validations.evidence.tables import read_tables
from phasewise.validations.expectations.suites import SUITES, version_of
from phasewise.validations.limits import DataLimits, GateLimits, HealthLimits
from phasewise.validations.verdict import DataEvidence, Verdict, judge_data, judge_gate, judge_health


def check_again(
    files: HomeFiles,
    trained: Trained,
    verdicts: Mapping[Gate, tuple[str, Verdict]],
    evaluation: Mapping[str, Any] | None,
    parent: Any,
) -> None:
    """Judge again, and name each check that comes out otherwise.

    Training and model are judged from metrics and evaluations, so their evidence tables are made again, too. The tables about the data
    rest on whole caches and on the scan for test items: they are judged as they lie there.

    Args:
        verdicts: gate → folder of its evidence in the home, and the verdict.
    """
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    for gate, (evidence, verdict) in verdicts.items():
        suite = SUITES.get(verdict.suite)
        if suite is None or version_of(suite) != verdict.suite_version:
            files.skip(f"gates.{gate}.checks", f"not judged again: its checks were {verdict.suite_version}, this program has others")
            continue
        with tempfile.TemporaryDirectory(prefix="phasewise-card-") as folder:
            again = files.tried(
                f"gates.{gate}.checks",
                lambda gate=gate, verdict=verdict, evidence=evidence, folder=folder: _judge(
                    gate, verdict, files.place(evidence), folder, _Bytes(files, trained, evaluation, parent)
                ),
                Exception,  # tables and metrics that were edited fail in many ways
            )
            if again is not None:
                _compare(files, gate, verdict, again)
                if gate != "data":
                    _compare_tables(files, gate, files.place(evidence), Path(folder), suite.tables)


class _Bytes:
    """What training and model are judged from."""

    def __init__(self, files: HomeFiles, trained: Trained, evaluation: Any, parent: Any) -> None:
        self.metrics = RunFolder(files.place(trained.folder)).metrics
        self.run = trained.run
        self.evaluation = evaluation
        self.parent = parent


def _judge(gate: Gate, verdict: Verdict, evidence: Path, folder: str, given: _Bytes) -> Verdict:
    if gate == "data":
        tables = DataEvidence(**read_tables(evidence, verdict.tables))
        limits = DataLimits.model_validate(verdict.thresholds)
        return judge_data(verdict.subject, tables, limits=limits, folder=folder, accepts=verdict.accepts)
    if gate == "health":
        from phasewise.trainer.norms import groups  # it imports JAX

        limits = HealthLimits.model_validate(verdict.thresholds)
        table = health_evidence(read_metrics(given.metrics), limits, groups=groups(given.run.model))
        return judge_health(verdict.subject, table, limits=limits, judged=verdict.judged, folder=folder, accepts=verdict.accepts)
    limits = GateLimits.model_validate(verdict.thresholds)
    return judge_gate(
        verdict.subject, given.evaluation, parent_evaluation=given.parent, limits=limits, folder=folder, accepts=verdict.accepts
    )


def _compare(files: HomeFiles, gate: Gate, verdict: Verdict, again: Verdict) -> None:
    field = f"gates.{gate}"
    files.agree(f"{field}.passes", "its evidence gives", verdict.passes, again.passes)
    if gate == "data":
        files.agree(f"{field}.judged", "its evidence names", verdict.judged, again.judged)
    said, found = ([(one.table, one.name, one.asks, one.outcome) for one in each.checks] for each in (verdict, again))
    if len(said) != len(found):
        files.problem(f"{field}.checks", f"the home has {len(said)} checks, its evidence gives {len(found)}")
        return
    for number, (one, another) in enumerate(zip(said, found, strict=True)):
        files.agree(f"{field}.checks[{number}]", "its evidence gives", list(one), list(another))


def _compare_tables(files: HomeFiles, gate: Gate, evidence: Path, made_again: Path, names: tuple[str, ...]) -> None:
    for name in names:
        said, found = (pd.read_parquet(folder / f"{name}.parquet") for folder in (evidence, made_again))
        if not said.equals(found):
            files.problem(f"gates.{gate}.evidence.{name}", "made again from metrics or evaluations, the table has other values")
