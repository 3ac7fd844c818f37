"""Start, find and restart the Prefect server of a home. Its database is in the home. It stops with the command that started it."""

import asyncio
import errno
import importlib
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.flows.prefect.access import AUTH_VARIABLES, auth_of, auth_of_running, hide_from_children
from phasewise.flows.prefect.stale_runs import WAITING
from phasewise.tasks.home import Home
from phasewise.tasks.locks import PROCESS, AlreadyHeld, holder_of, holding
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, StorageError, is_full, number_in, refusal_of, storage_refusal
from phasewise.trainer.base.frozen import in_one_line
from phasewise.trainer.base.storage import parse_json, read_yaml, without_secrets
from phasewise.trainer.process.child_process import ending_with_reason, last_line, python_command

DATA, CONTROL, LOCAL = "data", "control", "local"  # work pools
SERVED = (LOCAL, DATA, CONTROL)  # work pools with a worker in `phasewise up`. Pools of TPU and GPU slices have none
SERVER_MODULE = "phasewise.flows.prefect.server_process"
TAG = "phasewise"
"""Tag of all deployments of this package, and only of them. Registration removes tagged deployments that are no longer declared."""
LOG_NAME = "server.log"
MAX_RESTARTS = 5
BACKLOG = 2048  # connections that wait for the server
START_SECONDS, STOP_SECONDS, LOOK_SECONDS, QUEUE_SECONDS = 120.0, 10.0, 0.5, 2.0
START_BYTES = 2**23  # free space that a new database needs. On a full disk the log of a server that failed to start may be empty
SETTINGS: Mapping[str, Mapping[str, str]] = read_yaml(Path(__file__).with_name("settings.yaml"))
BUSY = "database is locked"
_RECORD = re.compile(rb"^(?=\d\d:\d\d:\d\d\.\d{3} \| )", re.MULTILINE)
_ERROR = re.compile(r"\| (ERROR|CRITICAL) ")


def client_environment(home: Home) -> dict[str, str]:
    """Prefect's settings for commands on this machine: no analytics, all files under the home."""
    return {**SETTINGS["client"], "PREFECT_HOME": str(home.prefect)}


def apply_settings(home: Home, **others: str) -> None:
    """Set Prefect's settings for commands on this machine, where the user set none. Raises ConfigError if Prefect rejects a setting."""
    for name, value in {**client_environment(home), **others}.items():
        os.environ.setdefault(name, value)
    try:
        with redirect_stderr(io.StringIO()):  # the import reports the same error of its plugins
            importlib.import_module("prefect.context")
    except ValueError as error:
        raise ConfigError(
            f"the settings of Prefect: expected values that Prefect accepts, found: {in_one_line(error)}. Correct PREFECT_API_URL, or "
            "another variable or profile of Prefect."
        ) from None


