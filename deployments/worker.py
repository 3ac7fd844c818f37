"""The workers of `phasewise up`, and the supervision of its server and flow runs."""

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import httpx

from phasewise.flows.prefect.missed_schedules import close_missed
from phasewise.flows.prefect.server import SERVED, OwnServer
from phasewise.flows.prefect.stale_runs import Rerun, Sweep
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.process.signals import stop_seconds

T = TypeVar("T")
NAME = "this machine"
RUN_MODULE = "phasewise.deployments.flow_process"
RETRY_SECONDS, LOOK_SECONDS, SWEEP_SECONDS = 2.0, 1.0, 5.0
SWEEPS_A_SCHEDULE = 3
"""Missed and waiting runs are looked for in one of so many sweeps. A phase wakes the runs that wait for it at its end."""
REPORT_SECONDS = 10.0
"""Time for a stopped flow run to report its end, after the time to save."""
OTHERS_RARER = 2
"""Workers of the other pools poll less often than the worker of the first."""


async def work(on_started: Callable[[], None], supervision: "asyncio.Task[None] | None" = None) -> None:
    """Run the flow runs of the served pools until SIGINT or SIGTERM. Then stop active flow runs, so that they save and report.

    Raises:
        PhasewiseError: a worker ended by itself, or the server ended too often.
    """
    import psutil

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    started: set[str] = set()
    workers = {pool: asyncio.create_task(_work_in(pool, started, on_started)) for pool in SERVED}
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, *workers.values(), *([supervision] if supervision else [])}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for pool, task in workers.items():
        if not stop.is_set() and task.done():
            raise PhasewiseError(f"the worker of pool {pool} ended by itself: {task.exception() or 'no reason given'}.")
    if supervision and not supervision.done():
        supervision.cancel()  # it would restart the flow runs that are stopped below
        supervision = None
    # Workers stay up until the flow runs have ended: the workers report how they ended
    running = [child for child in psutil.Process().children() if RUN_MODULE in child.cmdline()]
    if running:
        click.echo(f"stopping {len(running)} flow {'run' if len(running) == 1 else 'runs'}", err=True)
    for process in running:
        process.terminate()
    deadline = loop.time() + stop_seconds() + REPORT_SECONDS
    while any(process.is_running() for process in running) and loop.time() < deadline:
        await asyncio.sleep(0.1)
    for task in workers.values():
        task.cancel()
    await asyncio.wait(workers.values())
    if supervision:
        supervision.result()


async def _work_in(pool: str, started: set[str], on_all_started: Callable[[], None]) -> None:
    from prefect.settings import PREFECT_WORKER_QUERY_SECONDS, temporary_settings
    from prefect.workers.process import ProcessWorker

    before = set(SERVED[: SERVED.index(pool)])
    while not before <= started:
        await asyncio.sleep(0.1)

    def note(message: str) -> None:
        if "started" in message:
            started.add(pool)
            if started == set(SERVED):
                on_all_started()

    seconds = PREFECT_WORKER_QUERY_SECONDS.value() * (OTHERS_RARER if before else 1)
    with temporary_settings({PREFECT_WORKER_QUERY_SECONDS: seconds}):
        worker = ProcessWorker(work_pool_name=pool, name=NAME, create_pool_if_not_found=False)
        for name in ("get_and_submit_flow_runs", "sync_with_backend"):
            setattr(worker, name, patient(getattr(worker, name)))
        await worker.start(printer=note)


def patient(request: Callable[[], Awaitable[T]]) -> Callable[[], Coroutine[Any, Any, T]]:
    """Retry a request until the server answers. Prefect's worker gives up after some minutes, and ends its flow runs."""

    @functools.wraps(request)
    async def retried() -> T:
        while True:
            try:
                return await request()
            except httpx.TransportError:
                await asyncio.sleep(RETRY_SECONDS)

    return retried


async def supervise(home: Home, server: OwnServer | None) -> None:
    """Print errors of the server and restart it. Close orphaned and missed flow runs, wake waiting ones, restart crashed ones.

    Args:
        server: None if another program runs the server. Then only flow runs with a process in this home are touched.

    Raises:
        PhasewiseError: the server ended too often.
    """
    from phasewise.flows.prefect.dependency_wait import wake  # it loads Prefect

    sweep = Sweep(home, SERVED)
    rerun = Rerun(home, datetime.now(UTC), SERVED if server else ())
    since_sweep, sweeps = 0.0, 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if server:
            for error in server.new_errors():
                click.echo(f"phasewise: the Prefect server reports: {error} (see {server.log})", err=True)
            if line := server.restart_if_ended():
                click.echo(f"phasewise: {line}", err=True)
        since_sweep += LOOK_SECONDS
        if since_sweep >= SWEEP_SECONDS:
            with suppress(httpx.HTTPError):  # the server is busy or down: the next sweep is soon
                await sweep.look()
                sweeps += 1
                if sweeps % SWEEPS_A_SCHEDULE == 0:
                    await close_missed()
                    await wake(home)
                for name in await rerun.look(but=sweep.asked):
                    click.echo(f"phasewise: '{name}' crashed, and is started once more", err=True)
            since_sweep = 0.0
