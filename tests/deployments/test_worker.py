"""The worker and the server of `phasewise up`, where the one is away and the other waits."""

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from phasewise.deployments import worker
from phasewise.deployments.worker import patient
from phasewise.flows.prefect.server import MAX_REVIVED, OwnServer


def test_a_worker_asks_again_until_the_server_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "AGAIN_SECONDS", 0.001)
    tries: list[int] = []

    async def ask() -> str:
        tries.append(1)
        if len(tries) < 30:  # Prefect's own loop gives up after twelve
            raise httpx.ConnectError("refused")
        return "runs"

    assert asyncio.run(patient(ask)()) == "runs"
    assert len(tries) == 30


def test_what_the_server_refuses_is_not_asked_again():
    async def ask() -> str:
        raise httpx.HTTPStatusError("no such pool", request=httpx.Request("GET", "http://x"), response=httpx.Response(404))

    with pytest.raises(httpx.HTTPStatusError):
        asyncio.run(patient(ask)())


def test_a_server_that_ends_again_and_again_is_given_up(tmp_path: Path):
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", ""])

    server = OwnServer("http://127.0.0.1:1/api", "phasewise:x", tmp_path / "log", start(), 0, start)
    lives = [server.process]
    while server.revive():
        lives.append(server.process)
    assert len(lives) == 1 + MAX_REVIVED
    assert [life.wait() for life in lives] == [0] * len(lives)
