"""The process of our page within `phasewise up`. A separate process keeps its imports and reads away from the flow runs."""

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from phasewise.flows.prefect.access import LOOPBACK, page_token
from phasewise.flows.prefect.server import logged_child
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.process.child_process import ending_with_reason, python_command

TOKEN_VARIABLE = "PHASEWISE_SITE_TOKEN"  # the secret that readers give
URL_VARIABLE = "PHASEWISE_SITE_URL"  # the URL of the page, for links in the artifacts of flows
LOG_NAME = "site.log"
STOP_SECONDS = 5.0
PORTS_TRIED = 20


@dataclass(frozen=True)
class OwnSite:
    """The page that this process started.

    Attributes:
        url: URL in a browser on this machine, without the token.
        is_given: whether the token comes from the environment instead of the home.
    """

    url: str
    token: str = field(repr=False)
    is_given: bool
    process: "subprocess.Popen[bytes]" = field(repr=False)
    log: Path
    log_before: int

    def link(self, auth: str | None = None) -> str:
        """Return the URL with the token, and with the auth string of Prefect's server for the page's links to Prefect.

        A token of the environment is shown as the variable's name. The auth string follows the `#`: browsers keep that part to
        themselves, and the page's script stores it.
        """
        shown = f"${TOKEN_VARIABLE}" if self.is_given else self.token
        return f"{self.url}/?token={shown}" + (f"#prefect={auth}" if auth else "")

    @property
    def problem(self) -> str:
        """The reason that the page is down, or an empty string."""
        code = self.process.poll()
        return "" if code is None else f"not served: it {ending_with_reason(code, self.log, self.log_before)}"


@contextmanager
def own_site(
    home: Home,
    host: str = LOOPBACK[0],
    port: int | None = None,
    *,
    prefect_port: int,
    prefect_url: str,
    is_own_prefect: bool = False,
    recipes: Sequence[str] = (),
) -> Iterator[OwnSite]:
    """Serve the page within the context.

    Args:
        port: None is the first free port after Prefect's.
        is_own_prefect: whether Prefect's server has its database in this home.
        recipes: recipe files in addition to the built-in recipes.

    Raises:
        PhasewiseError: the port cannot be used.
    """
    if port is None:
        tried = range(prefect_port + 1, min(prefect_port + PORTS_TRIED, 65_536))
        port = next((near for near in tried if not bind_problem(host, near)), None)
        if port is None:
            raise PhasewiseError(f"no port after {prefect_port} is free for the page: choose one with --site-port.")
    elif problem := bind_problem(host, port):
        raise PhasewiseError(f"port {port} cannot be used for the page ({problem}): choose another with --site-port.")
    given = os.environ.get(TOKEN_VARIABLE)
    token = given or page_token(home)
    options = ["--home", str(home.root), "--host", host, "--port", str(port), "--prefect", prefect_url, "--with-parent"]
    options += ["--own-prefect"] if is_own_prefect else []
    for recipe in recipes:
        options += ["--recipe", recipe]
    home.prefect.mkdir(parents=True, exist_ok=True)
    log = home.prefect / LOG_NAME
    log_before = log.stat().st_size if log.exists() else 0
    before = os.environ.get(URL_VARIABLE)
    url = f"http://{LOOPBACK[0] if host in (*LOOPBACK, '0.0.0.0', '::') else host}:{port}"
    os.environ[URL_VARIABLE] = url
    try:
        command = python_command("phasewise.deployments.site", *options)
        with logged_child(command, log, {**os.environ, TOKEN_VARIABLE: token}, stop_seconds=STOP_SECONDS) as process:
            yield OwnSite(url, token, bool(given), process, log, log_before)
    finally:
        if before is None:
            del os.environ[URL_VARIABLE]
        else:
            os.environ[URL_VARIABLE] = before


def bind_problem(host: str, port: int) -> str:
    """Return the reason that a port cannot be bound, or an empty string."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return str(error.strerror or error)
    return ""
