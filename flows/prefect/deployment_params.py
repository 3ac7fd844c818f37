"""What a deployment fixes: a run of it is of its recipe, its phase and its scale, which its form does not ask for.

Prefect lets whoever calls its API, or adds a schedule, replace any parameter: the run would be shown under one name and train another.
"""

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from phasewise.trainer.base.errors import ConfigError

TAG = "phasewise"
"""On every deployment that this project makes, and on no other: what has it and is no longer declared is retired."""
FIXED = ("recipe", "phase", "scale")


def check_fixed(name: str, fixed: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a run whose parameters are not its deployment's.

    Args:
        name: of the deployment.
        fixed: the parameters of the deployment.
        given: those of the run, its flow's defaults among them.

    Raises:
        ConfigError: a recipe, phase or scale that the deployment fixes is another one in the run.
    """
    for parameter in FIXED:
        if parameter in fixed and given.get(parameter) != fixed[parameter]:
            raise ConfigError(
                f"the deployment {name} is for {parameter} {fixed[parameter]!r}, and this run was given {given.get(parameter)!r}: "
                f"leave {parameter} out, or start the deployment of that {parameter}. `phasewise up --recipes FOLDER` makes deployments of "
                "other recipes."
            )


def check_run_is_of_its_deployment(given: Mapping[str, Any]) -> None:
    """The same for the flow run of this moment. A run of no deployment, or of one that is not ours, is free, and so is a subflow.

    Raises:
        ConfigError: as `check_fixed`.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.runtime import deployment
    from prefect.runtime import flow_run as current

    if not deployment.id or current.parent_flow_run_id:
        return
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment(UUID(str(deployment.id)))
        except ObjectNotFound:  # it was retired since: there is nothing to compare with
            return
    if is_ours(found.tags):
        check_fixed(found.name, found.parameters, given)


def is_ours(tags: Collection[str]) -> bool:
    """Whether a deployment with these tags is one that this project makes."""
    return TAG in tags
