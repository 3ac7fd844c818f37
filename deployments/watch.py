"""Looks after what is up: a server of our own, what it reports and whether it lives, and runs whose process has gone."""

import asyncio
import sys
from contextlib import suppress
from datetime import UTC, datetime

import httpx

from phasewise.flows.prefect.missed_schedules import close_missed
from phasewise.flows.prefect.server import SERVED, OwnServer
from phasewise.flows.prefect.stale_runs import Rerun, Sweep
from phasewise.tasks.home import Home

LOOK_SECONDS, SWEEP_SECONDS = 1.0, 5.0


async def watch(home: Home, server: OwnServer | None) -> None:
    """Close runs that no process works on, or that were missed; start again what crashed; have runs that wait look again.

    A server of our own is looked after, too: each error that it reports is said, and where it has ended it is started again.

    Args:
        server: None is one that somebody else runs. Of its runs only those are touched that had a process in this home.

    Raises:
        PhasewiseError: the server has ended too often.
    """
    from phasewise.flows.prefect.dependency_wait import wake  # it imports what reads records

    sweep = Sweep(home, SERVED)
    rerun = Rerun(home, datetime.now(UTC), SERVED if server else ())
    since_sweep = 0.0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if server:
            for error in server.new_errors():
                print(f"phasewise: the Prefect server reports: {error} (see {server.log})", file=sys.stderr, flush=True)
            if line := server.keep_up():
                print(f"phasewise: {line}", file=sys.stderr, flush=True)
        since_sweep += LOOK_SECONDS
        if since_sweep >= SWEEP_SECONDS:
            with suppress(httpx.HTTPError):  # a server that is busy or away: the next look comes soon
                await sweep.look()
                await close_missed()
                await wake(home)
                for name in await rerun.look(but=sweep.asked):
                    print(f"phasewise: '{name}' crashed, and is started once more", file=sys.stderr, flush=True)
            since_sweep = 0.0
