"""What a server on this machine answers: requests to its own address, from no page of another origin."""

import secrets
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

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
        """Answer, or hand on what is for this server."""
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
