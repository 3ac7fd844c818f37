"""A Prefect server of one's own: its database in the home, gone with the program that started it.

`python -m flows.server PORT` is that server; it ends when its standard input does, so that a killed run leaves none behind.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tasks.home import Home
from tasks.progress import say
from trainer.errors import PhasewiseError
from trainer.parent import end_with_parent

START_SECONDS, STOP_SECONDS = 120.0, 10.0
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "phasewise",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the terminal is ours; everything stands in the UI
}


def quiet_environment(home: Home) -> dict[str, str]:
    """Settings of Prefect for a run on this machine: analytics off, everything it keeps under the home."""
    return {**QUIET, "PREFECT_HOME": str(home.prefect)}


@contextmanager
def server_for(home: Home) -> Iterator[str]:
    """The address of the API to use: the one that `PREFECT_API_URL` names, else a server of this run's own.

    Raises:
        PhasewiseError: the server did not come up.
    """
    for name, value in quiet_environment(home).items():
        os.environ.setdefault(name, value)
    if given := os.environ.get("PREFECT_API_URL"):
        say(f"using the Prefect server at {given}")
        yield given
        return
    with own_server(home, _free_port()) as url:
        os.environ["PREFECT_API_URL"] = url
        try:
            _close_what_was_killed()
            yield url
        finally:
            _send_what_is_waiting()
            del os.environ["PREFECT_API_URL"]


def _close_what_was_killed() -> None:
    """Runs that a killed `phasewise` left as running would stand in the UI as running for ever."""
    from flows.leftovers import close_leftovers

    asyncio.run(close_leftovers(pool=None))


def _send_what_is_waiting() -> None:
    """Logs and events go out in the background; the server must not be gone before them."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=5)
    EventsWorker.drain_all(timeout=5)


@contextmanager
def own_server(home: Home, port: int) -> Iterator[str]:
    """A server with its database in the home, for as long as the context lasts."""
    home.prefect.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{port}/api"
    environment: Mapping[str, str] = {
        **os.environ,
        **quiet_environment(home),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
    }
    log_path = home.prefect / "server.log"
    command = [sys.executable, "-m", "flows.server", str(port)]
    with (
        open(log_path, "ab") as log,
        subprocess.Popen(  # a session of its own: Ctrl-C must not end it before what it stops has been reported
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            _wait_until_up(url, process, str(log_path))
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
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
