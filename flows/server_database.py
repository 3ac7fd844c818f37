"""How the server of a home writes to its database, a file of SQLite, which has one writer at a time.

A transaction of Prefect's reads first and asks for the right to write when it comes to that. Where somebody else has written since, SQLite
refuses it at once, whatever the timeout: what it has read is old. Prefect's own clients ask again. Its UI does not: of thirteen clicks on
*Submit* while two workers asked for work, two started no run. So each transaction here asks before it reads, and waits for its turn.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration
from prefect.server.database.dependencies import MODELS_DEPENDENCIES
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


class TakesTurns(AioSqliteConfiguration):
    """Transactions that hold the right to write from their beginning."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        """Begin one. What is read beside it, within it, begins as it always does: it must not wait for this one."""
        async with session.begin() as transaction:
            before = SQLITE_BEGIN_MODE.set("IMMEDIATE")
            try:
                await session.connection()
            finally:
                SQLITE_BEGIN_MODE.reset(before)
            yield transaction


def take_turns(url: str) -> None:
    """Have the server of this process write so to the database at this address."""
    MODELS_DEPENDENCIES["database_config"] = TakesTurns(connection_url=url)
