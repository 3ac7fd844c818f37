"""Publishing as a Prefect task."""

from collections.abc import Sequence
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from tasks.progress import say
from tasks.publication.contents import Report
from tasks.publication.report import write_report
from validations.data_docs import build_data_docs
from validations.verdict import Verdict


@task(task_run_name="write report of {report.recipe}", cache_policy=NO_CACHE)
def publish_report(report: Report, folder: Path, verdicts: Sequence[Verdict]) -> Path:
    """Write the HTML report and, beside it, Great Expectations' Data Docs of every verdict."""
    docs = build_data_docs(folder / "data-docs", verdicts)
    path = write_report(folder / "report.html", report)
    lines = [f"**{report.headline}**", "", "| phase | state | final loss | bits per byte |", "|---|---|---|---|"]
    lines += [
        f"| {phase.name} | {phase.state} | {_number(phase.final_loss)} | {_number(phase.macro_bits_per_byte)} |" for phase in report.phases
    ]
    lines += ["", f"Report: `{path}`. Data Docs: `{docs}`."]
    create_markdown_artifact("\n".join(lines), key=f"{report.recipe}-{report.scale}-report", description=report.headline)
    say(f"report: {path}")
    return path


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
