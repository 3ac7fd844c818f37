"""The Prefect server of one home: its database in the home, gone with the program that started it.

`python -m flows.server PORT` is that server; it ends when its standard input does, so that a killed run leaves none behind.
"""

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flows.server_process import server_process
from tasks.holder import AlreadyHeld, holder_of, holding
from tasks.home import Home
from tasks.progress import say
from trainer.base.errors import PhasewiseError
from trainer.base.secrets import without_secrets
from trainer.process.collecting import collect_rarely
from trainer.process.parent import end_with_parent

DATA, CONTROL, LOCAL = "data", "control", "local"
"""Work pools."""
SERVED = (LOCAL, DATA, CONTROL)
"""Those that `phasewise up` works on. No pool of a kind of slice: so far this machine is the only place to train on."""
LOG_NAME = "server.log"
MAX_REVIVED = 5
"""How often a server that ended by itself is started again."""
START_SECONDS, STOP_SECONDS = 120.0, 10.0
REPORTING = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING", "PREFECT_LOGGING_COLORS": "false"}
"""The server's own log is not the terminal: its errors are written there."""
PATIENT = {"PREFECT_SERVER_DATABASE_TIMEOUT": "60", "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "60"}
"""A file of SQLite has one writer at a time: on a busy machine the others wait, rather than fail."""
BUSY = "database is locked"
_RECORD = re.compile(rb"^(?=\d\d:\d\d:\d\d\.\d{3} \| )", re.MULTILINE)
STEADY = {
    "PREFECT_SERVER_SERVICES_FOREMAN_DEPLOYMENT_LAST_POLLED_TIMEOUT_SECONDS": "600",
    "PREFECT_SERVER_SERVICES_FOREMAN_WORK_QUEUE_LAST_POLLED_TIMEOUT_SECONDS": "600",
}
"""Dozens of deployments that become ready again hold the database for a while: on a busy machine a worker may be late for a minute."""
_ERROR = re.compile(r"\| (ERROR|CRITICAL) ")
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the terminal is ours; everything is in the UI
}


def quiet_environment(home: Home) -> dict[str, str]:
    """Settings of Prefect for a run on this machine: analytics off, everything it keeps under the home."""
    return {**QUIET, "PREFECT_HOME": str(home.prefect)}


@contextmanager
def server_for(home: Home, what: str) -> Iterator[str]:
    """The address of the API to use: what `PREFECT_API_URL` names, else the server that this home has, else one of this run's own.

    Args:
        what: what this process does, for those who find the server held.

    Raises:
        PhasewiseError: the server did not come up.
    """
    for name, value in quiet_environment(home).items():
        os.environ.setdefault(name, value)
    if given := os.environ.get("PREFECT_API_URL"):
        say(f"using the Prefect server at {without_secrets(given)}")
        yield given
    elif (holder := holder_of(home.server_lock)) and holder.url:
        say(f"using the Prefect server of {holder}, at {holder.url.removesuffix('/api')}")
        _wait_until_up(holder.url, None, str(home.prefect / LOG_NAME))
        with _api_at(holder.url):
            yield holder.url
    else:
        say("starting a Prefect server for this run")
        with own_server(home, _free_port(), what) as server, _api_at(server.url):
            _close_what_was_killed(home)
            yield server.url
            if errors := server.new_errors(ended=True):
                say(f"the Prefect server reported {len(errors)} errors, the last: {errors[-1]} (see {server.log})")


@contextmanager
def _api_at(url: str) -> Iterator[None]:
    """Everything that is said within the context goes to this server."""
    os.environ["PREFECT_API_URL"] = url
    try:
        yield
    finally:
        _send_what_is_waiting()
        del os.environ["PREFECT_API_URL"]


def _close_what_was_killed(home: Home) -> None:
    """Runs that a killed process left as running would be shown in the UI as running for ever."""
    from flows.leftovers import close_leftovers

    asyncio.run(close_leftovers(home, SERVED))


