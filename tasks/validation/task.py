"""Judgement as Prefect tasks: every verdict becomes an artifact."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from tasks.data.plan import DataPlan
from tasks.home import Home
from tasks.progress import say
from tasks.validation.judge import judge_phase_data, judge_phase_health
from trainer.base.storage import as_path
from trainer.config import RunConfig
from validations.accepted import AcceptedWarning
from validations.data_docs import build_data_docs
from validations.limits import DataLimits, GateLimits, HealthLimits
from validations.report.words import as_markdown, lines_of, notes_of, report_folder_of, summary_of
from validations.verdict import Verdict, judge_gate, write_verdict

Accepts = Sequence[AcceptedWarning]
"""What the recipe accepts in the phase; each of the three judges is given it."""


@task(task_run_name="judge data of {run.phase}", cache_policy=NO_CACHE)
def data_gate(
    run: RunConfig,
    plan: DataPlan,
    limits: DataLimits,
    home: Home,
    *,
    hand_off: pd.DataFrame,
    decided_by: Mapping[str, str],
    accepts: Accepts,
) -> Verdict:
    """Gather the evidence on the phase's data, judge it, write the verdict."""
    verdict = judge_phase_data(run, plan, limits, home, hand_off=hand_off, decided_by=decided_by, accepts=accepts)
    publish(verdict, key=f"{run.recipe}-{run.phase}-data")
    return verdict


@task(task_run_name="judge training of {run.phase}", cache_policy=NO_CACHE)
def health_gate(run: RunConfig, limits: HealthLimits, home: Home, *, accepts: Accepts) -> Verdict:
    """Judge how a phase trained by its metrics, write the verdict."""
    verdict = judge_phase_health(run, limits, home, accepts=accepts)
    publish(verdict, key=f"{run.recipe}-{run.phase}-health")
    return verdict


@task(task_run_name="judge model of {run.phase}", cache_policy=NO_CACHE)
def model_gate(
    run: RunConfig, evaluation: dict[str, Any], parent: dict[str, Any] | None, limits: GateLimits, path: Path, *, accepts: Accepts
) -> Verdict:
    """Judge a phase's last checkpoint against its parent's, write the verdict; its evidence goes beside it."""
    evidence = path.with_suffix("")
    subject = f"{run.recipe}/{run.scale}/{run.phase} model"
    verdict = judge_gate(subject, evaluation, parent_evaluation=parent, limits=limits, folder=evidence, accepts=accepts)
    write_verdict(path, verdict)
    publish(verdict, key=f"{run.recipe}-{run.phase}-model")
    return verdict


def publish(verdict: Verdict, key: str) -> None:
    """Lines for people, and a page in the Prefect UI; a verdict that fails gets its report at once."""
    report = report_folder_of(verdict)
    if not verdict.passes or as_path(report).exists():
        build_data_docs(report, [verdict])
    for line in (*lines_of(verdict), *notes_of(verdict)):
        say(line)
    create_markdown_artifact(as_markdown(verdict), key=key, description=summary_of(verdict))
