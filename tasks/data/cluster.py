"""Dask inside one stage: a local cluster, or a scheduler by address."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from dask.distributed import Client, LocalCluster, as_completed

from tasks.progress import advance

Result = TypeVar("Result")
SCHEDULER_VARIABLE = "PHASEWISE_DASK_SCHEDULER"
WORKERS_VARIABLE = "PHASEWISE_DASK_WORKERS"


@contextmanager
def cluster() -> Iterator[Client]:
    """A client of the scheduler that `PHASEWISE_DASK_SCHEDULER` names, else of a cluster of its own, a process a core."""
    if address := os.environ.get(SCHEDULER_VARIABLE):
        with Client(address) as client:
            yield client
        return
    workers = int(os.environ.get(WORKERS_VARIABLE) or os.cpu_count() or 1)
    with (
        tempfile.TemporaryDirectory(prefix="phasewise-dask-", ignore_cleanup_errors=True) as scratch,
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address=":0",
            scheduler_kwargs={"dashboard_address": ":0"},  # without a dashboard it would still ask for port 8787
            local_directory=scratch,
            silence_logs=logging.ERROR,
        ) as local,
        Client(local) as client,
    ):
        yield client


def run_all(stage: str, function: Callable[..., Result], calls: Sequence[tuple[object, ...]]) -> list[Result]:
    """Call the function with each tuple of arguments, side by side; results in the order of the calls. The first error ends the stage."""
    if not calls:
        return []
    with cluster() as client:
        futures = [client.submit(function, *call, pure=False, retries=1) for call in calls]
        for done, future in enumerate(as_completed(futures), start=1):
            if future.status == "error":
                error = future.exception()  # before the others are cancelled, and this one with them
                client.cancel(futures)
                raise error  # pyright: ignore[reportGeneralTypeIssues]  # typed as awaitable or not
            advance(stage, done, len(futures))
        return client.gather(futures)  # pyright: ignore[reportReturnType]  # typed as awaitable or not
