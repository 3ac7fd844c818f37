import asyncio
import base64
import email
import email.policy
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from prefect.blocks.abstract import NotificationError
from prefect.server.database.configurations import AioSqliteConfiguration
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from phasewise.deployments.site_process import bind_problem
from phasewise.flows.prefect import server as server_module
from phasewise.flows.prefect.access import AUTH_NAME, AUTH_VARIABLES, auth_of, auth_of_running, hide_from_children, keep_links, page_token
from phasewise.flows.prefect.apprise_block import AppriseUrl
from phasewise.flows.prefect.server import MAX_RESTARTS, OwnServer, own_server, server_for
from phasewise.flows.prefect.server_process import SerializedWrites
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, StorageError
from phasewise.trainer.process.child_process import python_command
from tests.ports import free_port
from tests.survival.disks import small_disk

WAIT_SECONDS = 0.3  # for the second to be done, where nothing keeps it from that
COUNT, ADD = text("SELECT count(*) FROM runs"), text("INSERT INTO runs VALUES (1)")


@asynccontextmanager
async def sessions(found: AioSqliteConfiguration) -> AsyncIterator[tuple[AsyncSession, AsyncSession]]:
    engine = await found.engine()
    async with await found.session(engine) as first, await found.session(engine) as second:
        await first.execute(text("CREATE TABLE runs (number INTEGER)"))
        await first.commit()
        yield first, second
    await engine.dispose()


async def both(found: AioSqliteConfiguration) -> int:
    async def write(session: AsyncSession) -> None:
        async with found.begin_transaction(session):
            await session.execute(ADD)

    async with sessions(found) as (first, second):
        async with found.begin_transaction(first):
            await first.execute(COUNT)
            other = asyncio.create_task(write(second))
            await asyncio.wait({other}, timeout=WAIT_SECONDS)
            await first.execute(ADD)
        await other
        return int((await first.execute(COUNT)).scalar_one())


def url(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder / 'prefect.db'}"


def test_two_transactions_take_turns(tmp_path: Path) -> None:
    assert asyncio.run(both(SerializedWrites(url(tmp_path)))) == 2


def test_what_is_read_beside_a_transaction_does_not_wait_for_it(tmp_path: Path) -> None:
    async def read_within() -> int:
        found = SerializedWrites(url(tmp_path))
        async with sessions(found) as (first, second), found.begin_transaction(first):
            await first.execute(ADD)
            return int((await asyncio.wait_for(second.execute(COUNT), 10 * WAIT_SECONDS)).scalar_one())

    assert asyncio.run(read_within()) == 0


BUSY = (
    "12:00:01.000 | ERROR   | prefect.server - Heartbeat failed\nTraceback (most recent call last):\nOperationalError: database is locked\n"
)
BROKEN = "12:00:02.000 | ERROR   | prefect.server - Scheduler died\nTraceback (most recent call last):\nTypeError: no\n"
WARNING = "12:00:03.000 | WARNING | prefect.server - Slow\n"
SAID = ["12:00:02.000 | ERROR   | prefect.server - Scheduler died"]


def server(log: Path) -> OwnServer:
    process: Any = None
    log.touch()
    return OwnServer("http://127.0.0.1:1/api", "phasewise:x", log, process, 0, lambda: process, lambda: None)


def test_an_error_is_said_once_and_a_busy_file_is_none(tmp_path: Path) -> None:
    own = server(tmp_path / "log")
    own.log.write_text(BUSY + BROKEN + WARNING)
    assert own.new_errors() == SAID
    assert own.new_errors() == []
    with open(own.log, "a") as log:
        log.write(BROKEN)
    assert own.new_errors() == []  # it may still grow
    assert own.new_errors() == SAID
    assert own.new_errors() == []
    with open(own.log, "a") as log:
        log.write(WARNING + BROKEN)
    assert own.new_errors(ended=True) == SAID


def test_a_server_whose_disk_is_full_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "128k") as disk:
        home = Home(disk / "home")
        home.prefect.mkdir(parents=True)
        with pytest.raises(StorageError) as refusal, own_server(home, free_port(), "a test"):
            pass
        assert "No space left on device (the Prefect server ended with code " in str(refusal.value)
        assert f"MiB are free on the disk at {disk}." in str(refusal.value)


