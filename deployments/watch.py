"""Looks after a server of our own while it is up: what it reports, whether it lives, and runs whose process has gone."""

import asyncio
import sys
from contextlib import suppress

import httpx

from flows.leftovers import Sweep
from flows.server import POOL, OwnServer
from tasks.home import Home
from trainer.base.errors import PhasewiseError

LOOK_SECONDS, SWEEP_SECONDS = 1.0, 10.0


async def watch(home: Home, server: OwnServer) -> None:
    """Say each error that the server reports; close runs that no process works on any more.

    Raises:
        PhasewiseError: the server has ended.
    """
    sweep = Sweep(home, POOL)
    since_sweep = 0.0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for error in server.new_errors():
            print(f"phasewise: the Prefect server reports: {error} (see {server.log})", file=sys.stderr, flush=True)
        if server.process.poll() is not None:
            raise PhasewiseError(f"the Prefect server has ended, with code {server.process.returncode}; see {server.log}.")
        since_sweep += LOOK_SECONDS
        if since_sweep >= SWEEP_SECONDS:
            with suppress(httpx.HTTPError):  # a busy server: the next look comes soon
                await sweep.look()
            since_sweep = 0.0
