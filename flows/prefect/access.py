"""Access to the servers of a home: secrets in private files, and a check of host names and origins."""

import os
import secrets
import stat
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
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
AUTH_NAME, PAGE_NAME, LINKS_NAME = "auth", "page-token", "links"
"""Files in the home's folder of Prefect: Prefect's auth string, the token of our page, and links with both secrets."""
AUTH_VARIABLES = ("PREFECT_API_AUTH_STRING", "PREFECT_API_KEY", "PREFECT_SERVER_API_AUTH_STRING")
OTHERS = stat.S_IRWXG | stat.S_IRWXO
OPEN_PATH = "/-/open"  # a page that stores the auth string in the browser: Prefect's pages read it from the storage of their origin
_OPEN_SCRIPT = """
const [secret, to] = location.hash.slice(1).split("&").map(decodeURIComponent);
history.replaceState(null, "", location.pathname);
const key = btoa(secret);
fetch("/api/admin/version", { headers: { Authorization: `Basic ${key}` } }).then((answer) => {
  if (answer.ok) localStorage.setItem("prefect-password", key);
  location.replace(/^\\/(?![\\/\\\\])/.test(to || "") ? to : "/");
});
"""


@dataclass
class OwnAddress:
    """ASGI middleware that rejects other host names and other origins.

    A foreign page can point its own name at this machine, so the host name is checked. Browsers send the origin of a request or websocket,
    so a page of another origin is rejected. Programs send no origin and pass. `names`: host names of this server, in lower case. `port`:
    port in the host header. None accepts all ports, for servers behind a tunnel. `takes_digits`: accept numeric addresses as host names. A
    numeric address always points at this machine.
    """

    app: ASGIApp
    names: Collection[str] = LOOPBACK
    port: int | None = None
    takes_digits: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application, or reject it."""
        refusal: tuple[int, str] | None = None
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            hosts, origins = headers.getlist("host"), headers.getlist("origin")
            own = {f"http://{host}".lower() for host in hosts}
            if self.port:
                suffix = f":{self.port}" if self.port != 80 else ""
                own |= {f"http://[{name}]{suffix}" if ":" in name else f"http://{name}{suffix}" for name in self.names}
            if len(hosts) != 1 or not self._is_own(hosts[0]):
                refusal = 421, "This server does not answer under that name.\n"
            elif any(origin.lower() not in own for origin in origins):
                refusal = 403, "This server does not answer pages of another origin.\n"
        if refusal is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(1008)(scope, receive, send)  # before the handshake: uvicorn answers 403
        else:
            await PlainTextResponse(refusal[1], refusal[0])(scope, receive, send)

    def _is_own(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if parts.netloc != host or parts.username is not None or self.port not in (None, port):
            return False
        if name in self.names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return self.takes_digits


def open_route() -> Route:
    """Return the page at `OPEN_PATH`."""
    nonce = secrets.token_urlsafe(16)
    policy = f"default-src 'none'; script-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
    page = f'<!DOCTYPE html><title>Prefect</title><script nonce="{nonce}">{_OPEN_SCRIPT}</script>'
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

    async def answer(_request: object) -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    return Route(OPEN_PATH, answer)


def auth_of(home: Home) -> str:
    """Read or create the auth string of the home's Prefect server: `phasewise:…`. Raises ConfigError if the file cannot be private."""
    return _secret(home.prefect / AUTH_NAME, "phasewise:")


def page_token(home: Home) -> str:
    """Read or create the token of the home's page. Raises ConfigError if the file cannot be private."""
    return _secret(home.prefect / PAGE_NAME, "")


def auth_of_running(home: Home) -> str | None:
    """Read the auth string of a running server, if the server has a secret. Raises ConfigError for the file of a foreign user."""
    path = home.prefect / AUTH_NAME
    try:
        return path.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: the secret of this home's Prefect server cannot be read by this user: {error}.") from None


def keep_links(home: Home, links: Iterable[str]) -> Path:
    """Write links with secrets to a private file and return its path."""
    path = home.prefect / LINKS_NAME
    _write_private(path, "".join(f"{link}\n" for link in links))
    return path


def hide_from_children(auth: str | None = None) -> dict[str, str]:
    """Load Prefect's settings, optionally with an auth string, and move the secrets from the environment to the result."""
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
        _write_private(path, made + "\n")
        return made
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected a secret that this user may read and write, found: {error}. Remove the file.") from None


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)  # Prefect's database is in the same folder
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(number, "w", encoding="ascii") as file:
            file.write(text)
        if os.stat(name).st_mode & OTHERS:
            raise ConfigError(f"{path}: this file system has no private files. Choose a home on another file system with --home.")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
