"""The process workers of this machine, one a pool, in the process that brought everything up: they stop their runs before they end."""

import asyncio
import functools
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import httpx

from phasewise.flows.prefect.server import SERVED
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.process.signals import stop_seconds

T = TypeVar("T")
NAME = "this machine"
AGAIN_SECONDS = 2.0
"""So long after a question that the server did not answer it is put again."""
REPORT_SECONDS = 10.0
"""Beyond the time to save: how long a run may take to report how it ended."""
OTHERS_RARER = 2
RUN_MODULE = "phasewise.deployments.flow_process"


async def work(on_started: Callable[[], None], watching: "asyncio.Task[None] | None" = None) -> None:
    """Run the flow runs of the pools served here until SIGINT or SIGTERM; then stop those at work, so that they save and report it.

    Args:
        watching: looks after the server; it ends only where that has.

    Raises:
        PhasewiseError: the worker ended by itself, or the server did.
    """
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    started: set[str] = set()
    working = {pool: asyncio.create_task(_work_in(pool, started, on_started)) for pool in SERVED}
    stopping = asyncio.create_task(stop.wait())
    every = {stopping, *working.values(), *([watching] if watching else [])}
    await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for pool, task in working.items():
        if not stop.is_set() and task.done():
            raise PhasewiseError(f"the worker of pool {pool} ended by itself: {task.exception() or 'no reason given'}.")
    if watching and not watching.done():
        watching.cancel()  # what is stopped now is not to be started again
        watching = None
    # Ask the flow runs' processes to end, and wait for them while the worker can still report how they did
    import psutil

    running = [child for child in psutil.Process().children() if RUN_MODULE in child.cmdline()]
    if running:
        print(f"stopping {len(running)} flow {'run' if len(running) == 1 else 'runs'}", file=sys.stderr, flush=True)
    for process in running:
        process.terminate()
    deadline = asyncio.get_running_loop().time() + stop_seconds() + REPORT_SECONDS
    while any(process.is_running() for process in running) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.1)
    for task in working.values():
        task.cancel()
    await asyncio.wait(working.values())
    if watching:
        watching.result()


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


def patient(ask: Callable[[], Awaitable[T]]) -> Callable[[], Coroutine[Any, Any, T]]:
    """The same, asked again until the server answers: Prefect's worker gives up on one that is away for some minutes, and ends its runs."""

    @functools.wraps(ask)
    async def asked() -> T:
        while True:
            try:
                return await ask()
            except httpx.TransportError:
                await asyncio.sleep(AGAIN_SECONDS)

    return asked
