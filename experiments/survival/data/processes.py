"""The processes of a build: drivers, schedulers, workers. Each process starts in a new session, which identifies its children."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from experiments.survival.data.folders import is_temporary
from phasewise.tasks.data.cluster import SCHEDULER_VARIABLE, WORKERS_VARIABLE
from phasewise.tasks.locks import LEASE_VARIABLE
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
MAX_SECONDS = 180  # a guard against hanging
POLL_SECONDS = 0.005
LEASE_SECONDS = 2  # seconds until the lock of a killed builder expires on a store
FOR_SCHEDULER = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s"}
"""So long it tries to reach a worker that was killed before it takes it for lost; Dask's default is 30 s."""
Found = TypeVar("Found")


@dataclass(frozen=True)
class Running:
    name: str
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def errors(self) -> Path:
        return self.output.with_suffix(".err")

    def said(self) -> str:
        return f"{self.name}: exit code {self.process.poll()}\n{self.errors.read_text(errors='replace')[-3000:]}"

    def ended(self) -> int:
        try:
            code = self.process.wait(MAX_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"hangs: {self.said()}") from None
        self.is_gone()
        return code

    def succeeded(self) -> str:
        assert self.ended() == 0, self.said()
        return self.output.read_text()

    def is_gone(self) -> None:
        self.process.wait(MAX_SECONDS)
        _, alive = psutil.wait_procs(members(self.pid), timeout=MAX_SECONDS)
        assert not alive, f"left behind by {self.name}: {[process.cmdline() for process in alive]}"

    def workers(self) -> list[psutil.Process]:
        """The workers of a driver's own cluster."""
        return [process for process in members(self.pid) if "--multiprocessing-fork" in _command(process)]


@dataclass(frozen=True)
class Cluster:
    address: str
    scheduler: Running
    workers: list[Running]


@dataclass
class Processes:
    folder: Path
    started: list[Running] = field(default_factory=list)

    def start(self, name: str, *command: str, environment: Mapping[str, str]) -> Running:
        name = f"{len(self.started)}-{name}"
        place = self.folder / name
        place.mkdir(parents=True)
        with open(place / "said.out", "wb") as output, open(place / "said.err", "wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT if command[0].startswith("experiments.") else place,
                env={"TMPDIR": str(place), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        running = Running(name, process, place / "said.out")
        self.started.append(running)
        return running

    def driver(self, home: object, corpus: object, *options: str, cluster: Cluster | None = None, workers: int = 2) -> Running:
        where = {SCHEDULER_VARIABLE: cluster.address} if cluster else {WORKERS_VARIABLE: str(workers)}
        environment = {**os.environ, LEASE_VARIABLE: str(LEASE_SECONDS), **where}
        return self.start("driver", "experiments.survival.data.driver", str(home), str(corpus), *options, environment=environment)

    def cluster(self, *worker_options: str, environment: Mapping[str, str] = os.environ, workers: int = 2) -> Cluster:
        port = free_port()
        address = f"tcp://127.0.0.1:{port}"
        options = ("--host=127.0.0.1", f"--port={port}", "--no-dashboard")
        scheduler = self.start("scheduler", "distributed.cli.dask_scheduler", *options, environment={**environment, **FOR_SCHEDULER})
        command = ("distributed.cli.dask_worker", address, "--host=127.0.0.1", "--no-dashboard", "--no-nanny", *worker_options)
        return Cluster(address, scheduler, [self.start("worker", *command, environment=environment) for _ in range(workers)])

    def end(self) -> None:
        """End everything."""
        for running in self.started:
            for process in members(running.pid):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        for running in self.started:
            running.is_gone()


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    started = Processes(folder)
    try:
        yield started
    finally:
        started.end()


def members(session: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_for(find: Callable[[], Found], running: Running) -> Found:
    while not (found := find()):
        assert running.process.poll() is None, f"ended first: {running.said()}"
        time.sleep(POLL_SECONDS)  # wait for a file of another process
    return found


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stops_while_writing(pid: int) -> bool:
    os.kill(pid, signal.SIGSTOP)
    writes = any(is_temporary(file.path) for file in psutil.Process(pid).open_files())
    if not writes:
        os.kill(pid, signal.SIGCONT)
    return writes


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
