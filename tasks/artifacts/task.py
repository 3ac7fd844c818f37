"""Artifacts of the Prefect UI that belong to a phase: on the page of the phase's own flow run, written again rather than repeated."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.events import emit_event
from prefect.runtime import flow_run as current

from phasewise.tasks.artifacts.events import GATE_EVENTS, GATE_RESOURCE

_shown_on: ContextVar[str | None] = ContextVar("shown_on", default=None)


@contextmanager
def shown_on_this_run() -> Iterator[None]:
    """What is published within the context, also by subflows and tasks, is on the page of the run that is current now."""
    token = _shown_on.set(str(current.id) if current.id else None)
    try:
        yield
    finally:
        _shown_on.reset(token)


def publish_page(markdown: str, *, key: str, description: str) -> None:
    """A Markdown artifact of the run. The one that the run has by this key is written again; another run's stays as its history.

    Args:
        key: lowercase letters, digits and dashes.
    """
    run_id = _shown_on.get() or current.id
    with get_client(sync_client=True) as client:
        if run_id is not None:
            mine = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(str(run_id))]))
            if found := client.read_artifacts(artifact_filter=mine, limit=1):
                client.update_artifact(found[0].id, ArtifactUpdate(data=markdown, description=description))
                return
        owner = UUID(str(run_id)) if run_id else None
        client.create_artifact(ArtifactCreate(key=key, type="markdown", data=markdown, description=description, flow_run_id=owner))


def tell_of_gate(state: str, *, subject: str, gate: str, message: str, link: str | None) -> None:
    """An event for automations, where a verdict does not let its phase go on and nobody has decided of it yet.

    Args:
        state: of `trainer.base.decision.Ruling`; `fails` and `waits` are told.
    """
    if current.id is None or state not in GATE_EVENTS:
        return
    word = "waits for a person" if state == "waits" else "is refused"
    name = subject.split(" ")[0]
    emit_event(
        GATE_EVENTS[state],
        resource={"prefect.resource.id": f"{GATE_RESOURCE}.{name.replace('/', '.')}.{gate}", "prefect.resource.name": f"{name} {gate}"},
        payload={"subject": f"{name} {word}", "message": message, "link": link or "", "gate": gate},
    )
