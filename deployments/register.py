"""What is declared, on a Prefect server: work pools and deployments are made, brought up to date, or retired."""

import importlib
import shlex
from collections.abc import Sequence
from typing import Any

from phasewise.deployments.declared import MAX_TRAININGS, MODULES, TRAINING_QUEUE, Deployment, Pool, Schedule
from phasewise.deployments.forms import form_of
from phasewise.flows.prefect.deployment_params import is_ours
from phasewise.flows.prefect.server import LOCAL
from phasewise.trainer.process.child_process import python_command

PAGE = 200


async def register(deployments: Sequence[Deployment], pools: Sequence[Pool]) -> list[str]:
    """Make the server in use have these pools and deployments, and no others of Phasewise's; the names of those that were retired.

    Schedules that exist are left as people made them. What is as declared already is not written again. A deployment counts as one of
    Phasewise's where it has the tag `phasewise` and runs one of its flows.
    """
    from prefect.client.orchestration import get_client

    async with get_client() as client:
        for pool in pools:
            await _register_pool(client, pool)
        await _limit_trainings(client)
        flows = {flow.id: flow.name for flow in await _pages(client.read_flows)}
        there = {f"{flows[found.flow_id]}/{found.name}": found for found in await _pages(client.read_deployments)}
        for declared in deployments:
            await _register_deployment(client, declared, there.get(declared.full_name))
        wanted = {declared.full_name for declared in deployments}
        retired = [name for name, found in there.items() if name not in wanted and _is_ours(found)]
        for name in retired:
            await client.delete_deployment(there[name].id)
    return sorted(retired)


async def _pages(read: Any) -> list[Any]:
    found: list[Any] = []
    while page := await read(limit=PAGE, offset=len(found)):
        found += page
    return found


def _is_ours(deployment: Any) -> bool:
    entrypoints = {f"phasewise.flows.{module}.{module}" for module in MODULES.values()}
    return is_ours(deployment.tags) and deployment.entrypoint in entrypoints


async def _register_pool(client: Any, pool: Pool) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate

    template = {
        "job_configuration": {"command": shlex.join(python_command("phasewise.deployments.flow_process"))},
        "variables": {"type": "object", "properties": {}, "additionalProperties": False},
    }
    wanted = WorkPoolCreate(name=pool.name, type="process", description=pool.description, base_job_template=template)
    await client.create_work_pool(wanted, overwrite=True)


async def _limit_trainings(client: Any) -> None:
    from prefect.client.schemas.filters import WorkQueueFilter, WorkQueueFilterName

    wanted = WorkQueueFilter(name=WorkQueueFilterName(any_=[TRAINING_QUEUE]))
    found = await client.read_work_queues(work_pool_name=LOCAL, work_queue_filter=wanted)
    if found:
        await client.update_work_queue(found[0].id, concurrency_limit=MAX_TRAININGS)
    else:
        await client.create_work_queue(
            name=TRAINING_QUEUE, work_pool_name=LOCAL, concurrency_limit=MAX_TRAININGS, description="One training at a time."
        )


async def _register_deployment(client: Any, declared: Deployment, found: Any | None) -> None:
    pool, queue = declared.place
    wanted = {
        "entrypoint": declared.entrypoint,
        "description": declared.description,
        "tags": sorted(declared.tags),
        "parameters": declared.parameters,
        "parameter_openapi_schema": form_of(declared, parameters_of(declared)),
        "enforce_parameter_schema": True,
        "work_pool_name": pool,
        "work_queue_name": queue,
    }
    if found and all(_as_found(getattr(found, field)) == value for field, value in wanted.items()):
        return
    schedules = _kept_schedules(found) if found else [_new_schedule(schedule) for schedule in declared.schedules]
    flow_id = found.flow_id if found else await client.create_flow_from_name(declared.flow)
    await client.create_deployment(flow_id=flow_id, name=declared.name, schedules=schedules, **wanted)


def parameters_of(declared: Deployment) -> dict[str, Any]:
    """The JSON schema of all parameters of the deployment's flow."""
    from prefect.utilities.callables import parameter_schema

    name = MODULES[declared.flow]
    return parameter_schema(getattr(importlib.import_module(f"phasewise.flows.{name}"), name)).model_dump(exclude_unset=True)


def _as_found(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else value


def _kept_schedules(deployment: Any) -> list[Any]:
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    return [
        DeploymentScheduleCreate(schedule=kept.schedule, active=kept.active, slug=kept.slug, parameters=kept.parameters)
        for kept in deployment.schedules
    ]


def _new_schedule(declared: Schedule) -> Any:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    return DeploymentScheduleCreate(schedule=CronSchedule(cron=declared.cron, timezone=declared.timezone), active=False, slug=declared.slug)
