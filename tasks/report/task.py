"""Prefect task that publishes the report of a run, and artifacts and events of a phase's flow run."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.events import emit_event
from prefect.runtime import flow_run as current

from phasewise.tasks.progress import explain
from phasewise.tasks.report.contents import GATE_EVENTS, GATE_RESOURCE, Report
from phasewise.tasks.report.html import build_data_docs, write_report
from phasewise.tasks.report.sections import report_markdown
from phasewise.validations.verdict import Verdict


@task(task_run_name="write report of {report.recipe}", cache_policy=NO_CACHE)
def publish_report(report: Report, folder: Path, verdicts: Sequence[Verdict]) -> Path:
    """Write the HTML report and the Data Docs of every verdict."""
    docs = build_data_docs(folder / "data-docs", verdicts)
    path = write_report(folder / "report.html", report)
    markdown = report_markdown(report, str(path), str(docs))
    publish_page(markdown, key=f"{report.recipe}-{report.scale}-report", description=report.headline)
    explain(f"report: {path}", on_top=True)
    return path


def publish_page(data: str | float, *, key: str, description: str, on_top: bool = False) -> None:
    """Create or update a Markdown or progress artifact of this and of the top flow run, with `on_top` only of the top run."""
    top = _root_of(str(current.id)) if current.id else None
    with get_client(sync_client=True) as client:
        for run_id in {top, top if on_top else current.id}:
            owner = UUID(str(run_id)) if run_id else None
            mine = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=ArtifactFilterFlowRunId(any_=[owner] if owner else None))
            if owner and (found := client.read_artifacts(artifact_filter=mine, limit=1)):
                client.update_artifact(found[0].id, ArtifactUpdate(data=data, description=description))
            else:
                kind = "markdown" if isinstance(data, str) else "progress"
                client.create_artifact(ArtifactCreate(key=key, type=kind, data=data, description=description, flow_run_id=owner))


@cache
def _root_of(_run_id: str) -> str:
    return str(current.root_flow_run_id)


def tell_of_gate(state: str, *, subject: str, gate: str, message: str, link: str | None) -> None:
    """Emit an event for automations if a ruling `fails` or `waits`."""
    if current.id is None or state not in GATE_EVENTS:
        return
    word = "waits for a person" if state == "waits" else "is refused"
    name = subject.split(" ")[0]
    emit_event(
        GATE_EVENTS[state],
        resource={"prefect.resource.id": f"{GATE_RESOURCE}.{name.replace('/', '.')}.{gate}", "prefect.resource.name": f"{name} {gate}"},
        payload={"subject": f"{name} {word}", "message": message, "link": link or "", "gate": gate},
    )
