import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from phasewise.flows.prefect.server import OwnServer, own_server
from phasewise.flows.prefect.server_process import SerializedWrites
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import StorageError
from tests.ports import free_port
from tests.survival.disks import small_disk

WAIT_SECONDS = 0.3
"""For the second to be done, where nothing keeps it from that."""
COUNT, ADD = text("SELECT count(*) FROM runs"), text("INSERT INTO runs VALUES (1)")


@asynccontextmanager
async def sessions(found: AioSqliteConfiguration) -> AsyncIterator[tuple[AsyncSession, AsyncSession]]:
    engine = await found.engine()
    async with await found.session(engine) as first, await found.session(engine) as second:
        await first.execute(text("CREATE TABLE runs (number INTEGER)"))
        await first.commit()
        yield first, second
    await engine.dispose()


async def both(found: AioSqliteConfiguration) -> int:
    async def write(session: AsyncSession) -> None:
        async with found.begin_transaction(session):
            await session.execute(ADD)

    async with sessions(found) as (first, second):
        async with found.begin_transaction(first):
            await first.execute(COUNT)
            other = asyncio.create_task(write(second))
            await asyncio.wait({other}, timeout=WAIT_SECONDS)
            await first.execute(ADD)
        await other
        return int((await first.execute(COUNT)).scalar_one())


def url(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder / 'prefect.db'}"


def test_two_transactions_take_turns(tmp_path: Path) -> None:
    assert asyncio.run(both(SerializedWrites(url(tmp_path)))) == 2


def test_what_is_read_beside_a_transaction_does_not_wait_for_it(tmp_path: Path) -> None:
    async def read_within() -> int:
        found = SerializedWrites(url(tmp_path))
        async with sessions(found) as (first, second), found.begin_transaction(first):
            await first.execute(ADD)
            return int((await asyncio.wait_for(second.execute(COUNT), 10 * WAIT_SECONDS)).scalar_one())

    assert asyncio.run(read_within()) == 0


BUSY = (
    "12:00:01.000 | ERROR   | prefect.server - Heartbeat failed\nTraceback (most recent call last):\nOperationalError: database is locked\n"
)
BROKEN = "12:00:02.000 | ERROR   | prefect.server - Scheduler died\nTraceback (most recent call last):\nTypeError: no\n"
WARNING = "12:00:03.000 | WARNING | prefect.server - Slow\n"
SAID = ["12:00:02.000 | ERROR   | prefect.server - Scheduler died"]


def server(log: Path) -> OwnServer:
    process: Any = None
    log.touch()
    return OwnServer("http://127.0.0.1:1/api", "phasewise:x", log, process, 0, lambda: process)


def test_an_error_is_said_once_and_a_busy_file_is_none(tmp_path: Path) -> None:
    own = server(tmp_path / "log")
    own.log.write_text(BUSY + BROKEN + WARNING)
    assert own.new_errors() == SAID
    assert own.new_errors() == []
    with open(own.log, "a") as log:
        log.write(BROKEN)
    assert own.new_errors() == []  # it may still grow
    assert own.new_errors() == SAID
    assert own.new_errors() == []
    with open(own.log, "a") as log:
        log.write(WARNING + BROKEN)
    assert own.new_errors(ended=True) == SAID


def test_a_server_whose_disk_is_full_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "128k") as disk:
        home = Home(disk / "home")
        home.prefect.mkdir(parents=True)
        with pytest.raises(StorageError) as refusal, own_server(home, free_port(), "a test"):
            pass
        assert "No space left on device (the Prefect server ended with code " in str(refusal.value)
        assert f"MiB are free on the disk at {disk}." in str(refusal.value)


def test_an_error_that_the_servers_disk_is_the_reason_of_is_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "phasewise.flows.prefect.server._wait_until_up", lambda *_: None
    )  # a server that cannot write its database answers 500, for minutes
    monkeypatch.setattr("phasewise.flows.prefect.server.python_command", lambda *_: ["sleep", "60"])
    home = Home(tmp_path)
    home.prefect.mkdir(parents=True)

    def fail_after(log: str) -> None:
        with own_server(home, 1, "a test") as found:
            found.log.write_text(log)
            raise RuntimeError("Server error '500 Internal Server Error'")

    with pytest.raises(RuntimeError, match="500"):
        fail_after("")
    with pytest.raises(StorageError, match=r"the Prefect server: .*database or disk is full"):
        fail_after("Traceback\nsqlite3.OperationalError: database or disk is full\nINFO: stopping\n")
