"""`phasewise up` as a process, and what tests ask of the server that it brings up."""

import base64
import json
import math
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

from phasewise.flows.prefect.access import AUTH_NAME, LINKS_NAME
from phasewise.trainer.process.child_process import python_command
from tests.shadows import write_shadows

T = TypeVar("T")
SECRET = "planted-secret-4b1d"  # in the environment of everything that these tests start; it must be nowhere else
WAIT_SECONDS = 600  # a guard against hanging: on a machine with much else to do a first step takes minutes
CSRF_SECONDS = 1800  # Prefect's tokens are valid for an hour, also on a server that is started again
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}

QUICK = {
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2", "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1", "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "1",
    "PREFECT_WORKER_QUERY_SECONDS": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}  # fmt: skip
"""Prefect's services look once a minute where nothing presses. What XLA compiles in these runs works for milliseconds."""


@dataclass
class Up:
    home: Path
    port: int
    options: tuple[str, ...]
    settings: dict[str, str]
    process: subprocess.Popen[str] = field(init=False)
    text: str = field(init=False)
    _csrf: str = field(init=False, default="")
    _csrf_at: float = field(init=False, default=-math.inf)

    @property
    def ui(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def site(self) -> str:
        return next(line.split()[-1] for line in self.text.splitlines() if line.startswith("Everything:"))

    @property
    def links(self) -> list[str]:
        return (self.home / "prefect" / LINKS_NAME).read_text().splitlines()

    @property
    def auth(self) -> str:
        return (self.home / "prefect" / AUTH_NAME).read_text().strip()

    @property
    def prefect_settings(self) -> dict[Any, str]:
        return {PREFECT_API_URL: f"{self.ui}/api", PREFECT_API_AUTH_STRING: self.auth}

    @property
    def headers(self) -> dict[str, str]:
        shown = {"Authorization": f"Basic {base64.b64encode(self.auth.encode()).decode()}"}
        if time.monotonic() - self._csrf_at > CSRF_SECONDS:
            request = urllib.request.Request(f"{self.ui}/api/csrf-token?client=tests", headers=shown)
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
                self._csrf, self._csrf_at = json.load(answer)["token"], time.monotonic()
        return {**shown, "Content-Type": "application/json", "Prefect-Csrf-Client": "tests", "Prefect-Csrf-Token": self._csrf}

    def start(self) -> None:
        self.process = launch(self.home, self.port, *self.options, settings=self.settings)
        assert self.process.stdout
        self.text = ""
        while "Stop:" not in self.text and (line := self.process.stdout.readline()):
            self.text += line
        assert "Stop:" in self.text, f"it did not come up: {self.text}{self.process.communicate()[1]}"

    def kill(self) -> list[psutil.Process]:
        """End it as a power cut would; what it had started, which must go by itself."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        self.process.kill()
        self.process.communicate()
        return children


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PHASEWISE_"))}
    secrets = dict.fromkeys(("PREFECT_API_KEY", "WANDB_API_KEY", "HF_TOKEN"), SECRET)
    return {**kept, **secrets, **QUICK, "PHASEWISE_DASK_WORKERS": "1"}


def launch(home: Path, port: int, *options: str, settings: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    command = python_command("phasewise.deployments.local", "--port", str(port), "--home", str(home), *options)
    given = {**environment(), **(settings or {})}
    here = write_shadows(home.with_name(f"{home.name}-shadows"))
    return subprocess.Popen(command, cwd=here, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def processes(up: Up, module: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process(up.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since it was listed
            if child.status() != psutil.STATUS_ZOMBIE and module in child.cmdline():
                found.append(child)
    return found


def ask(up: Up, path: str, body: dict[str, Any] | list[Any] | None = None, *, method: str | None = None) -> Any:
    """One request; asked again, as Prefect's own clients do, where the server says that its database is busy."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{up.ui}/api/{urllib.parse.quote(path, safe='/?=&')}", data, up.headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        pause(up)
        return ask(up, path, body, method=method)


def pause(up: Up) -> None:
    with suppress(subprocess.TimeoutExpired):
        up.process.wait(0.5)


def wait_for(up: Up, what: str, look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and up.process.poll() is None:
        if found := look():
            return found
        pause(up)
    raise AssertionError(f"{what} did not happen")


def start_run(up: Up, deployment: str, **parameters: Any) -> str:
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
    runs = [run, *(child["id"] for child in subflows_of(up, run))]
    found = ask(up, "logs/filter", {"logs": {"flow_run_id": {"any_": runs}}, "sort": "TIMESTAMP_ASC", "limit": 200})
    return [line["message"] for line in found]


def subflows_of(up: Up, run: str) -> list[dict[str, Any]]:
    children = ask(up, "flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}})
    return [found for child in children for found in (child, *subflows_of(up, child["id"]))]
