"""The deployments of `prefect.yaml`, the work pool that they run in, and their registration with a server."""

import sys
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from flows.server import POOL
from trainer.base.errors import PhasewiseError

ROOT = Path(__file__).resolve().parents[1]
PREFECT_FILE = ROOT / "prefect.yaml"
TRAINING_QUEUE, MAX_TRAININGS = "training", 1


class Declared(BaseModel):
    """A part of `prefect.yaml`; a key that is not known here is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DeclaredSchedule(Declared):
    """When a deployment runs by itself, once somebody makes it active."""

    slug: str
    cron: str
    timezone: str
    active: Literal[False]


class DeclaredPool(Declared):
    """Where it runs."""

    name: str
    work_queue_name: str


class DeclaredDeployment(Declared):
    """One flow with its parameters. `entrypoint` is relative to the repository's root."""

    name: str
    entrypoint: str
    description: str
    tags: tuple[str, ...]
    parameters: dict[str, Any]
    work_pool: DeclaredPool
    schedules: tuple[DeclaredSchedule, ...] = ()


def read_deployments(path: Path = PREFECT_FILE) -> list[DeclaredDeployment]:
    """What `prefect.yaml` declares.

    Raises:
        PhasewiseError: it is not there, or something in it is not understood.
    """
    try:
        return [DeclaredDeployment.model_validate(item) for item in yaml.safe_load(path.read_text(encoding="utf-8"))["deployments"]]
    except FileNotFoundError:
        raise PhasewiseError(
            f"{path} is missing: deployments need the repository. Install Phasewise from it with `pip install -e .`."
        ) from None
    except (yaml.YAMLError, KeyError, TypeError, ValidationError) as error:
        raise PhasewiseError(f"{path} does not read as deployments: {error}") from None


async def register(home: Path) -> list[str]:
    """Create or update the work pool, its training queue and every deployment on the server in use; the names of the deployments.

    A schedule that exists is left as people made it.

    Args:
        home: default of every deployment's `home`.
    """
    from prefect.client.orchestration import get_client

    names: list[str] = []
    async with get_client() as client:
        await _register_pool(client)
        for declared in read_deployments():
            names.append(await _register_deployment(client, declared, home))
    return names


async def _register_pool(client: Any) -> None:
    """The pool, whose flow runs are processes that end with their worker, and the queue that trains one at a time."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.client.schemas.filters import WorkQueueFilter, WorkQueueFilterName
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    template["variables"]["properties"]["command"]["default"] = f"{sys.executable} -m deployments.flow_process"
    description = "Flow runs of Phasewise on this machine, each a process of its own."
    await client.create_work_pool(
        WorkPoolCreate(name=POOL, type="process", description=description, base_job_template=template), overwrite=True
    )
    wanted = WorkQueueFilter(name=WorkQueueFilterName(any_=[TRAINING_QUEUE]))
    found = await client.read_work_queues(work_pool_name=POOL, work_queue_filter=wanted)
    if found:
        await client.update_work_queue(found[0].id, concurrency_limit=MAX_TRAININGS)
    else:
        await client.create_work_queue(
            name=TRAINING_QUEUE, work_pool_name=POOL, concurrency_limit=MAX_TRAININGS, description="One training at a time."
        )


async def _register_deployment(client: Any, declared: DeclaredDeployment, home: Path) -> str:
    from prefect.exceptions import ObjectNotFound
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema

    flow = load_flow_from_entrypoint(str(ROOT / declared.entrypoint))
    name = f"{flow.name}/{declared.name}"
    try:
        schedules = _kept_schedules(await client.read_deployment_by_name(name))
    except ObjectNotFound:
        schedules = [_new_schedule(schedule) for schedule in declared.schedules]
    await client.create_deployment(
        flow_id=await client.create_flow_from_name(flow.name),
        name=declared.name,
        entrypoint=declared.entrypoint,
        description=declared.description,
        tags=list(declared.tags),
        parameters={**declared.parameters, "home": str(home)},
        parameter_openapi_schema=parameter_schema(flow).model_dump(exclude_unset=True),
        enforce_parameter_schema=True,
        work_pool_name=declared.work_pool.name,
        work_queue_name=declared.work_pool.work_queue_name,
        pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}],
        schedules=schedules,
    )
    return name


def _kept_schedules(deployment: Any) -> list[Any]:
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    return [
        DeploymentScheduleCreate(schedule=kept.schedule, active=kept.active, slug=kept.slug, parameters=kept.parameters)
        for kept in deployment.schedules
    ]


def _new_schedule(declared: DeclaredSchedule) -> Any:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    schedule = CronSchedule(cron=declared.cron, timezone=declared.timezone)
    return DeploymentScheduleCreate(schedule=schedule, active=declared.active, slug=declared.slug)
