"""The process worker of this machine: it lives in the process that brought everything up, and stops its flow runs before it ends."""

import asyncio
import signal
import sys
from collections.abc import Callable

from flows.server import POOL
from trainer.base.errors import PhasewiseError
from trainer.process.stopping import stop_seconds

NAME = "this machine"
REPORT_SECONDS = 10.0
"""Beyond the time to save: how long a run may take to report how it ended."""
RUN_MODULE = "deployments.flow_process"


async def work(on_started: Callable[[], None], watching: "asyncio.Task[None] | None" = None) -> None:
    """Run flow runs of the pool until SIGINT or SIGTERM; then stop those at work, so that they save and report it, and return.

    Args:
        watching: looks after the server; it ends only where that has.

    Raises:
        PhasewiseError: the worker ended by itself, or the server did.
    """
    from prefect.workers.process import ProcessWorker

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    worker = ProcessWorker(work_pool_name=POOL, name=NAME, create_pool_if_not_found=False)
    working = asyncio.create_task(worker.start(printer=lambda message: on_started() if "started" in message else None))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping} | ({watching} if watching else set()), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not stop.is_set() and working.done():
        raise PhasewiseError(f"the worker of pool {POOL} ended by itself: {working.exception() or 'no reason given'}.")
    await _stop_runs()
    working.cancel()
    await asyncio.wait({working})
    if watching and watching.done():
        watching.result()


async def _stop_runs() -> None:
    """Ask the flow runs' processes to end, and wait for them while the worker can still report how they did."""
    import psutil

    running = [child for child in psutil.Process().children() if RUN_MODULE in child.cmdline()]
    if running:
        print(f"stopping {len(running)} flow {'run' if len(running) == 1 else 'runs'}", file=sys.stderr, flush=True)
    for process in running:
        process.terminate()
    deadline = asyncio.get_running_loop().time() + stop_seconds() + REPORT_SECONDS
    while any(process.is_running() for process in running) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.1)
