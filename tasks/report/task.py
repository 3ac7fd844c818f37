"""Publishing as a Prefect task."""

from collections.abc import Sequence
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from phasewise.tasks.progress import say
from phasewise.tasks.report.contents import Report
from phasewise.tasks.report.run_report import write_report
from phasewise.tasks.report.sections import measured_markdown, standing_of
from phasewise.trainer.base.wording import decimal
from phasewise.validations.data_docs import build_data_docs
from phasewise.validations.outcomes import sum_counts, verdicts_in_words
from phasewise.validations.verdict import Verdict


@task(task_run_name="write report of {report.recipe}", cache_policy=NO_CACHE)
def publish_report(report: Report, folder: Path, verdicts: Sequence[Verdict]) -> Path:
    """Write the HTML report and, beside it, Great Expectations' Data Docs of every verdict."""
    docs = build_data_docs(folder / "data-docs", verdicts)
    path = write_report(folder / "report.html", report)
    create_markdown_artifact(as_markdown(report, path, docs), key=f"{report.recipe}-{report.scale}-report", description=report.headline)
    say(f"report: {path}")
    return path


def as_markdown(report: Report, path: Path, docs: Path) -> str:
    """The page in the Prefect UI: what happened, a row a phase, where to read on."""
    judged = [verdict.counts for phase in report.phases for verdict in phase.verdicts]
    lines = [f"**{report.headline}**", "", f"{verdicts_in_words(judged)}: {sum_counts(judged).shares}.", ""]
    lines += ["| phase | state | final loss | bits per byte | verdict | checks |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {phase.name} | {phase.state} | {decimal(phase.final_loss, places=3)} | {decimal(phase.macro_bits_per_byte, places=3)} "
        f"| {standing_of(phase).word} | {phase.counts.shares if phase.verdicts else '–'} |"
        for phase in report.phases
    ]
    if measured := measured_markdown(report):
        lines += ["", *measured]
    if report.unused:
        lines += ["", "Accepted by the recipe, and not found: " + "; ".join(report.unused) + "."]
    return "\n".join([*lines, "", f"Report: `{path}`. Data Docs: `{docs}`."])
