"""What a JobSet's manifest must satisfy: the schema of its resource where that is here, and a check of our own of what we write."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

SCHEMA = Path(__file__).parents[4] / "shared" / "jobset" / "jobset.x-k8s.io_jobsets.yaml"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MAX_NAME = 63
TOP = {"apiVersion", "kind", "metadata", "spec"}
SPEC = {"network", "failurePolicy", "successPolicy", "replicatedJobs"}
JOB = {"parallelism", "completions", "completionMode", "backoffLimit", "template"}
POD = {"restartPolicy", "terminationGracePeriodSeconds", "nodeSelector", "serviceAccountName", "volumes", "containers"}
CONTAINER = {"name", "image", "command", "ports", "env", "resources", "volumeMounts"}


def problems_of(manifest: Any) -> list[str]:
    """What an API server would refuse; empty where nothing is wrong."""
    return schema_problems(manifest)


def schema_problems(manifest: Any) -> list[str]:
    """By the schema; nothing where it is not here."""
    if not SCHEMA.exists():
        return []
    return [f"{error.json_path}: {error.message[:200]}" for error in jsonschema_validator().iter_errors(manifest)]


@cache
def jsonschema_validator() -> Any:
    """The resource's schema. Fields that it does not name are refused: a server drops them without a word."""
    found = yaml.load(SCHEMA.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    [version] = [one for one in found["spec"]["versions"] if one["name"] == "v1alpha2"]
    schema = version["schema"]["openAPIV3Schema"]
    _close(schema)
    schema["properties"]["metadata"].pop("additionalProperties", None)
    return jsonschema.Draft202012Validator(schema)


def _close(schema: Any) -> None:
    if isinstance(schema, list):
        for one in schema:
            _close(one)
    if not isinstance(schema, dict):
        return
    if "properties" in schema and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema["additionalProperties"] = False
    for one in schema.values():
        _close(one)
