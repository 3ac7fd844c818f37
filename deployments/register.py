"""Register work pools, deployments with their forms, and the notification of refused phases on a Prefect server."""

import importlib
import shlex
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from phasewise.deployments.declared import FLOWS, MAX_TRAININGS, TRAINING_QUEUE, Deployment, Pool
from phasewise.flows.prefect.server import LOCAL, TAG
from phasewise.tasks.report.contents import GATE_EVENTS, GATE_RESOURCE
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.process.child_process import python_command

PAGE = 200
SETTING = r"^(([a-z0-9-]+|\*)\.)?[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*=.+$"  # PHASE.NAME=VALUE, NAME=VALUE or *.NAME=VALUE
TITLES = {"up_to": "Up to phase", "average_of": "Average of", "dtype": "Type of the numbers"}
AUTOMATION = "phasewise: a phase is refused or waits for a person"
VARIABLE = "phasewise_notify"
BODY = "{{ event.payload.message }}\n{{ event.payload.link }}"


async def register(deployments: Sequence[Deployment], pools: Sequence[Pool]) -> list[str]:
    """Create or update pools and deployments on the server. Remove other deployments of Phasewise and return their names.

    Existing schedules stay as users edited them. Unchanged deployments are not written again. Deployments of Phasewise have the tag
    `phasewise` and a flow of this package.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.client.schemas.filters import WorkQueueFilter, WorkQueueFilterName

    template = {
        "job_configuration": {"command": shlex.join(python_command("phasewise.deployments.flow_process"))},
        "variables": {"type": "object", "properties": {}, "additionalProperties": False},
    }
    async with get_client() as client:
        for pool in pools:
            made = WorkPoolCreate(name=pool.name, type="process", description=pool.description, base_job_template=template)
            await client.create_work_pool(made, overwrite=True)
        queue = WorkQueueFilter(name=WorkQueueFilterName(any_=[TRAINING_QUEUE]))
        if queues := await client.read_work_queues(work_pool_name=LOCAL, work_queue_filter=queue):
            await client.update_work_queue(queues[0].id, concurrency_limit=MAX_TRAININGS)
        else:
            await client.create_work_queue(
                name=TRAINING_QUEUE, work_pool_name=LOCAL, concurrency_limit=MAX_TRAININGS, description="One training at a time."
            )
        flows = {flow.id: flow.name for flow in await _read_all(client.read_flows)}
        registered = {f"{flows[found.flow_id]}/{found.name}": found for found in await _read_all(client.read_deployments)}
        active = {
            (one.entrypoint, *sorted(one.parameters.items())): one for one in registered.values() if any(s.active for s in one.schedules)
        }
        for declared in deployments:
            renamed = active.get((declared.entrypoint, *sorted(declared.parameters.items())))  # an earlier version had another name
            await _register_deployment(client, declared, registered.get(declared.full_name, renamed))
        wanted = {declared.full_name for declared in deployments}
        entrypoints = {f"phasewise.flows.{place.module}.{place.module}" for place in FLOWS.values()}
        retired = [
            name for name, found in registered.items() if name not in wanted and TAG in found.tags and found.entrypoint in entrypoints
        ]
        for name in retired:
            await client.delete_deployment(registered[name].id)
    return sorted(retired)


async def _read_all(read: Any) -> list[Any]:
    found: list[Any] = []
    while page := await read(limit=PAGE, offset=len(found)):
        found += page
    return found


async def _register_deployment(client: Any, declared: Deployment, found: Any | None) -> None:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    place = FLOWS[declared.flow]
    wanted = {
        "entrypoint": declared.entrypoint,
        "description": declared.description,
        "tags": sorted(declared.tags),
        "parameters": declared.parameters,
        "parameter_openapi_schema": form_of(declared, parameters_of(declared)),
        "enforce_parameter_schema": True,
        "work_pool_name": place.pool,
        "work_queue_name": place.queue,
    }
    if found:
        current = {field: getattr(found, field) for field in wanted} | {"tags": sorted(found.tags)}
        if current == wanted and found.name == declared.name:
            return
        schedules = [
            DeploymentScheduleCreate(schedule=kept.schedule, active=kept.active, slug=kept.slug, parameters=kept.parameters)
            for kept in found.schedules
        ]
    else:
        schedules = [
            DeploymentScheduleCreate(schedule=CronSchedule(cron=one.cron, timezone=one.timezone), active=False, slug=one.slug)
            for one in declared.schedules
        ]
    flow_id = found.flow_id if found else await client.create_flow_from_name(declared.flow)
    await client.create_deployment(flow_id=flow_id, name=declared.name, schedules=schedules, **wanted)


def parameters_of(declared: Deployment) -> dict[str, Any]:
    """Return the JSON schema of all parameters of the flow."""
    from prefect.utilities.callables import parameter_schema

    name = FLOWS[declared.flow].module
    return parameter_schema(getattr(importlib.import_module(f"phasewise.flows.{name}"), name)).model_dump(exclude_unset=True)


def form_of(deployment: Deployment, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of the form. Prefect rejects runs that do not match it before it creates them.

    Raises:
        KeyError: the flow lacks a parameter that the form asks for.
    """
    fields: dict[str, Any] = {}
    for position, (name, choices) in enumerate(deployment.asks.items()):
        field = parameters["properties"][name]
        marked = ", ".join(f"{choice} ({why})" for choice, why in deployment.refused.items() if choice in choices)
        about = {
            "title": TITLES.get(name, name.capitalize()),
            "description": " ".join([*field.get("description", "").split(), *([f"Refused by design: {marked}."] if marked else [])]),
            "position": position,
        }
        choice = {"type": "string", "enum": list(choices)}
        if name == "settings":
            fields[name] = about | {"type": "array", "items": {"type": "string", "pattern": SETTING}, "default": []}
        elif not choices:
            fields[name] = field | about
        elif field.get("type") == "array":
            fields[name] = about | {"type": "array", "items": choice, "uniqueItems": True, "default": []}
        else:
            fields[name] = about | choice
            if name not in deployment.required and field.get("default") is not None:
                fields[name]["default"] = field["default"]
    return {
        "title": "Parameters",
        "type": "object",
        "properties": fields,
        "required": list(deployment.required),
        "definitions": parameters.get("definitions", {}),
    }