@contextmanager
def logged_child(
    command: Sequence[str], log: Path, environment: Mapping[str, str], *, stop_seconds: float, pass_fds: Sequence[int] = ()
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a child process within the context. Its output is appended to the log.

    The child has its own session: Ctrl-C reaches only this process, which stops the child last. The child must end when its standard input
    ends, so it does not outlive this process. `stop_seconds`: time from SIGTERM to SIGKILL. `pass_fds`: open files of the child.
    """
    with (
        open(log, "ab") as output,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True, pass_fds=pass_fds
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(stop_seconds)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def server_for(home: Home, purpose: str, *, meanwhile: Sequence[Callable[[], object]] = ()) -> Iterator[str]:
    """Yield the URL of the API: `PREFECT_API_URL`, the home's running server, or a new server for `purpose`. Raises PhasewiseError.

    `meanwhile`: slow imports, made while a new server starts.
    """
    import httpx

    try:
        if given := os.environ.get("PREFECT_API_URL"):
            apply_settings(home)
            say(f"using the Prefect server at {without_secrets(given)}")
            taken = hide_from_children()
            try:
                check_given_server()
                yield given
            finally:
                os.environ.update(taken)
        elif (holder := holder_of(home.server_lock)) and holder.url:
            apply_settings(home)
            say(f"using the Prefect server of {holder}, at {holder.url.removesuffix('/api')}")
            _wait_until_up(holder.url, None, home.prefect / LOG_NAME)
            with _api_at(holder.url, auth_of_running(home)):
                yield holder.url
        else:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            settings = partial(apply_settings, home)  # it imports Prefect for seconds
            work = (settings, partial(say, "starting a Prefect server for this run"), *meanwhile)
            with own_server(home, port, purpose, work) as server, _restarted_if_ended(server), _api_at(server.url, server.auth):
                from phasewise.flows.prefect.stale_runs import close_leftovers

                asyncio.run(close_leftovers(home, SERVED))
                yield server.url
                if errors := server.new_errors(ended=True):
                    say(f"the Prefect server reported {len(errors)} errors, the last: {errors[-1]} (see {server.log})")
    except httpx.HTTPError as error:
        raise _unanswered(error) from None


def check_given_server() -> None:
    """Raise PhasewiseError if no Prefect server answers at `PREFECT_API_URL` with the given secrets."""
    import httpx
    from packaging.version import Version
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            Version(str(client.api_version()))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise _unanswered(error) from None


def _unanswered(error: Exception) -> PhasewiseError:
    said = str(error).partition("\n")[0]  # empty for some time-outs
    found = f"{type(error).__name__}: {without_secrets(said)}".rstrip(".: ")
    return PhasewiseError(
        f"the Prefect server: expected an answer, found {found}. Check PREFECT_API_URL and PREFECT_API_AUTH_STRING if they are set, and "
        "run the same command again: finished work is kept."
    )


@contextmanager
def _api_at(url: str, auth: str | None) -> Iterator[None]:
    os.environ["PREFECT_API_URL"] = url
    taken = hide_from_children(auth or "")
    raises, logging.raiseExceptions = logging.raiseExceptions, False  # the terminal needs no traceback if the server misses a log line
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
    """A Prefect server that this process started. `log`: warnings and errors of all its processes, in order."""

    url: str
    auth: str = field(repr=False)
    log: Path
    process: "subprocess.Popen[bytes]"
    read_bytes: int
    start: Callable[[], "subprocess.Popen[bytes]"]
    stop_listening: Callable[[], None]
    held_bytes: int = 0
    restarts: int = 0

    def restart_if_ended(self) -> str | None:
        """Restart an ended server at the old address and return a line for the log. Raises PhasewiseError after `MAX_RESTARTS`."""
        code = self.process.poll()
        if code is None:
            return None
        reason = ending_with_reason(code, self.log)
        if self.restarts >= MAX_RESTARTS:
            self.stop_listening()  # requests fail instead of waiting
            raise PhasewiseError(f"the Prefect server {reason}, after {self.restarts} restarts.")
        self.restarts += 1
        self.process = self.start()
        return f"the Prefect server {reason}; it is started again"

    def new_errors(self, *, ended: bool = False) -> list[str]:
        """Return the first lines of new errors, without errors of a busy SQLite file. `ended`: also of a growing record."""
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
def _restarted_if_ended(server: OwnServer) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            try:
                line = server.restart_if_ended()
            except PhasewiseError as error:
                say(str(error))
                os.kill(os.getpid(), signal.SIGINT)  # stop the command: its requests would wait forever
                return
            if line:
                say(line)

    thread = threading.Thread(target=look, daemon=True, name="restarts the Prefect server")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def own_server(home: Home, port: int, purpose: str, meanwhile: Sequence[Callable[[], object]] = ()) -> Iterator[OwnServer]:
    """Run the home's server within the context, and `meanwhile` during its start. Raises PhasewiseError if it runs or did not start."""
    url = f"http://127.0.0.1:{port}/api"
    environment = {
        **{name: value for name, value in os.environ.items() if name not in AUTH_VARIABLES},
        **client_environment(home),
        **SETTINGS["server"],
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port},http://localhost:{port}",
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
    }
    log = home.prefect / LOG_NAME
    with ExitStack() as stack:
        try:
            stack.enter_context(holding(home.server_lock, purpose, url=url))
        except AlreadyHeld as error:
            raise PhasewiseError(
                f"{error.holder} has the Prefect server of {home.root}: wait for it, stop it, or choose another home with --home."
            ) from None
        # This process keeps the port: requests wait while the server restarts, and no other user's server can take their secrets
        listening = stack.enter_context(socket.create_server(("127.0.0.1", port), backlog=BACKLOG))
        command = python_command(SERVER_MODULE, str(listening.fileno()), str(port))
        auth = auth_of(home)
        environment |= {"PREFECT_SERVER_API_AUTH_STRING": auth, "PREFECT_API_AUTH_STRING": auth}
        read_bytes = log.stat().st_size if log.exists() else 0

        def start() -> "subprocess.Popen[bytes]":
            child = logged_child(command, log, environment, stop_seconds=STOP_SECONDS, pass_fds=[listening.fileno()])
            return stack.enter_context(child)

        process = start()
        for work in meanwhile:
            work()
        _wait_until_up(url, process, log, read_bytes)
        try:
            yield OwnServer(url, auth, log, process, read_bytes, start, listening.close)
        except Exception as error:
            if isinstance(error, PhasewiseError) or refusal_of(error):
                raise
            lines = log.read_bytes()[read_bytes:].decode(errors="replace").splitlines()
            of_disk = next((line.strip() for line in reversed(lines) if number_in(line)), last_line(log, read_bytes))
            raise _full_disk(log, f"the Prefect server: {of_disk or 'its log is empty'}") or error from error


