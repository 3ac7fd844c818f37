"""`python -m phasewise.flows.prefect.server_process FD PORT`: the process of a Prefect server. It ends when its standard input ends.

Only this module loads Prefect's database code: other commands stay light.
"""

import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import docket
import uvicorn
from prefect.server.api import background_workers
from prefect.server.api.server import create_app
from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration
from prefect.server.database.dependencies import MODELS_DEPENDENCIES
from prefect.server.database.orm_models import FlowRun
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from prefect.utilities.names import generate_slug
from sqlalchemy import ColumnDefault
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from phasewise.flows.prefect.access import LOOPBACK, OwnAddress, open_route
from phasewise.flows.prefect.server import TAG
from phasewise.flows.prefect.submission import CheckedSubmissions, run_name
from phasewise.trainer.process.child_process import collect_rarely, end_with_parent

CHECK_INTERVAL = timedelta(seconds=0.5)
"""Time between looks for due background work. Docket's default is 250 ms, which an idle server pays in CPU time."""


class QuietWorker(docket.Worker):
    """Docket's worker for background work, without its look for cancellations ten times a second. Prefect's server cancels no such work."""

    def __init__(self, background: docket.Docket) -> None:
        super().__init__(background, minimum_check_interval=CHECK_INTERVAL, scheduling_resolution=CHECK_INTERVAL)

    async def _cancellation_listener(self) -> None:
        if session := self._processing_session:
            session.cancellation_ready.set()
            await session.stopping.wait()


class SerializedWrites(AioSqliteConfiguration):
    """A SQLite configuration whose transactions take the write lock at their start.

    Prefect's transactions read first and take the lock at the first write. SQLite rejects the second of two such transactions.
    """

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        """Open an immediate transaction. Sessions inside the block still read without the write lock."""
        async with session.begin() as transaction:
            before = SQLITE_BEGIN_MODE.set("IMMEDIATE")
            try:
                await session.connection()
            finally:
                SQLITE_BEGIN_MODE.reset(before)
            yield transaction


def scheduled_name(context: Any) -> str:
    """Return the name of a new flow run without one: Prefect's scheduler gives none. `context`: SQLAlchemy's, with the row."""
    row = context.get_current_parameters()
    return run_name("train", row["parameters"]) if TAG in row.get("tags", ()) else generate_slug(2)


def serve(listening: socket.socket, port: int) -> None:
    """Serve Prefect's API and pages on the inherited socket of a port until standard input ends."""
    collect_rarely()
    os.chdir(os.environ["PREFECT_HOME"])  # Prefect's migrations put the current folder on the module path
    end_with_parent(0)
    MODELS_DEPENDENCIES["database_config"] = SerializedWrites(connection_url=str(PREFECT_API_DATABASE_CONNECTION_URL.value()))
    FlowRun.__table__.c.name.default = ColumnDefault(scheduled_name)  # pyright: ignore[reportAttributeAccessIssue]  # it is a Column
    background_workers.Worker = QuietWorker  # pyright: ignore[reportPrivateImportUsage]  # `background_worker` starts it
    app = create_app(final=True)
    app.router.routes.insert(0, open_route())
    own = " ".join(f"{scheme}://{name}:{port}" for scheme in ("http", "ws") for name in LOOPBACK[:2])
    inline = "'self' 'unsafe-inline' 'unsafe-eval' data: blob:"  # Prefect's pages would load foreign scripts beside the auth string
    policy = f"default-src {inline}; connect-src 'self' {own}; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
    headers = [("Content-Security-Policy", policy)]
    config = uvicorn.Config(OwnAddress(CheckedSubmissions(app), port=port), log_level="warning", timeout_keep_alive=5, headers=headers)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
