"""`phasewise up` as a process, and what tests ask of the server that it brings up."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.ports import free_port

T = TypeVar("T")
WAIT_SECONDS = 600  # a guard against hanging: on a machine with much else to do a first step takes minutes
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class Up(NamedTuple):
    """What `phasewise up` brought up."""

    process: subprocess.Popen[str]
    api: str
    home: Path
    text: str


def environment() -> dict[str, str]:
    """As a new user has it. What XLA compiles in these runs works for milliseconds: it need not be optimised."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PHASEWISE_"))}
    return {**kept, "PHASEWISE_DASK_WORKERS": "2", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def launch(home: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "deployments.local", "--port", str(port), "--home", str(home)]
    return subprocess.Popen(
        command, cwd="/", env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@contextmanager
def brought_up(home: Path) -> Iterator[Up]:
    """Everything up, in the home; killed at the end, if it was not stopped."""
    port = free_port()
    with launch(home, port) as process:
        assert process.stdout
        text = ""
        while "Stop:" not in text and (line := process.stdout.readline()):
            text += line
        try:
            yield Up(process, f"http://127.0.0.1:{port}/api", home, text)
        finally:
            process.kill()


def ask(up: Up, path: str, body: dict[str, Any] | list[Any] | None = None, *, method: str | None = None) -> Any:
    """One request; asked again, as Prefect's own clients do, where the server says that its database is busy."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{up.api}/{path}", data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        pause(up)
        return ask(up, path, body, method=method)


def pause(up: Up) -> None:
    """A moment, or none where it is down."""
    with suppress(subprocess.TimeoutExpired):
        up.process.wait(0.2)


def wait_for(up: Up, what: str, look: Callable[[], T | None]) -> T:
    """What `look` finds, once it does."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and up.process.poll() is None:
        if found := look():
            return found
        pause(up)
    raise AssertionError(f"{what} did not happen")


def start_run(up: Up, deployment: str, **parameters: Any) -> str:
    """A run of the deployment, as the UI starts one; its id."""
    deployment_id = ask(up, f"deployments/name/{deployment}")["id"]
    return ask(up, f"deployments/{deployment_id}/create_flow_run", {"parameters": parameters})["id"]


def state_of(up: Up, run: str) -> dict[str, Any]:
    return ask(up, f"flow_runs/{run}")["state"]


def final_state(up: Up, run: str) -> dict[str, Any]:
    def final() -> dict[str, Any] | None:
        state = state_of(up, run)
        return state if state["type"] in FINAL else None

    return wait_for(up, f"the end of {run}", final)


def logs_of(up: Up, run: str) -> list[str]:
    """What the run says in the UI, its subflows included."""
    runs = [run, *(child["id"] for child in subflows_of(up, run))]
    found = ask(up, "logs/filter", {"logs": {"flow_run_id": {"any_": runs}}, "sort": "TIMESTAMP_ASC", "limit": 200})
    return [line["message"] for line in found]


def subflows_of(up: Up, run: str) -> list[dict[str, Any]]:
    """All below the run, at any depth."""
    children = ask(up, "flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}})
    return [found for child in children for found in (child, *subflows_of(up, child["id"]))]
