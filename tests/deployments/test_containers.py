import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import prefect.settings
import pytest
import yaml

from phasewise.flows.prefect.server import SERVED

ROOT = Path(__file__).parents[2]
DEPLOYMENTS = ROOT / "deployments"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOYMENTS / "kubernetes.yaml").read_text()))
OF_OTHERS = {"HF_TOKEN", "POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD"}


class Container(NamedTuple):
    where: str
    image: str
    command: tuple[str, ...]
    environment: tuple[str, ...]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for manifest in MANIFESTS:
        spec, name = manifest["spec"], manifest["metadata"]["name"]
        if manifest["kind"] == "Deployment":
            yield name, spec["template"]["spec"]
        elif manifest["kind"] == "DaskCluster":
            yield f"{name} scheduler", spec["scheduler"]["spec"]
            yield f"{name} worker", spec["worker"]["spec"]


def containers() -> Iterator[Container]:
    for name, service in COMPOSE["services"].items():
        yield Container(f"compose: {name}", service["image"], tuple(service.get("command", ())), tuple(service.get("environment", ())))
    for name, pod in pods():
        for one in pod["containers"]:
            environment = tuple(entry["name"] for entry in one.get("env", ()))
            yield Container(f"kubernetes: {name}", one["image"], tuple(one["command"]), environment)


ALL = list(containers())


def test_images_are_pinned_and_ours_has_every_room():
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    for one in ALL:
        name, _, tag = one.image.rpartition(":")
        assert re.fullmatch(r"\d+\.\d+.*", tag), one
        if name.endswith("phasewise"):
            assert tag == version[1], one
    dockerfile = (DEPLOYMENTS / "Dockerfile").read_text()
    assert re.search(r"^FROM python:3\.11\.\d+-", dockerfile, re.MULTILINE)
    rooms = re.search(r"include = \[(.*)\]", (ROOT / "pyproject.toml").read_text())
    assert rooms
    assert all(f"COPY {room} ./{room}" in dockerfile for room in re.findall(r'"(\w+)\*"', rooms[1]))


@pytest.mark.parametrize("name", sorted({name for one in ALL for name in one.environment}))
def test_every_variable_is_read(name: str):
    if name.startswith("PHASEWISE_"):
        assert any(f'"{name}"' in path.read_text() for room in ("flows", "tasks", "trainer") for path in (ROOT / room).rglob("*.py")), name
    elif name.startswith("PREFECT_"):
        assert hasattr(prefect.settings, name), name
    else:
        assert name in OF_OTHERS


def test_a_worker_knows_server_and_home_and_a_server_asks_for_a_secret_on_loopback_alone():
    workers = [one for one in ALL if one.command[:3] == ("prefect", "worker", "start")]
    servers = [one for one in ALL if one.command[:3] == ("prefect", "server", "start")]
    assert len(workers) == len(servers) == 2
    wanted = {f"PREFECT_SERVER_API_{name}" for name in ("AUTH_STRING", "CSRF_PROTECTION_ENABLED", "CORS_ALLOWED_ORIGINS")}
    assert all(wanted <= set(one.environment) for one in servers)
    for one in workers:
        assert {"PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PHASEWISE_HOME", "PHASEWISE_DASK_SCHEDULER"} <= set(one.environment), one
        assert one.command[one.command.index("--pool") + 1] in SERVED
    services = COMPOSE["services"].values()
    given = [str(value) for service in services for value in service.get("environment", {}).values()]
    assert all(":?" in value for value in given if "PASSWORD" in value or "AUTH" in value)
    assert {port.partition(":")[0] for service in services for port in service.get("ports", ())} == {"127.0.0.1"}
    secrets = [entry for _, pod in pods() for one in pod["containers"] for entry in one.get("env", ()) if "AUTH" in entry["name"]]
    assert all("secretKeyRef" in entry["valueFrom"] for entry in secrets)


@pytest.mark.parametrize("command", sorted({one.command for one in ALL if one.command}), ids=" ".join)
def test_every_command_is_one_of_this_installation(command: tuple[str, ...]):
    program = command[: 3 if command[0] == "prefect" else 2]
    words = [str(Path(sys.executable).parent / program[0]), *program[1:], "--help"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    for option in (word for word in command[len(program) :] if word.startswith("--")):
        assert re.search(rf"{option}\b", said), f"{option} is no option of {' '.join(program)}"
