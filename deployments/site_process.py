"""The page's server as a process of `phasewise up`: it reads the home while flows work, and slows none of them down by its imports."""

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from phasewise.flows.prefect.access import LOOPBACK, page_token
from phasewise.flows.prefect.server import server_process
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.process.child_process import ending_with_reason, python_command

TOKEN_VARIABLE = "PHASEWISE_SITE_TOKEN"
"""What a reader must show."""
URL_VARIABLE = "PHASEWISE_SITE_URL"
"""Where flows find the page, for the links in their artifacts."""
LOG_NAME = "site.log"
STOP_SECONDS = 5.0
PORTS_TRIED = 20


class Bound(NamedTuple):
    """Where the page is served; a port of None is the first free one after Prefect's."""

    host: str = LOOPBACK[0]
    port: int | None = None


@dataclass(frozen=True)
class OwnSite:
    """The page of this home, as this process serves it.

    Attributes:
        url: for a browser on this machine; the token is no part of it.
        token: what a reader must show.
        is_given: whether the token is of the environment, and not in the home.
    """

    url: str
    host: str
    token: str = field(repr=False)
    is_given: bool
    process: "subprocess.Popen[bytes]" = field(repr=False)
    log: str
    log_before: int = 0

    def link(self, auth: str | None = None) -> str:
        """Its address with the token, and with the auth string of Prefect's server for its links there.

        A token of the environment is named, and not said.
        The auth string is behind the `#`: the page's script keeps it, and no server sees it.
        """
        shown = f"${TOKEN_VARIABLE}" if self.is_given else self.token
        return f"{self.url}/?token={shown}" + (f"#prefect={auth}" if auth else "")

    @property
    def problem(self) -> str:
        """Why it is not served, if it is not."""
        code = self.process.poll()
        return "" if code is None else f"not served: it {ending_with_reason(code, Path(self.log), self.log_before)}"


@contextmanager
def own_site(
    home: Home, bound: Bound, *, prefect_port: int, prefect_url: str, is_own_prefect: bool = False, recipes: Sequence[str] = ()
) -> Iterator[OwnSite]:
    """The page, for as long as the context lasts.

    Args:
        is_own_prefect: whether Prefect's server is this home's.
        recipes: files of recipes that are not this project's.

    Raises:
        PhasewiseError: the port cannot be used.
    """
    host = bound.host
    port = _checked(host, bound.port) if bound.port else _near(host, prefect_port)
    given = os.environ.get(TOKEN_VARIABLE)
    token = given or page_token(home)
    named = LOOPBACK[0] if host in (*LOOPBACK, "0.0.0.0", "::") else host
    words = ["--home", str(home.root), "--host", host, "--port", str(port), "--prefect", prefect_url, "--with-parent"]
    words += ["--own-prefect"] if is_own_prefect else []
    words += [word for recipe in recipes for word in ("--recipe", recipe)]
    command = python_command("phasewise.deployments.site", *words)
    environment = {**os.environ, TOKEN_VARIABLE: token}
    home.prefect.mkdir(parents=True, exist_ok=True)
    before = os.environ.get(URL_VARIABLE)
    os.environ[URL_VARIABLE] = url = f"http://{named}:{port}"
    try:
        log = home.prefect / LOG_NAME
        before_bytes = log.stat().st_size if log.exists() else 0
        with server_process(command, log, environment, stop_seconds=STOP_SECONDS) as process:
            yield OwnSite(url, host, token, bool(given), process, str(log), before_bytes)
    finally:
        os.environ.pop(URL_VARIABLE) if before is None else os.environ.update({URL_VARIABLE: before})


def _checked(host: str, port: int) -> int:
    if problem := _why_not(host, port):
        raise PhasewiseError(f"port {port} cannot be used for the page ({problem}): choose another with --site-port.")
    return port


def _near(host: str, port: int) -> int:
    for near in range(port + 1, min(port + PORTS_TRIED, 65_536)):
        if not _why_not(host, near):
            return near
    raise PhasewiseError(f"no port after {port} is free for the page: choose one with --site-port.")


def _why_not(host: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return str(error.strerror or error)
    return ""
