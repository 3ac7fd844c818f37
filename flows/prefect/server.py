"""The Prefect server of one home: its database in the home, gone with the program that started it.

`python -m phasewise.flows.prefect.server PORT` is that server; it ends when its standard input does, so that a killed run leaves none
behind.
"""

import asyncio
import errno
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration
from prefect.server.database.dependencies import MODELS_DEPENDENCIES
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from phasewise.flows.prefect.access import AUTH_VARIABLES, OwnAddress, auth_of, auth_of_running, hide_from_children, open_route, own_origins
from phasewise.tasks.holder import AlreadyHeld, holder_of, holding
from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import PhasewiseError, StorageError, is_full, number_in, refusal_of, storage_refusal
from phasewise.trainer.base.storage import without_secrets
from phasewise.trainer.process.child_process import collect_rarely, end_with_parent, ending_with_reason, last_line, python_command


class TakesTurns(AioSqliteConfiguration):
    """Transactions that hold the right to write from their beginning."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        """Begin one. What is read beside it, within it, begins as it always does: it must not wait for this one."""
        async with session.begin() as transaction:
            before = SQLITE_BEGIN_MODE.set("IMMEDIATE")
            try:
                await session.connection()
            finally:
                SQLITE_BEGIN_MODE.reset(before)
            yield transaction


@contextmanager
def server_process(
    command: Sequence[str], log: Path, environment: Mapping[str, str], *, stop_seconds: float
) -> Iterator["subprocess.Popen[bytes]"]:
    """The process, for as long as the context lasts. What it reports is added to the log.

    It is in a session of its own: Ctrl-C must not end it before what it stops has been reported. Its standard input is held here: the
    command must end when that ends.

    Args:
        stop_seconds: how long it has to end by itself, after SIGTERM.
    """
    with (
        open(log, "ab") as to,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=to, stderr=to, env=environment, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(stop_seconds)
            except subprocess.TimeoutExpired:
                process.kill()


DATA, CONTROL, LOCAL = "data", "control", "local"
"""Work pools."""
SERVED = (LOCAL, DATA, CONTROL)
"""Those that `phasewise up` works on. No pool of a kind of slice: so far this machine is the only place to train on."""
LOG_NAME = "server.log"
MAX_REVIVED = 5
"""How often a server that ended by itself is started again."""
START_SECONDS, STOP_SECONDS, LOOK_SECONDS = 120.0, 10.0, 0.5
START_BYTES = 2**23
"""With less room its database cannot be made. What it had written is gone when it has ended, and its log may be empty."""
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
        taken = hide_from_children()
        try:
            yield given
        finally:
            os.environ.update(taken)
    elif (holder := holder_of(home.server_lock)) and holder.url:
        say(f"using the Prefect server of {holder}, at {holder.url.removesuffix('/api')}")
        _wait_until_up(holder.url, None, home.prefect / LOG_NAME)
        with _api_at(holder.url, auth_of_running(home)):
            yield holder.url
    else:
        say("starting a Prefect server for this run")
        with own_server(home, _free_port(), what) as server, _kept_up(server), _api_at(server.url, server.auth):
            from phasewise.flows.prefect.stale_runs import close_leftovers

            asyncio.run(close_leftovers(home, SERVED))
            yield server.url
            if errors := server.new_errors(ended=True):
                say(f"the Prefect server reported {len(errors)} errors, the last: {errors[-1]} (see {server.log})")


@contextmanager
def _api_at(url: str, auth: str | None) -> Iterator[None]:
    os.environ["PREFECT_API_URL"] = url
    taken = hide_from_children(auth or "")
    raises, logging.raiseExceptions = logging.raiseExceptions, False  # a log line that a server did not take is no news for the terminal
    try:
        yield
    finally:
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        APILogWorker.drain_all(timeout=5)
        EventsWorker.drain_all(timeout=5)
        logging.raiseExceptions = raises
        del os.environ["PREFECT_API_URL"]
        os.environ.update(taken)


@dataclass
class OwnServer:
    """A server that this process has started.

    Attributes:
        url: of its API.
        auth: the auth string that its API asks for.
        log: what it reports: warnings and errors, all of its lives one after the other.
    """

    url: str
    auth: str = field(repr=False)
    log: Path
    process: "subprocess.Popen[bytes]"
    read_bytes: int
    start: Callable[[], "subprocess.Popen[bytes]"]
    held_bytes: int = 0
    revived: int = 0

    @property
    def ui(self) -> str:
        """The address of its pages."""
        return self.url.removesuffix("/api")

    def revive(self) -> bool:
        """Start it again at the same address, where it has ended; False where it ended too often. It needs some seconds until it answers.

        Nothing of its database is lost. Runs at work go on meanwhile, and report once it is up.
        """
        if self.revived >= MAX_REVIVED:
            return False
        self.revived += 1
        self.process = self.start()
        return True

    def keep_up(self) -> str | None:
        """Start it again if it has ended, and return the line that says so; None while it is at work.

        Raises:
            PhasewiseError: it has ended too often.
        """
        code = self.process.poll()
        if code is None:
            return None
        reason = ending_with_reason(code, self.log)
        if not self.revive():
            raise PhasewiseError(f"the Prefect server {reason}, after it was started again {self.revived} times.")
        return f"the Prefect server {reason}; it is started again"

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
def _kept_up(server: OwnServer) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            try:
                line = server.keep_up()
            except PhasewiseError as error:
                say(str(error))
                os.kill(os.getpid(), signal.SIGINT)  # what waits for the server would wait for nothing
                return
            if line:
                say(line)

    thread = threading.Thread(target=look, daemon=True, name="keeps the Prefect server up")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def own_server(home: Home, port: int, what: str) -> Iterator[OwnServer]:
    """A server with its database in the home, for as long as the context lasts. A home has one at a time.

    Args:
        what: what this process does, for those who find the server held.

    Raises:
        PhasewiseError: another process has the server of this home, or it did not come up.
    """
    url = f"http://127.0.0.1:{port}/api"
    others = {name: value for name, value in os.environ.items() if name not in AUTH_VARIABLES}
    environment: Mapping[str, str] = {
        **others,
        **quiet_environment(home),
        **REPORTING,
        **PATIENT,
        **STEADY,
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": own_origins(port),
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
    }
    command = python_command("phasewise.flows.prefect.server", str(port))
    log = home.prefect / LOG_NAME
    with _only_server(home, what, url):
        auth = auth_of(home)
        read_bytes = log.stat().st_size if log.exists() else 0
        with ExitStack() as lives:

            def start() -> "subprocess.Popen[bytes]":
                secret = {"PREFECT_SERVER_API_AUTH_STRING": auth, "PREFECT_API_AUTH_STRING": auth}
                return lives.enter_context(server_process(command, log, {**environment, **secret}, stop_seconds=STOP_SECONDS))

            process = start()
            _wait_until_up(url, process, log, read_bytes)
            try:
                yield OwnServer(url, auth, log, process, read_bytes, start)
            except Exception as error:
                if isinstance(error, PhasewiseError) or refusal_of(error):
                    raise
                raise _full(log, _last_error_of_disk(log, read_bytes)) or error from error


@contextmanager
def _only_server(home: Home, what: str, url: str) -> Iterator[None]:
    try:
        with holding(home.server_lock, what, url=url):
            yield
    except AlreadyHeld as error:
        raise PhasewiseError(
            f"{error.holder} has the Prefect server of {home.root}: wait for it, stop it, or choose another home with --home."
        ) from None


def _wait_until_up(url: str, process: "subprocess.Popen[bytes] | None", log: Path, log_before: int = 0) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            said = f"the Prefect server {ending_with_reason(process.returncode, log, log_before)}, before it was up"
            raise _full(log, said, START_BYTES) or PhasewiseError(f"{said}.")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    said = f"the Prefect server was not up after {START_SECONDS:.0f} s: {last_line(log, log_before) or 'its log says nothing'} (log: {log})"
    raise _full(log, said, START_BYTES) or PhasewiseError(f"{said}.")


def _full(log: Path, said: str, needed_bytes: int = 2**16) -> StorageError | None:
    number = number_in(said) or (errno.ENOSPC if is_full(log.parent, needed_bytes) else None)
    return storage_refusal(OSError(number, said, str(log.parent))) if number else None


def _last_error_of_disk(log: Path, after_bytes: int) -> str:
    lines = log.read_bytes()[after_bytes:].decode(errors="replace").splitlines()
    said = next((line.strip() for line in reversed(lines) if number_in(line)), last_line(log, after_bytes))
    return f"the Prefect server: {said or 'its log says nothing'}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(port: int) -> None:
    """Run the server in this process until standard input ends."""
    collect_rarely()
    os.chdir(os.environ["PREFECT_HOME"])  # Prefect's migrations put the current folder on the module path
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    end_with_parent(0)
    # Have the server of this process write so to the database at this address
    url = str(PREFECT_API_DATABASE_CONNECTION_URL.value())
    MODELS_DEPENDENCIES["database_config"] = TakesTurns(connection_url=url)
    app = create_app(final=True)
    app.router.routes.insert(0, open_route())
    uvicorn.run(OwnAddress(app, port=port), host="127.0.0.1", port=port, log_level="warning", timeout_keep_alive=5)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