def _send_what_is_waiting() -> None:
    """Logs and events go out in the background; the server must not be gone before them."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=5)
    EventsWorker.drain_all(timeout=5)


@dataclass
class OwnServer:
    """A server that this process has started.

    Attributes:
        url: of its API.
        log: what it reports: warnings and errors, all of its lives one after the other.
    """

    url: str
    log: Path
    process: "subprocess.Popen[bytes]"
    read_bytes: int
    start: Callable[[], "subprocess.Popen[bytes]"]
    held_bytes: int = 0
    revived: int = 0

    def revive(self) -> bool:
        """Start it again at the same address, where it has ended; False where it ended too often. It needs some seconds until it answers.

        Nothing of its database is lost. Runs at work go on meanwhile, and report once it is up.
        """
        if self.revived >= MAX_REVIVED:
            return False
        self.revived += 1
        self.process = self.start()
        return True

    def new_errors(self, *, ended: bool = False) -> list[str]:
        """The errors that it has reported since the last call, a line each.

        That SQLite's file had another writer at that moment is none: whoever was refused asks again.

        Args:
            ended: nothing is added to the last record any more. Otherwise it is held back while it grows: the reason is at its end.
        """
        with open(self.log, "rb") as log:
            log.seek(self.read_bytes)
            new = log.read()
        records = _RECORD.split(new)
        held = 0 if ended or len(records[-1]) == self.held_bytes else len(records.pop())
        self.held_bytes = held
        self.read_bytes += len(new) - held
        texts = [record.decode(errors="replace") for record in records]
        return [text.splitlines()[0].strip() for text in texts if _ERROR.search(text) and BUSY not in text]


@contextmanager
def own_server(home: Home, port: int, what: str) -> Iterator[OwnServer]:
    """A server with its database in the home, for as long as the context lasts. A home has one at a time.

    Args:
        what: what this process does, for those who find the server held.

    Raises:
        PhasewiseError: another process has the server of this home, or it did not come up.
    """
    url = f"http://127.0.0.1:{port}/api"
    environment: Mapping[str, str] = {
        **os.environ,
        **quiet_environment(home),
        **REPORTING,
        **PATIENT,
        **STEADY,
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
    }
    command = [sys.executable, "-m", "flows.server", str(port)]
    log = home.prefect / LOG_NAME
    with _only_server(home, what, url):
        read_bytes = log.stat().st_size if log.exists() else 0
        with ExitStack() as lives:

            def start() -> "subprocess.Popen[bytes]":
                return lives.enter_context(server_process(command, log, environment, stop_seconds=STOP_SECONDS))

            process = start()
            _wait_until_up(url, process, str(log))
            yield OwnServer(url, log, process, read_bytes, start)


@contextmanager
def _only_server(home: Home, what: str, url: str) -> Iterator[None]:
    try:
        with holding(home.server_lock, what, url=url):
            yield
    except AlreadyHeld as error:
        raise PhasewiseError(
            f"{error.holder} has the Prefect server of {home.root}: wait for it, stop it, or choose another home with --home."
        ) from None


def _wait_until_up(url: str, process: "subprocess.Popen[bytes] | None", log: str) -> None:
    """Until it answers; `process` is given where the server is this process's own."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            raise PhasewiseError(f"the Prefect server ended with code {process.returncode} before it was up; see {log}.")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise PhasewiseError(f"the Prefect server was not up after {START_SECONDS:.0f} s; see {log}.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(port: int) -> None:
    """Run the server in this process until standard input ends."""
    collect_rarely()
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    from flows import mail  # noqa: F401  # pyright: ignore[reportUnusedImport]  # the server finds blocks by their classes
    from flows.server_database import take_turns

    end_with_parent(0)
    take_turns(str(PREFECT_API_DATABASE_CONNECTION_URL.value()))
    uvicorn.run(create_app(final=True), host="127.0.0.1", port=port, log_level="warning", timeout_keep_alive=5)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
