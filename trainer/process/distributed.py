"""Several processes as one program: every host runs `python -m phasewise.trainer RUN.json`, and `jax.distributed` joins them.

`docs/reference/trainer.md` has the environment variables. Only process 0 writes metrics, heartbeat and result. All processes write
checkpoints.
"""

import importlib
import itertools
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils

from phasewise.trainer.base.errors import ConfigError, ExitCode, PhasewiseError, TrainingError
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process.environment import check_environment
from phasewise.trainer.process.rendezvous import meet

DEFAULT_HEARTBEAT_SECONDS = 60
START_SECONDS = 300  # the limit for waiting for other processes at the start and at the end
ERROR_SECONDS = 10  # the time that a failed process waits for the failure of the others
_stop_requests = itertools.count(1)
STATUS = re.compile("(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")
"""The beginning of error messages of XLA's runtime."""


def start(environment: Mapping[str, str] = os.environ, run: RunConfig | None = None) -> int:
    """Join the other processes of the environment, if any, before the first use of a device. Return the number of processes."""
    check_environment(environment)
    address = environment.get("JAX_COORDINATOR_ADDRESS") or None
    is_pod = "," in environment.get("TPU_WORKER_HOSTNAMES", "") or environment.get("MEGASCALE_COORDINATOR_ADDRESS")
    if not address and not is_pod:
        return 1
    names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = [name for name in names if environment.get(name)]
    if len(given) == 1:
        raise ConfigError(f"{' and '.join(names)} must be set both or not at all, found only {given[0]}: set the missing variable.")
    numbers: dict[str, int] = {}
    for name in (*given, "PHASEWISE_HEARTBEAT_SECONDS"):
        text = environment.get(name, str(DEFAULT_HEARTBEAT_SECONDS))
        if not text.isdecimal():
            raise ConfigError(f"the environment variable {name} must be a whole number, found {text!r}: correct it.")
        numbers[name] = int(text)
    count, index = (numbers.get(name) for name in names)
    if count is not None and index is not None and index >= count:
        raise ConfigError(f"JAX_PROCESS_ID must be below JAX_NUM_PROCESSES, found {index} of {count}: processes count from 0.")
    if run is not None and count is not None and index is not None:
        meet(run, index, count, environment)
    is_local = address is not None and address.startswith("127.")
    if is_local:  # else CPUs exchange arrays at a public address of this machine, and jax has no option for it
        private: Any = importlib.import_module("jax._src.lib")._jax
        private.make_gloo_tcp_collectives = partial(private.make_gloo_tcp_collectives, hostname="127.0.0.1")
    try:
        jax.distributed.initialize(
            address,
            coordinator_bind_address=address if is_local else None,  # without it, jax listens on every address of this machine
            num_processes=count,
            process_id=index,
            initialization_timeout=START_SECONDS,
            heartbeat_timeout_seconds=numbers["PHASEWISE_HEARTBEAT_SECONDS"],
            shutdown_timeout_seconds=START_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"the processes of this run did not come together: {error}") from error
    return jax.process_count()


def is_first() -> bool:
    """Return whether this process writes the files of the whole run."""
    return jax.process_index() == 0


def stop_agreed(_step: int) -> bool:
    """Return whether all processes stop after this step because one of them got SIGTERM. Every process calls this after every step.

    jax stops all processes at the number after the largest requested number. So the numbers must be 1, 2, 3, … The steps of a resumed or
    rolled-back run are not, and a SIGTERM before the first step of such a run would be lost.
    """
    return multihost_utils.reached_preemption_sync_point(next(_stop_requests))


def coordinator_client() -> Any:
    """Return the client of the coordinator's key-value store."""
    from jax._src.distributed import global_state  # jax has no public API for it

    return global_state.client


@contextmanager
def joined(run: RunConfig | None = None) -> Iterator[None]:
    """Join the other processes, if any, and wait for them at the end. A failed process waits only `ERROR_SECONDS`."""
    if start(run=run) == 1:
        yield
        return
    try:
        yield
    except Exception as error:
        if is_of_the_runtime(error):
            _end(f"another process of this run is gone, or a device failed: start all processes again. {error}", ExitCode.LOST)
        try:
            coordinator_client().wait_at_barrier("phasewise/end", 1000 * ERROR_SECONDS)  # most errors occur in all processes
        except jax.errors.JaxRuntimeError:
            if not isinstance(error, PhasewiseError):
                traceback.print_exc()
            _end(f"{error}", getattr(error, "exit_code", ExitCode.REFUSED))
        jax.distributed.shutdown()
        raise
    jax.distributed.shutdown()


def is_of_the_runtime(error: Exception) -> bool:
    """Return whether the device computation failed, for example because another process is gone. A dispatch raises a `ValueError`."""
    return isinstance(error, jax.errors.JaxRuntimeError) or (isinstance(error, ValueError) and bool(STATUS.match(str(error))))


def _end(message: str, code: int) -> NoReturn:
    print(f"trainer: {message}", file=sys.stderr, flush=True)
    os._exit(code)