def test_an_error_that_the_servers_disk_is_the_reason_of_is_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "phasewise.flows.prefect.server._wait_until_up", lambda *_: None
    )  # a server that cannot write its database answers 500, for minutes
    monkeypatch.setattr("phasewise.flows.prefect.server.python_command", lambda *_: ["sleep", "60"])
    home = Home(tmp_path)
    home.prefect.mkdir(parents=True)

    def fail_after(log: str) -> None:
        with own_server(home, free_port(), "a test") as found:
            found.log.write_text(log)
            raise RuntimeError("Server error '500 Internal Server Error'")

    with pytest.raises(RuntimeError, match="500"):
        fail_after("")
    with pytest.raises(StorageError, match=r"the Prefect server: .*database or disk is full"):
        fail_after("Traceback\nsqlite3.OperationalError: database or disk is full\nINFO: stopping\n")


def test_a_request_waits_while_the_server_restarts_and_no_other_process_gets_the_port(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prefect.mkdir(parents=True)
    with own_server(home, port := free_port(), "a test") as found, ThreadPoolExecutor(1) as thread:
        found.process.kill()
        found.process.wait()
        request = thread.submit(urlopen, f"{found.url}/health", timeout=170)
        assert bind_problem("127.0.0.1", port)
        assert "it is started again" in str(found.restart_if_ended())
        assert request.result().status == 200
        found.restarts = MAX_RESTARTS
        found.process.kill()
        found.process.wait()
        with pytest.raises(PhasewiseError, match=r"was ended by SIGKILL.*, after 5 restarts\.$"):
            found.restart_if_ended()
        with pytest.raises(URLError, match="refused"):
            urlopen(f"{found.url}/health", timeout=170)


@pytest.mark.parametrize("variable", ["PREFECT_API_URL=http://[::1", "PREFECT_SERVER_API_PORT=x"])
def test_a_setting_that_prefect_rejects_ends_a_command_in_a_line(tmp_path: Path, variable: str) -> None:
    name, _, value = variable.partition("=")
    command = [*python_command("phasewise.flows.cli.main"), "run", "marin-8b", "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {name: value}, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"phasewise: the settings of Prefect: expected values that Prefect accepts, found: .*\n", done.stderr)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://127.0.0.1:1/api", "ConnectError: "),
        ("nonsense", "UnsupportedProtocol: "),
        ("{other}/401", "PrefectHTTPStatusError: Client error '401 Unauthorized'"),
        ("{other}/200", "InvalidVersion: Invalid version: '{}'"),
    ],
)
def test_a_given_server_that_is_none_or_refuses_ends_a_command_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, found: str
) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            self.send_response(int(self.path.split("/")[1]))
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other, ThreadPoolExecutor(1) as thread:
        thread.submit(other.serve_forever)
        try:
            monkeypatch.setenv("PREFECT_API_URL", url.replace("{other}", f"http://127.0.0.1:{other.server_port}"))
            expected = rf"^the Prefect server: expected an answer, found {re.escape(found)}.*\. Check PREFECT_API_URL "
            with pytest.raises(PhasewiseError, match=expected), server_for(Home(tmp_path), "a test"):
                pass
        finally:
            other.shutdown()


def test_a_home_keeps_its_secrets_and_has_its_own(tmp_path: Path) -> None:
    here, there = Home(tmp_path / "here"), Home(tmp_path / "there")
    assert auth_of_running(here) is None
    auth, token = auth_of(here), page_token(here)
    assert (auth_of(here), page_token(here), auth_of_running(here)) == (auth, token, auth)
    assert len({auth, auth.partition(":")[2], token, auth_of(there), page_token(there)}) == 5
    here.root.rename(tmp_path / "moved")
    assert auth_of(Home(tmp_path / "moved")) == auth


