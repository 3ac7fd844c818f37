"""What a JobSet's manifest must satisfy: the schema of its resource where that is here, and a check of our own of what we write."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

SCHEMA = Path(__file__).parents[5] / "shared" / "jobset" / "jobset.x-k8s.io_jobsets.yaml"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MAX_NAME = 63
TOP = {"apiVersion", "kind", "metadata", "spec"}
SPEC = {"network", "failurePolicy", "successPolicy", "replicatedJobs"}
JOB = {"parallelism", "completions", "completionMode", "backoffLimit", "template"}
POD = {"restartPolicy", "terminationGracePeriodSeconds", "nodeSelector", "serviceAccountName", "volumes", "containers"}
CONTAINER = {"name", "image", "command", "ports", "env", "resources", "volumeMounts"}


def problems_of(manifest: Any) -> list[str]:
    """What an API server would refuse; empty where nothing is wrong."""
    return [*schema_problems(manifest), *own_problems(manifest)]


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


def own_problems(manifest: Any) -> list[str]:
    """Names, fields and types of what we write, the one owner of restarts, and what no schema says: what must agree with what."""
    metadata, spec = manifest.get("metadata", {}), manifest.get("spec", {})
    found = [] if (manifest.get("apiVersion"), manifest.get("kind")) == ("jobset.x-k8s.io/v1alpha2", "JobSet") else ["no JobSet v1alpha2"]
    found += _unknown(manifest, TOP, "manifest") + _unknown(spec, SPEC, "spec")
    found += [] if spec.get("failurePolicy", {}).get("maxRestarts") == 0 else ["failurePolicy.maxRestarts must be 0"]
    annotations = metadata.get("annotations", {})
    found += [f"annotation {name} must be a text" for name, value in annotations.items() if not isinstance(value, str)]
    jobs = spec.get("replicatedJobs", [])
    found += [] if jobs else ["replicatedJobs is empty"]
    for job in jobs:
        hosts = job["template"]["spec"].get("completions", 1)
        last = f"{metadata.get('name')}-{job.get('name')}-{job.get('replicas', 1) - 1}-{hosts - 1}-xxxxx"
        found += [] if NAME.fullmatch(last) and len(last) <= MAX_NAME else [f"the pods' names are no names of hosts: {last}"]
        found += _job_problems(job["template"]["spec"])
    return found


def _job_problems(job: Any) -> list[str]:
    found = _unknown(job, JOB, "job")
    if job.get("backoffLimit") != 0 or job["template"]["spec"].get("restartPolicy") != "Never":
        found.append("backoffLimit must be 0 and restartPolicy Never: nothing but the launcher starts a run again")
    if job.get("completionMode") != "Indexed" or job.get("parallelism") != job.get("completions"):
        found.append("all hosts of a slice run at once, by their index")
    pod = job["template"]["spec"]
    found += _unknown(pod, POD, "pod")
    if not isinstance(pod.get("terminationGracePeriodSeconds"), int):
        found.append("terminationGracePeriodSeconds must be a whole number")
    volumes = {one["name"] for one in pod.get("volumes", ())}
    for container in pod.get("containers", ()):
        found += _unknown(container, CONTAINER, "container")
        names = [one["name"] for one in container.get("env", ())]
        found += [f"env has {name} twice" for name in {name for name in names if names.count(name) > 1}]
        found += [f"env {one['name']} must be a text" for one in container.get("env", ()) if not isinstance(one.get("value", ""), str)]
        found += [f"no volume {one['name']}" for one in container.get("volumeMounts", ()) if one["name"] not in volumes]
        resources = container.get("resources", {})
        found += [] if resources.get("requests") == resources.get("limits") else ["requests of TPUs must equal their limits"]
    return found


def _unknown(value: Any, known: set[str], where: str) -> list[str]:
    return [f"{where} has no field {name}" for name in value if name not in known]
