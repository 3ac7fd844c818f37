"""Who may reach the servers of a home: a secret for each, in a file that only its owner reads."""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN_PATH = "/-/open"
"""Where a browser gives its copy of the auth string to Prefect's pages: they look for it in the storage of their origin."""
_OPEN_SCRIPT = """
const [secret, to] = location.hash.slice(1).split("&").map(decodeURIComponent);
history.replaceState(null, "", location.pathname);
const key = btoa(secret);
fetch("/api/admin/version", { headers: { Authorization: `Basic ${key}` } }).then((answer) => {
  if (answer.ok) localStorage.setItem("prefect-password", key);
  location.replace(/^\\/(?![\\/\\\\])/.test(to || "") ? to : "/");
});
"""


class OwnAddress:
    """An ASGI application that only its own address reaches.

    A request for another host name is refused: a foreign page could give its own name the address of this machine. So is a request or a
    websocket that a page of another origin makes; browsers name the origin, and other programs name none.

    Args:
        names: host names of this server.
        port: of this server, where it has no other one (as behind a tunnel); None is any.
        takes_digits: whether an address in digits is a name of this server, too: it cannot be given another address.
    """

    def __init__(self, app: ASGIApp, *, names: Iterable[str] = LOOPBACK, port: int | None = None, takes_digits: bool = False) -> None:
        self._app, self._names, self._port, self._takes_digits = app, {name.lower() for name in names}, port, takes_digits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for this server, and reject others."""
        refusal = self._refusal(Headers(scope=scope)) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(1008)(scope, receive, send)  # before it is accepted: uvicorn answers 403
        else:
            await PlainTextResponse(refusal[1], refusal[0])(scope, receive, send)

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return 421, "This server does not answer under that name.\n"
        own = {f"http://{host}".lower() for host in (hosts[0], *(self._written(name) for name in self._names if self._port))}
        if any(origin.lower() not in own for origin in origins):
            return 403, "This server answers no page of another origin.\n"
        return None

    def _is_own(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if parts.netloc != host or parts.username is not None or self._port not in (None, port):
            return False
        return name in self._names or (self._takes_digits and _is_address(name))

    def _written(self, name: str) -> str:
        return (f"[{name}]" if ":" in name else name) + (f":{self._port}" if self._port != 80 else "")


def own_origins(port: int) -> str:
    """The origins of a server on loopback, as Prefect's setting takes them."""
    return f"http://127.0.0.1:{port},http://localhost:{port}"


def opened(url: str, auth: str) -> str:
    """A link that opens Prefect's pages with the auth string. It is behind the `#`, which no browser sends to a server."""
    return f"{url}{OPEN_PATH}#{auth}"


def open_route() -> Route:
    """The page at `OPEN_PATH`."""
    nonce = secrets.token_urlsafe(16)
    policy = f"default-src 'none'; script-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
    page = f'<!DOCTYPE html><title>Prefect</title><script nonce="{nonce}">{_OPEN_SCRIPT}</script>'
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

    async def answer(_request: object) -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    return Route(OPEN_PATH, answer)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


AUTH_NAME, PAGE_NAME, LINKS_NAME = "auth", "page-token", "links"
"""Files in the home's folder of Prefect: Prefect's auth string, the token of our page, and the links that carry both."""
AUTH_VARIABLES = ("PREFECT_API_AUTH_STRING", "PREFECT_API_KEY", "PREFECT_SERVER_API_AUTH_STRING")
USER = "phasewise"
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def auth_of(home: Home) -> str:
    """The auth string of the home's Prefect server, made where there is none: `phasewise:…`.

    Raises:
        ConfigError: the file cannot be kept from others.
    """
    return _secret(home.prefect / AUTH_NAME, f"{USER}:")


def page_token(home: Home) -> str:
    """The token of the home's page, made where there is none.

    Raises:
        ConfigError: the file cannot be kept from others.
    """
    return _secret(home.prefect / PAGE_NAME, "")


def auth_of_running(home: Home) -> str | None:
    """The auth string of the server that another process has brought up; None where the server has none.

    Raises:
        ConfigError: the file is another user's.
    """
    path = home.prefect / AUTH_NAME
    try:
        return path.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: the Prefect server of this home is its owner's alone, and its secret cannot be read: {error}."
        ) from None


def keep_links(home: Home, links: Iterable[str]) -> Path:
    """Write the links that carry the secrets where only their owner reads them."""
    path = home.prefect / LINKS_NAME
    _write(path, "".join(f"{link}\n" for link in links))
    return path


def hide_from_children(auth: str | None = None) -> dict[str, str]:
    """Have Prefect read its settings now, with this auth string if one is given, and take the secrets out of the environment.

    Prefect gives flow runs what it has read. Trainers, Dask's workers and all other children do not need it.

    Returns:
        What was taken out.
    """
    from prefect.context import refresh_global_settings_context

    taken = {name: os.environ.pop(name) for name in AUTH_VARIABLES if name in os.environ}
    os.environ.update(taken if auth is None else {AUTH_VARIABLES[0]: auth})
    refresh_global_settings_context()
    for name in AUTH_VARIABLES:
        os.environ.pop(name, None)
    return taken


def _secret(path: Path, prefix: str) -> str:
    try:
        if path.exists():
            mode, text = path.stat().st_mode, path.read_text(encoding="ascii").strip()
            if text and not mode & OTHERS:
                return text
            if text:
                say(f"{path}: expected a file that only its owner reads, found mode {stat.filemode(mode)}: made another secret")
        made = prefix + secrets.token_urlsafe(32)
        _write(path, made + "\n")
        return made
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected a secret that this user may read and write, found: {error}. Remove the file.") from None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)  # the database of Prefect is there, too
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(number, "w", encoding="ascii") as file:
            file.write(text)
        if os.stat(name).st_mode & OTHERS:
            raise ConfigError(f"{path}: this file system keeps no file from other users. Choose a home on another one with --home.")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
