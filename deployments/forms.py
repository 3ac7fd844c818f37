"""The form of a deployment: the flow's parameters that it asks for, with their choices and limits, as Prefect's JSON schema."""

from typing import Any

from phasewise.deployments.declared import Deployment

SETTING = r"^[a-z0-9-]+(\.[A-Za-z0-9_]+)+=.+$"
"""PHASE.FIELD=VALUE."""
TITLES = {
    "up_to": "Up to phase",
    "average_of": "Average of",
    "dtype": "Type of the numbers",
}


def form_of(deployment: Deployment, parameters: dict[str, Any]) -> dict[str, Any]:
    """The schema that Prefect draws the form from, and refuses a run by before it is created.

    Args:
        parameters: the schema of all parameters of the flow, as Prefect derives it.

    Raises:
        KeyError: the deployment asks for a parameter that the flow does not have.
    """
    every: dict[str, Any] = parameters["properties"]
    fields = {
        name: _field(name, every[name], choices, is_required=name in deployment.required) | {"position": position}
        for position, (name, choices) in enumerate(deployment.asks.items())
    }
    definitions = parameters.get("definitions", {})
    return {
        "title": "Parameters",
        "type": "object",
        "properties": fields,
        "required": list(deployment.required),
        "definitions": definitions,
    }


def _field(name: str, field: dict[str, Any], choices: tuple[str, ...], *, is_required: bool) -> dict[str, Any]:
    about = {"title": TITLES.get(name, name.capitalize()), "description": " ".join(field.get("description", "").split())}
    if name == "settings":
        return about | {"type": "array", "items": {"type": "string", "pattern": SETTING}, "default": []}
    if not choices:
        return field | about
    one = {"type": "string", "enum": list(choices)}
    if field.get("type") == "array":
        return about | {"type": "array", "items": one, "uniqueItems": True, "default": []}
    default = {} if is_required or field.get("default") is None else {"default": field["default"]}
    return about | one | default
