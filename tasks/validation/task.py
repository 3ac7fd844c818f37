"""Judgement as Prefect tasks: every verdict becomes an artifact."""

from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from tasks.data.plan import DataPlan
from tasks.home import Home
from tasks.progress import say
from tasks.validation.judge import judge_phase_data
from trainer.config import RunConfig
from validations.limits import DataLimits, GateLimits
from validations.verdict import Verdict, judge_gate, write_verdict


@task(task_run_name="judge data of {run.phase}", cache_policy=NO_CACHE)
def judge_data(run: RunConfig, plan: DataPlan, limits: DataLimits, home: Home, evidence: Path) -> Verdict:
    """Gather the evidence on the phase's data, judge it, write the verdict."""
    verdict = judge_phase_data(run, plan, limits, home, evidence)
    publish(verdict, key=f"{run.recipe}-{run.phase}-data")
    return verdict


@task(task_run_name="judge model of {run.phase}", cache_policy=NO_CACHE)
def judge_model(
    run: RunConfig, evaluation: dict[str, Any], parent: dict[str, Any] | None, limits: GateLimits, evidence: Path, path: Path
) -> Verdict:
    """Judge a phase's last checkpoint against its parent's, write the verdict."""
    subject = f"{run.recipe}/{run.scale}/{run.phase} model"
    verdict = judge_gate(subject, evaluation, parent_evaluation=parent, limits=limits, folder=evidence)
    write_verdict(path, verdict)
    publish(verdict, key=f"{run.recipe}-{run.phase}-model")
    return verdict


def publish(verdict: Verdict, key: str) -> None:
    """A line for people, and a page in the Prefect UI."""
    say(f"{verdict.subject}: {'passes' if verdict.passes else 'FAILS'} ({len(verdict.checks)} checks)")
    for reason in verdict.reasons:
        say(f"  {reason.severity}: {reason.sentence}")
    create_markdown_artifact(as_markdown(verdict), key=key, description=f"{verdict.subject}: {'passes' if verdict.passes else 'fails'}")


def as_markdown(verdict: Verdict) -> str:
    """The verdict as a page: outcome, reasons, every check."""
    lines = [f"# {verdict.subject}: {'passes' if verdict.passes else 'fails'}", ""]
    lines += [f"- **{reason.severity}**: {reason.sentence}" for reason in verdict.reasons]
    lines += ["", "| check | table | outcome | observed |", "|---|---|---|---|"]
    lines += [f"| {check.asks} | {check.table} | {check.outcome} | {check.observed} |" for check in verdict.checks]
    lines += ["", f"Suite {verdict.suite}, version {verdict.suite_version}. Evidence: `{verdict.evidence}`."]
    return "\n".join(lines)
