"""Dask clusters: a local cluster, or a scheduler by address."""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

import dask.config
import psutil
from dask.distributed import Client, Future, KilledWorker, LocalCluster, as_completed
from distributed.client import ClosedClientError, FutureCancelledError
from distributed.comm.core import CommClosedError

from phasewise.tasks.data.source import HubTrouble
from phasewise.tasks.progress import Meter, advance
from phasewise.trainer.base.errors import ConfigError, DataError, PhasewiseError

Result = TypeVar("Result")
SCHEDULER_VARIABLE = "PHASEWISE_DASK_SCHEDULER"
WORKERS_VARIABLE = "PHASEWISE_DASK_WORKERS"
LOOPBACK = "127.0.0.1:0"
SCRATCH_PREFIX = "phasewise-dask-"
MAX_IN_FLIGHT = 1000
RETRIES = 3
CONNECT_SECONDS = 30
FIRST_WORKER_SECONDS = 120
_ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
WORKERS = {
    f"{_ENVIRONMENT}.MALLOC_ARENA_MAX": 1,
    f"{_ENVIRONMENT}.MALLOC_MMAP_THRESHOLD_": 32 * 2**20,
    f"{_ENVIRONMENT}.MALLOC_TRIM_THRESHOLD_": 64 * 2**20,
    "distributed.worker.profile.enabled": False,
}
"""One arena avoids fragmentation, and the thresholds keep buffers for reuse, while Dask's own return each large buffer to the system."""
Shared = Callable[[], Client]  # returns the client of a cluster that several stages share


@contextmanager
def one_cluster() -> Iterator[Shared]:
    """A cluster to share between stages. The first stage with work starts it."""
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(cluster()))


@contextmanager
def cluster() -> Iterator[Client]:
    """The client of the configured scheduler or of a new cluster. Raises DataError if the scheduler does not answer or has no worker."""
    if address := os.environ.get(SCHEDULER_VARIABLE):
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # the client logs tracebacks of errors that `run_all` reports
        try:
            client = Client(address, timeout=CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            raise DataError(f"no Dask scheduler answers at {address} ({SCHEDULER_VARIABLE}): {error}") from None
        with client:
            try:
                client.wait_for_workers(1, timeout=FIRST_WORKER_SECONDS)
            except TimeoutError:
                raise DataError(
                    f"the Dask scheduler at {address} ({SCHEDULER_VARIABLE}) must have a worker, found none in {FIRST_WORKER_SECONDS} "
                    "seconds. Start workers and run again."
                ) from None
            yield client
        return
    workers = num_workers()
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*-*"):
        process = folder.name.removeprefix(SCRATCH_PREFIX).partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            shutil.rmtree(folder, ignore_errors=True)
    with (
        dask.config.set(WORKERS),
        tempfile.TemporaryDirectory(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as scratch,
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address=LOOPBACK,  # without an address it would take port 8787
            scheduler_kwargs={"dashboard": False},
            security=True,  # workers run arbitrary code: the certificates of a cluster exist only in memory
            local_directory=scratch,
            silence_logs=logging.CRITICAL,  # a worker that ends after its scheduler logs a traceback
        ) as local,
        Client(local) as client,
    ):
        yield client


def num_workers() -> int:
    """The number of workers in the variable, or of cores. Raises ConfigError if the variable is not a positive integer."""
    value = os.environ.get(WORKERS_VARIABLE) or str(os.cpu_count() or 1)
    with suppress(ValueError):
        if (workers := int(value)) >= 1:
            return workers
    raise ConfigError(f"{WORKERS_VARIABLE} must be a whole number of at least 1, found '{value}'. Correct it, or leave it unset.")


def workers_at_work() -> int:
    """The number of workers of the configured scheduler, or of this machine. Raises DataError as `cluster`."""
    if not os.environ.get(SCHEDULER_VARIABLE):
        return num_workers()
    with cluster() as client:
        return len(client.nthreads())  # pyright: ignore[reportArgumentType]  # typed as awaitable or not


def run_all(
    work: str,
    function: Callable[..., Result],
    calls: Sequence[tuple[object, ...]],
    meter: Meter | None = None,
    shared: Shared | None = None,
) -> list[Result]:
    """Call a function with each tuple of arguments in parallel and return the results in order. The first error ends the work.

    The function must write its output to a store and must be idempotent, because the calls of a lost worker are repeated. `meter`: bytes of
    the calls, for the progress. None counts calls. `shared`: None takes a cluster for this work. Raises DataError if the scheduler does not
    answer or stops, or a call kills its worker repeatedly.
    """
    if not calls:
        return []
    with cluster() if shared is None else nullcontext(shared()) as client:
        try:
            results: dict[int, Result] = {}
            numbers: dict[Future, int] = {}
            waiting = iter(enumerate(calls))

            def submit(count: int) -> list[Future]:
                futures: list[Future] = []
                for number, call in islice(waiting, count):
                    futures.append(client.submit(_attempt, function, call, pure=False, retries=RETRIES))
                    numbers[futures[-1]] = number
                return futures

            finished = as_completed(submit(MAX_IN_FLIGHT))
            for future in finished:
                outcome = future.exception() if future.status == "error" else future.result()
                if isinstance(outcome, BaseException):
                    client.cancel(list(numbers))
                    raise outcome
                number = numbers.pop(future)
                results[number] = outcome
                finished.update(submit(1))
                note, seconds_left = meter.add(number) if meter else ("", None)
                advance(work, len(results), len(calls), note, seconds_left)
            return [results[number] for number in range(len(calls))]
        except (CommClosedError, FutureCancelledError, ClosedClientError) as error:
            raise DataError(f"{work}: the Dask scheduler went away. Start it and run again: what is finished is kept.") from error
        except KilledWorker as error:
            raise DataError(f"{work}: a worker died {RETRIES + 1} times at the same work. It may need more memory: {error}") from error
        except HubTrouble as error:
            raise DataError(f"{work}: {error}") from error


def _attempt(function: Callable[..., Result], call: tuple[object, ...]) -> Result | PhasewiseError:
    """The result, or a `PhasewiseError` as a value. Dask then retries only transient errors."""
    try:
        return function(*call)
    except PhasewiseError as error:
        return error