async def register_notification(client: Any, block: str | None) -> str | None:
    """Create or update the automation that notifies of phases that are refused or wait for an approval. Return the block it sends with.

    The block is `--notify TYPE/NAME`, else the Prefect variable `phasewise_notify`. Without a block, remove the automation. Users make
    blocks in the UI: a webhook, Slack, Teams, or `Apprise URL` of this package.

    Raises:
        ConfigError: the block is not given as TYPE/NAME, or does not exist.
    """
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.exceptions import ObjectNotFound

    from phasewise.flows.prefect.apprise_block import AppriseUrl

    await AppriseUrl.aregister_type_and_schema(client=client)
    if block is None:
        variable = await client.read_variable_by_name(VARIABLE)
        block = str(variable.value) if variable and variable.value else None
    found = await client.read_automations_by_name(AUTOMATION)
    for one in found[1:] if block else found:
        await client.delete_automation(one.id)
    if block is None:
        return None
    kind, _, name = block.partition("/")
    if not kind or not name:
        raise ConfigError(f"--notify needs a block as TYPE/NAME, such as custom-webhook/gates, found {block!r}.")
    try:
        document = await client.read_block_document_by_name(name, kind, include_secrets=False)
    except ObjectNotFound:
        raise ConfigError(
            f"--notify names the block {block}, and the Prefect server has none: make it in the UI (Blocks), or name another."
        ) from None
    trigger = EventTrigger(
        expect=set(GATE_EVENTS.values()),
        match={"prefect.resource.id": f"{GATE_RESOURCE}.*"},  # pyright: ignore[reportArgumentType]  # pydantic builds a ResourceSpecification
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
    action = SendNotification(block_document_id=document.id, subject="{{ event.payload.subject }}", body=BODY)
    automation = AutomationCore(name=AUTOMATION, description="Made by `phasewise up`.", trigger=trigger, actions=[action])
    if found:
        await client.update_automation(found[0].id, automation)
    else:
        await client.create_automation(automation)
    return block
