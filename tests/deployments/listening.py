"""Those who are told, on this machine: a webhook, and a mail server."""

import base64
import email
import email.policy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, TCPServer, ThreadingTCPServer
from threading import Thread
from typing import Any

USER = "phasewise"


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its address, and what is posted to it."""
    posted: list[dict[str, Any]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's name
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)) as port:
        yield f"http://127.0.0.1:{port}/", posted


@contextmanager
def mail_server(password: str) -> Iterator[tuple[int, list[EmailMessage]]]:
    """Its port, and what it takes, from one who logs in."""
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

    with served(ThreadingTCPServer(("127.0.0.1", 0), Session)) as port:
        yield port, taken


@contextmanager
def served(server: TCPServer) -> Iterator[int]:
    with server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
