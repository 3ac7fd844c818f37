"""The page's server as a process of `phasewise up`: it reads the home while flows work, and slows none of them down by its imports."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from flows.server_process import server_process
from tasks.home import Home
from trainer.base.errors import PhasewiseError

TOKEN_VARIABLE = "PHASEWISE_SITE_TOKEN"
"""What a reader from another machine must show."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
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
        token: what a reader must show; None where only this machine reaches it.
        made_token: whether the token was made here, so that only the terminal knows it.
    """

    url: str
    host: str
    token: str | None = field(repr=False)
    made_token: bool
    process: "subprocess.Popen[bytes]" = field(repr=False)
    log: str

    @property
    def words(self) -> str:
        """Its address, for a person at the terminal, or why there is none."""
        if self.process.poll() is not None:
            return f"not served: it ended with code {self.process.returncode}; see {self.log}"
        if self.token is None:
            return self.url
        shown = self.token if self.made_token else f"${TOKEN_VARIABLE}"
        return f"{self.url}/?token={shown} (bound to {self.host}; the token is asked for once)"


@contextmanager
def own_site(home: Home, bound: Bound, *, prefect_port: int, prefect_url: str, recipes: Sequence[str] = ()) -> Iterator[OwnSite]:
    """The page, for as long as the context lasts.

    Args:
        recipes: files of recipes that are not this project's.

    Raises:
        PhasewiseError: the port cannot be used.
    """
    host = bound.host
    port = _checked(host, bound.port) if bound.port else _near(host, prefect_port)
    given = os.environ.get(TOKEN_VARIABLE)
    token = None if host in LOOPBACK else given or secrets.token_urlsafe(24)
    named = LOOPBACK[0] if host in (*LOOPBACK, "0.0.0.0", "::") else host
    command = [sys.executable, "-m", "deployments.site", "--home", str(home.root), "--host", host, "--port", str(port)]
    command += ["--prefect", prefect_url, "--with-parent"]
    command += [word for recipe in recipes for word in ("--recipe", recipe)]
    environment = {**os.environ, **({TOKEN_VARIABLE: token} if token else {})}
    home.prefect.mkdir(parents=True, exist_ok=True)
    before = os.environ.get(URL_VARIABLE)
    os.environ[URL_VARIABLE] = url = f"http://{named}:{port}"
    try:
        log = home.prefect / LOG_NAME
        with server_process(command, log, environment, stop_seconds=STOP_SECONDS) as process:
            yield OwnSite(url, host, token, given is None, process, str(log))
    finally:
        os.environ.pop(URL_VARIABLE) if before is None else os.environ.update({URL_VARIABLE: before})


def _checked(host: str, port: int) -> int:
    if problem := _why_not(host, port):
        raise PhasewiseError(f"port {port} cannot be used for the page ({problem}): choose another with --site-port.")
    return port


def _near(host: str, port: int) -> int:
    """The first port after Prefect's that is free."""
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
