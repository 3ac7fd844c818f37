import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.catalogue import POOL, read_deployments, register
from deployments.local import only_one
from flows.leftovers import close_leftovers
from tasks.home import Home
from trainer.errors import PhasewiseError

T = TypeVar("T")
WAIT_SECONDS = 120  # a guard against hanging
ENGINE_THAT_WAITS = """
import signal
import deployments.flow_process as flow_process
flow_process.runpy.run_module = lambda *_, **__: (print("up", flush=True), signal.pause())
flow_process.main()
"""


class Up(NamedTuple):
    """What `phasewise up` brought up."""

    process: subprocess.Popen[str]
    api: str
    text: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(home: Path, port: int) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PHASEWISE_"))}
    command = [sys.executable, "-m", "deployments.local", "--port", str(port), "--home", str(home)]
    return subprocess.Popen(
        command, cwd="/", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def ask(up: Up, path: str, body: dict[str, Any] | None = None) -> Any:
    """One request; asked again, as Prefect's own clients do, where the server says that its database is busy."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{up.api}/{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        pause(up)
        return ask(up, path, body)


def pause(up: Up) -> None:
    """A moment, or none where it is down."""
    with suppress(subprocess.TimeoutExpired):
        up.process.wait(0.2)


def final_state(up: Up, run: str) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and up.process.poll() is None:
        state = ask(up, f"flow_runs/{run}")["state"]
        if state["type"] not in {"SCHEDULED", "PENDING", "RUNNING"}:
            return state
        pause(up)
    raise AssertionError(f"{run} did not end")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    port = free_port()
    with launch(tmp_path / "home", port) as process:
        assert process.stdout
        text = ""
        while "Stop:" not in text and (line := process.stdout.readline()):
            text += line
        try:
            yield Up(process, f"http://127.0.0.1:{port}/api", text)
        finally:
            process.kill()


@pytest.mark.timeout(300)
def test_it_comes_up_runs_what_is_asked_and_leaves_nothing(up: Up) -> None:
    assert f"Prefect UI:  {up.api.removesuffix('/api')}\n" in up.text
    deployment = ask(up, "deployments/name/prepare_data/marin-8b")["id"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(up, f"deployments/{deployment}/create_flow_run", {"parameters": {"scale": "huge"}})
    assert "not one of ['proxy', 'full']" in refused.value.read().decode()
    run = ask(up, f"deployments/{deployment}/create_flow_run", {"parameters": {"recipe": "marin-9b"}})
    assert "ConfigError: no recipe is called 'marin-9b'" in final_state(up, run["id"])["message"]
    check_that_leftovers_are_closed(up, run["id"])
    check_that_schedules_are_kept(up)
    started = psutil.Process(up.process.pid).children(recursive=True)
    assert {os.getsid(process.pid) for process in started}.isdisjoint({up.process.pid})
    os.killpg(up.process.pid, signal.SIGINT)  # as the terminal does at Ctrl-C
    assert up.process.wait(20) == 0
    assert not [process for process in started if process.is_running()]


def check_that_leftovers_are_closed(up: Up, run: str) -> None:
    ask(up, f"flow_runs/{run}/set_state", {"state": {"type": "RUNNING"}, "force": True})
    assert run_with(up, close_leftovers(POOL)) == 1
    assert ask(up, f"flow_runs/{run}")["state"]["type"] == "CRASHED"


def check_that_schedules_are_kept(up: Up) -> None:
    before = ask(up, "deployments/name/train_phase/marin-8b")
    change = urllib.request.Request(
        f"{up.api}/deployments/{before['id']}/schedules/{before['schedules'][0]['id']}",
        b'{"active": true}',
        {"Content-Type": "application/json"},
        method="PATCH",
    )
    urllib.request.urlopen(change, timeout=10).close()
    assert len(run_with(up, register(Path("/elsewhere")))) == len(read_deployments())
    after = ask(up, "deployments/name/train_phase/marin-8b")
    assert [(schedule["slug"], schedule["active"]) for schedule in after["schedules"]] == [("nightly", True)]
    assert (before["schedules"][0]["active"], after["parameters"]["home"]) == (False, "/elsewhere")


def run_with(up: Up, work: Coroutine[Any, Any, T]) -> T:
    """Run it against the server that is up."""
    with temporary_settings({PREFECT_API_URL: up.api}):
        return asyncio.run(work)


def test_a_port_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with launch(tmp_path, port) as process:
            output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (1, "")
    assert errors == f"phasewise: port {port} cannot be used (Address already in use): choose another with --port.\n"


def test_a_home_has_one_server_at_a_time(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with only_one(home):
        with pytest.raises(PhasewiseError, match="at work on"), only_one(home):
            raise AssertionError("entered twice")
        assert (home.prefect / "up.lock").exists()
    with only_one(home):
        assert (home.prefect / "up.lock").exists()


def test_a_flow_run_ends_with_its_worker() -> None:
    with subprocess.Popen([sys.executable, "-c", ENGINE_THAT_WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        process.stdin.close()
        assert process.wait(10) == -signal.SIGTERM
