"""Transactions on the server's database, a real file of SQLite, that want to write at the same time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from phasewise.flows.prefect.server import TakesTurns

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
    """One reads, the other writes, the first writes; how many were written."""

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
    assert asyncio.run(both(TakesTurns(url(tmp_path)))) == 2


def test_as_prefect_begins_them_one_of_the_two_is_refused(tmp_path: Path) -> None:
    """Where this passes no more, Prefect has mended it, and `flows/prefect/server.py` can go."""
    with pytest.raises(OperationalError, match="database is locked"):
        asyncio.run(both(AioSqliteConfiguration(url(tmp_path))))


def test_what_is_read_beside_a_transaction_does_not_wait_for_it(tmp_path: Path) -> None:
    async def read_within() -> int:
        found = TakesTurns(url(tmp_path))
        async with sessions(found) as (first, second), found.begin_transaction(first):
            await first.execute(ADD)
            return int((await asyncio.wait_for(second.execute(COUNT), 10 * WAIT_SECONDS)).scalar_one())

    assert asyncio.run(read_within()) == 0