def _wait_until_up(url: str, process: "subprocess.Popen[bytes] | None", log: Path, log_before: int = 0) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            reason = f"the Prefect server {ending_with_reason(process.returncode, log, log_before)}, before it was up"
            raise _full_disk(log, reason, START_BYTES) or PhasewiseError(f"{reason}.")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    reason = f"the Prefect server was not up after {START_SECONDS:.0f} s: {last_line(log, log_before) or 'its log is empty'} (log: {log})"
    raise _full_disk(log, reason, START_BYTES) or PhasewiseError(f"{reason}.")


def _full_disk(log: Path, reason: str, needed_bytes: int = 2**16) -> StorageError | None:
    number = number_in(reason) or (errno.ENOSPC if is_full(log.parent, needed_bytes) else None)
    return storage_refusal(OSError(number, reason, str(log.parent))) if number else None


class QueuedRun(NamedTuple):
    """A due flow run without a process. `phase` is empty for a whole recipe."""

    recipe: str
    scale: str
    phase: str
    name: str
    since: str
    id: str = ""


EVERY_PHASE = "*"


class RunForm(NamedTuple):
    """A deployment that trains a recipe or its phases. `phase` is empty if its form asks for one, and `*` for the whole recipe."""

    recipe: str
    scale: str
    phase: str
    id: str


def queued_runs(home: Home) -> list[QueuedRun]:
    """Return due runs of phases and recipes of a home, from `PREFECT_API_URL` or the home's server. Without an answer the list is empty."""
    due = {"before_": datetime.now(UTC).isoformat()}
    states = {"state": {"type": {"any_": ["SCHEDULED", "PENDING"]}}, "expected_start_time": due}
    wanted = {"flows": {"name": {"any_": ["train-phase", "train-recipe"]}}, "flow_runs": states, "sort": "EXPECTED_START_TIME_ASC"}
    found: list[QueuedRun] = []
    for run in _read(home, "flow_runs/filter", wanted):
        given = run["parameters"]
        if given.get("home") in (None, str(home.root)) and not run["state_name"].startswith(WAITING):
            phase, scale = given.get("phase") or given.get("up_to") or "", given.get("scale", "proxy")
            found.append(QueuedRun(given.get("recipe", ""), scale, phase, run["name"], run["expected_start_time"], run["id"]))
    return found


def run_forms(home: Home) -> list[RunForm]:
    """Return the deployments that train a phase or a recipe, from the server as in `queued_runs`."""
    forms: list[RunForm] = []
    for found in _read(home, "deployments/filter", {"flows": {"name": {"any_": ["train-phase", "train-recipe"]}}}):
        given, is_whole = found["parameters"], (found["entrypoint"] or "").endswith("train_recipe")
        phase = EVERY_PHASE if is_whole else given.get("phase") or ""
        forms.append(RunForm(given.get("recipe", ""), given.get("scale", "proxy"), phase, found["id"]))
    return forms


def _read(home: Home, path: str, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    url, secret = os.environ.get("PREFECT_API_URL"), os.environ.get("PREFECT_API_AUTH_STRING") or ""
    if not url and (holder := holder_of(home.server_lock)):
        url, secret = holder.url, auth_of_running(home) or ""  # the secret of the home is for its own server
    if not url:
        return []
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {b64encode(secret.encode()).decode()}"}

    def ask(path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{path}", body, headers), timeout=QUEUE_SECONDS) as answer:
            return parse_json(answer.read())

    try:
        with suppress(urllib.error.HTTPError):  # a server without this protection
            headers |= {"Prefect-Csrf-Client": PROCESS, "Prefect-Csrf-Token": ask(f"csrf-token?client={PROCESS}")["token"]}
        return ask(path, json.dumps(wanted).encode())
    except (OSError, ValueError):
        return []
