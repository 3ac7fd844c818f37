"""Verdicts as Prefect tasks: every verdict becomes an artifact."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from phasewise.tasks.home import Home
from phasewise.tasks.progress import explain, say
from phasewise.tasks.report.html import build_data_docs
from phasewise.tasks.report.task import publish_page, tell_of_gate
from phasewise.tasks.site import gate_address
from phasewise.tasks.validation.judge import judge_phase_data, judge_phase_health
from phasewise.trainer.base.decision import read_decisions, ruling_of
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.config import RunConfig
from phasewise.validations.failures import as_markdown, lines_of, report_folder_of, why_in_a_line
from phasewise.validations.limits import AcceptedWarning, AsksPeople, GateLimits, HealthLimits
from phasewise.validations.verdict import Verdict, judge_gate, read_verdict, write_verdict

Accepts = Sequence[AcceptedWarning]  # the warnings that the recipe accepts in the phase


@task(task_run_name="judge data of {run.phase}", cache_policy=NO_CACHE)
def data_gate(run: RunConfig, *inputs: Any, **facts: Any) -> Verdict:
    """Judge the data of a phase and write the verdict, with the arguments of `judge_phase_data`."""
    verdict = judge_phase_data(run, *inputs, **facts)
    publish(verdict, run.verdict)
    return verdict


@task(task_run_name="judge training of {run.phase}", cache_policy=NO_CACHE)
def health_gate(run: RunConfig, limits: HealthLimits, home: Home, *, accepts: Accepts, asks_people: AsksPeople) -> Verdict:
    """Judge the training of a phase by its metrics and write the verdict."""
    verdict = judge_phase_health(run, limits, home, accepts=accepts, asks_people=asks_people)
    publish(verdict, home.verdict(f"{run.recipe}-{run.scale}", run.phase, "health"))
    return verdict


@task(task_run_name="judge model of {run.phase}", cache_policy=NO_CACHE)
def model_gate(
    run: RunConfig,
    evaluation: dict[str, Any],
    parent: dict[str, Any] | None,
    limits: GateLimits,
    path: Path,
    *,
    accepts: Accepts,
    asks_people: AsksPeople,
) -> Verdict:
    """Compare a phase's last checkpoint with its parent's, and write the verdict with its evidence."""
    evidence = path.with_suffix("")
    subject = f"{run.recipe}/{run.scale}/{run.phase} model"
    verdict = judge_gate(
        subject, evaluation, parent_evaluation=parent, limits=limits, folder=evidence, accepts=accepts, asks_people=asks_people
    )
    write_verdict(path, verdict)
    publish(verdict, path)
    return verdict


@task(task_run_name="ask about training", cache_policy=NO_CACHE)
def ask_about_training(path: str | Path) -> Verdict:
    """Show the question of a training to people. The question is a verdict without evidence tables."""
    verdict = read_verdict(path)
    publish(verdict, path)
    return verdict


def publish(verdict: Verdict, path: str | Path) -> None:
    """Publish a verdict as lines and as a page in the Prefect UI, of this flow run and of the top flow run.

    A verdict that stops the phase gets its report immediately.
    """
    ruling = ruling_of(verdict.model_dump(mode="json"), read_decisions(path))
    report = report_folder_of(verdict)
    if not verdict.passes or ruling.state != "passes" or as_path(report).exists():
        build_data_docs(report, [verdict])
    first, *others = lines_of(verdict)
    say(first, on_top=True)
    for line in others:
        (explain if ruling.state == "passes" else say)(line)
    for note in verdict.notes:
        explain(f"  {' '.join(note.split())}")
    place = as_path(path)
    key = f"{place.parent.parent.name}-{place.parent.name}-{place.stem}".lower()
    page = gate_address(verdict.subject, place.stem)
    description = f"{verdict.subject} {verdict.counts.words}"
    publish_page(as_markdown(verdict, ruling, page), key=key, description=description)
    tell_of_gate(ruling.state, subject=verdict.subject, gate=place.stem, message=why_in_a_line(verdict), link=page)