def test_only_their_owner_reads_them_and_one_that_others_could_read_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path)
    before = os.umask(0)
    try:
        auth_of(home)
        page_token(home)
        keep_links(home, ("http://127.0.0.1",))
    finally:
        os.umask(before)
    files = list(home.prefect.iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert len(files) == 3
    home = Home(tmp_path / "home")
    auth = auth_of(home)
    shutil.copytree(home.root, tmp_path / "copy", copy_function=shutil.copyfile)
    path = tmp_path / "copy" / "prefect" / AUTH_NAME
    path.chmod(0o644)
    assert auth_of(Home(tmp_path / "copy")) != auth
    assert path.stat().st_mode & 0o777 == 0o600
    assert auth_of(home) == auth


def test_an_empty_file_is_written_again_and_what_is_no_file_is_refused_in_a_line(tmp_path: Path) -> None:
    home = Home(tmp_path / "empty")
    home.prefect.mkdir(parents=True)
    for content in (b"", b"\n"):
        (home.prefect / AUTH_NAME).write_bytes(content)
        assert auth_of(home).startswith("phasewise:")
    home = Home(tmp_path)
    (home.prefect / AUTH_NAME).mkdir(parents=True)
    with pytest.raises(ConfigError, match="expected a secret that this user may read and write"):
        auth_of(home)
    with pytest.raises(ConfigError, match="cannot be read"):
        auth_of_running(home)


def test_prefect_keeps_what_children_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.context import refresh_global_settings_context
    from prefect.settings import get_current_settings

    for name in AUTH_VARIABLES:
        monkeypatch.setenv(name, "of-another")
    try:
        assert hide_from_children("phasewise:own") == dict.fromkeys(AUTH_VARIABLES, "of-another")
        settings = get_current_settings()
        assert settings.api.auth_string is not None
        assert settings.api.auth_string.get_secret_value() == "phasewise:own"
        assert settings.api.key is None
        assert settings.to_environment_variables(exclude_unset=True)["PREFECT_API_AUTH_STRING"] == "phasewise:own"
        assert not set(AUTH_VARIABLES) & set(os.environ)
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", "of-another")
        hide_from_children()
        auth = get_current_settings().api.auth_string
        assert auth is not None
        assert auth.get_secret_value() == "of-another"
        assert not set(AUTH_VARIABLES) & set(os.environ)
    finally:
        refresh_global_settings_context()


USER, PASSWORD = "phasewise", "planted-secret-77aa"


@contextmanager
def mail_server(password: str) -> Iterator[tuple[int, list[EmailMessage]]]:
    taken: list[EmailMessage] = []
    token = base64.b64encode(f"\0{USER}\0{password}".encode()).decode()

    class Session(StreamRequestHandler):
        def handle(self) -> None:
            knows = False
            self._say("220 here")
            while line := self.rfile.readline().decode().strip():
                match line.split()[0].upper():
                    case "EHLO":
                        self._say("250-here\r\n250 AUTH PLAIN")
                    case "AUTH":
                        knows = line == f"AUTH PLAIN {token}"
                        self._say("235 yes" if knows else "535 no")
                    case "MAIL" | "RCPT":
                        self._say("250 yes" if knows else "530 who are you?")
                    case "DATA":
                        self._say("354 go on")
                        taken.append(self._read())
                        self._say("250 yes")
                    case _:
                        self._say("221 bye")

        def _say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def _read(self) -> EmailMessage:
            lines = list(iter(self.rfile.readline, b".\r\n"))
            return email.message_from_bytes(b"".join(lines), policy=email.policy.default)

    with ThreadingTCPServer(("127.0.0.1", 0), Session) as found:
        Thread(target=found.serve_forever, daemon=True).start()
        yield found.server_address[1], taken
        found.shutdown()


def send(port: int, subject: str) -> None:
    to = "from=gates@example.org&to=ada@example.org,grace@example.org"
    block = AppriseUrl(url=SecretStr(f"mailto://{quote(USER)}:{quote(PASSWORD)}@127.0.0.1:{port}?{to}"))
    with block.raise_on_failure():
        asyncio.run(block.anotify("The body – of two\nlines.", subject))


def test_a_message_is_sent_to_all() -> None:
    with mail_server(PASSWORD) as (port, taken):
        send(port, "a phase waits")
        with pytest.raises(NotificationError):
            send(port, "a phase\nBcc: eve@example.org waits")
    assert sorted(message["To"] for message in taken) == ["ada@example.org", "grace@example.org"]
    for message in taken:
        assert message["Subject"] == "a phase waits"
        assert "The body – of two" in message.get_body(("plain", "html")).get_content()  # type: ignore[union-attr]


def test_a_server_that_refuses_or_is_not_there_is_named_and_no_password_is_said() -> None:
    with mail_server("another") as (port, taken):
        for tried in (port, free_port()):
            with pytest.raises(NotificationError) as refused:
                send(tried, "x")
            assert 'Connection error while submitting email to "127.0.0.1"' in refused.value.log
            assert PASSWORD not in refused.value.log
    assert taken == []
    with pytest.raises(ValueError, match="expected the URL of a service of Apprise") as unknown:
        AppriseUrl(url=SecretStr(f"nothing://{PASSWORD}@example.org"))
    assert PASSWORD not in str(unknown.value)


def test_the_secret_of_a_home_is_not_sent_to_a_given_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "auth_of_running", lambda _home: "secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{listening.getsockname()[1]}/api")
        monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
        reader = threading.Thread(target=server_module.queued_runs, args=(Home(tmp_path, reads_only=True),))
        reader.start()
        connection, _ = listening.accept()
        with connection:
            asked = connection.recv(2**16).decode()
        listening.close()
        reader.join()
    assert "Authorization: Basic \r\n" in asked
