import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.error
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.catalogue import read_deployments, register
from flows.leftovers import close_leftovers
from flows.server import POOL
from tasks.holder import holding
from tasks.home import Home
from tests.deployments.up import WAIT_SECONDS, Up, ask, brought_up, final_state, launch
from tests.ports import free_port

pytestmark = pytest.mark.timeout(900)  # a guard against hanging
T = TypeVar("T")
ENGINE_THAT_WAITS = """
import signal
import deployments.flow_process as flow_process
flow_process.runpy.run_module = lambda *_, **__: (print("up", flush=True), signal.pause())
flow_process.main()
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with brought_up(tmp_path / "home") as up:
        yield up


def test_it_comes_up_runs_what_is_asked_and_leaves_nothing(up: Up) -> None:
    assert f"Prefect UI:  {up.api.removesuffix('/api')}\n" in up.text
    deployment = ask(up, "deployments/name/prepare_data/marin-8b")["id"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(up, f"deployments/{deployment}/create_flow_run", {"parameters": {"scale": "huge"}})
    assert "not one of ['proxy', 'full', 'own']" in refused.value.read().decode()
    run = ask(up, f"deployments/{deployment}/create_flow_run", {"parameters": {"recipe": "marin-9b"}})
    assert "ConfigError: no recipe is called 'marin-9b'" in final_state(up, run["id"])["message"]
    check_that_leftovers_are_closed(up, run["id"])
    check_that_schedules_are_kept(up)
    started = psutil.Process(up.process.pid).children(recursive=True)
    assert {os.getsid(process.pid) for process in started}.isdisjoint({up.process.pid})
    os.killpg(up.process.pid, signal.SIGINT)  # as the terminal does at Ctrl-C
    assert up.process.wait(WAIT_SECONDS) == 0
    assert not [process for process in started if process.is_running()]


def check_that_leftovers_are_closed(up: Up, run: str) -> None:
    """While the server is up those whose process has gone, and at its start also those that had none yet."""
    ask(up, f"flow_runs/{run}/set_state", {"state": {"type": "RUNNING"}, "force": True})
    assert final_state(up, run)["type"] == "CRASHED"
    ask(up, f"flow_runs/{run}/set_state", {"state": {"type": "PENDING"}, "force": True})
    assert run_with(up, close_leftovers(Home(up.home), POOL)) == 1
    assert ask(up, f"flow_runs/{run}")["state"]["type"] == "CRASHED"


def check_that_schedules_are_kept(up: Up) -> None:
    before = ask(up, "deployments/name/train_phase/marin-8b")
    ask(up, f"deployments/{before['id']}/schedules/{before['schedules'][0]['id']}", {"active": True}, method="PATCH")
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
            output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, output) == (1, "")
    assert errors == f"phasewise: port {port} cannot be used (Address already in use): choose another with --port.\n"


def test_a_home_has_one_server_at_a_time(tmp_path: Path) -> None:
    """The second to come is shown who has it."""
    home = Home(tmp_path)
    with holding(home.server_lock, "`phasewise run x`", url="http://127.0.0.1:1/api"), launch(tmp_path, free_port()) as process:
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, output) == (1, "Starting the Prefect server …\n")
    assert errors.startswith(f"phasewise: `phasewise run x` (process {os.getpid()}, since ")
    assert errors.endswith(f") has the Prefect server of {tmp_path}: wait for it, stop it, or choose another home with --home.\n")


def test_a_flow_run_ends_with_its_worker() -> None:
    with subprocess.Popen([sys.executable, "-c", ENGINE_THAT_WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        process.stdin.close()
        assert process.wait(WAIT_SECONDS) == -signal.SIGTERM
