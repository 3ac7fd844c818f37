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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.holder import AlreadyHeld, holder_of, holding
from tasks.home import Home
from tasks.progress import say
from trainer.base.errors import PhasewiseError
from trainer.process.parent import end_with_parent

POOL = "phasewise-local"
"""The work pool of this machine."""
LOG_NAME = "server.log"
START_SECONDS, STOP_SECONDS = 120.0, 10.0
REPORTING = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING", "PREFECT_LOGGING_COLORS": "false"}
"""The server's own log is not the terminal: its errors are written there."""
PATIENT = {"PREFECT_SERVER_DATABASE_TIMEOUT": "60", "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "60"}
"""A file of SQLite has one writer at a time: on a busy machine the others wait, rather than fail."""
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
        say(f"using the Prefect server at {given}")
        yield given
    elif (holder := holder_of(home.server_lock)) and holder.url:
        say(f"using the Prefect server of {holder}, at {holder.url.removesuffix('/api')}")
        _wait_until_up(holder.url, None, str(home.prefect / LOG_NAME))
        with _api_at(holder.url):
            yield holder.url
    else:
        with own_server(home, _free_port(), what) as server, _api_at(server.url):
            _close_what_was_killed(home)
            yield server.url
            if errors := server.new_errors():
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

    asyncio.run(close_leftovers(home, POOL))


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

    def new_errors(self) -> list[str]:
        """The errors that it has reported since the last call, a line each."""
        with open(self.log, "rb") as log:
            log.seek(self.read_bytes)
            new = log.read()
        self.read_bytes += len(new)
        return [line.strip() for line in new.decode(errors="replace").splitlines() if _ERROR.search(line)]


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
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
    }
    command = [sys.executable, "-m", "flows.server", str(port)]
    with _only_server(home, what, url), open(home.prefect / LOG_NAME, "ab") as log:
        read_bytes = log.tell()
        with subprocess.Popen(  # a session of its own: Ctrl-C must not end it before what it stops has been reported
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
        ) as process:
            try:
                _wait_until_up(url, process, log.name)
                yield OwnServer(url, Path(log.name), process, read_bytes)
            finally:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


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
    import uvicorn
    from prefect.server.api.server import create_app

    end_with_parent(0)
    uvicorn.run(create_app(final=True), host="127.0.0.1", port=port, log_level="warning", timeout_keep_alive=5)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
