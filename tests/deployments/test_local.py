import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from phasewise.deployments import local
from phasewise.deployments.local import patient
from phasewise.flows.prefect.server import MAX_RESTARTS, OwnServer
from phasewise.flows.prefect.stale_runs import is_present
from phasewise.tasks.home import Home
from phasewise.tasks.locks import holding
from phasewise.trainer.base.errors import PhasewiseError
from tests.deployments.up import WAIT_SECONDS, environment, launch
from tests.ports import free_port


def test_a_worker_asks_again_until_the_server_answers_and_not_if_it_refuses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "RETRY_SECONDS", 0.001)
    tries: list[int] = []

    async def ask() -> str:
        tries.append(1)
        if len(tries) < 30:  # Prefect's own loop gives up after twelve
            raise httpx.ConnectError("refused")
        return "runs"

    assert asyncio.run(patient(ask)()) == "runs"
    assert len(tries) == 30

    async def ask_in_vain() -> str:
        raise httpx.HTTPStatusError("no such pool", request=httpx.Request("GET", "http://x"), response=httpx.Response(404))

    with pytest.raises(httpx.HTTPStatusError):
        asyncio.run(patient(ask_in_vain)())


def test_a_server_that_ends_again_and_again_is_given_up(tmp_path: Path):
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", ""])

    server = OwnServer("http://127.0.0.1:1/api", "phasewise:x", tmp_path / "log", start(), 0, start, lambda: None)
    (tmp_path / "log").touch()
    for _ in range(MAX_RESTARTS):
        server.process.wait()
        assert server.restart_if_ended()
    server.process.wait()
    with pytest.raises(PhasewiseError, match=f"after {MAX_RESTARTS} restarts"):
        server.restart_if_ended()


pytestmark = pytest.mark.timeout(900)  # a guard against hanging
ENGINE_THAT_WAITS = """
import signal
import phasewise.deployments.flow_process as flow_process
flow_process.runpy.run_module = lambda *_, **__: (print("up", flush=True), signal.pause())
flow_process.main()
"""


def test_a_port_or_a_home_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with launch(tmp_path, port) as process:
            output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, output) == (1, "")
    assert errors == f"phasewise: port {port} cannot be used (Address already in use): choose another with --port.\n"
    home = Home(tmp_path)
    with holding(home.server_lock, "`phasewise run x`", url="http://127.0.0.1:1/api"), launch(tmp_path, free_port()) as process:
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, output) == (1, "Starting the Prefect server …\n")
    assert errors.startswith(f"phasewise: `phasewise run x` (process {os.getpid()}, since ")
    assert errors.endswith(f") has the Prefect server of {tmp_path}: wait for it, stop it, or choose another home with --home.\n")


def test_a_flow_run_ends_with_its_worker_and_is_known_to_live_before_prefect_begins(tmp_path: Path) -> None:
    with engine() as process:
        assert process.stdin
        process.stdin.close()
        assert process.wait(WAIT_SECONDS) == -signal.SIGTERM
    home = Home(tmp_path)
    assert is_present(home, "a-run") is None
    with engine(PHASEWISE_HOME=str(tmp_path), PREFECT__FLOW_RUN_ID="a-run") as process:
        assert is_present(home, "a-run") is True
        process.kill()
        process.wait(WAIT_SECONDS)
        assert is_present(home, "a-run") is False
    with engine(PHASEWISE_HOME=str(tmp_path), PREFECT__FLOW_RUN_ID="a-run") as process:
        assert is_present(home, "a-run") is True, "started again, it is alive again"
        process.kill()


@contextmanager
def engine(**settings: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", ENGINE_THAT_WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**environment(), **settings}) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        yield process


def test_prefect_is_not_imported_before_the_address_of_the_server_is_known() -> None:
    look = "import sys, deployments.local; sys.exit('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0
