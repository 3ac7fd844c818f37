import asyncio
import base64
import email
import email.policy
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest
from prefect.blocks.abstract import NotificationError
from pydantic import SecretStr, ValidationError

from phasewise.flows.prefect.email_block import Mail
from tests.ports import free_port

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


def mail(port: int, password: str = PASSWORD) -> Mail:
    recipients = ["ada@example.org", "grace@example.org"]
    secret = SecretStr(password)
    return Mail(host="127.0.0.1", port=port, encrypt=False, sender="gates@example.org", recipients=recipients, user=USER, password=secret)


def send(block: Mail, subject: str) -> None:
    with block.raise_on_failure():
        asyncio.run(block.notify("The body – of two\nlines.", subject))


def test_it_is_sent_to_all_and_a_subject_is_one_line() -> None:
    with mail_server(PASSWORD) as (port, taken):
        send(mail(port), "a phase\nBcc: eve@example.org waits")
    [message] = taken
    assert message["To"] == "ada@example.org, grace@example.org"
    assert message["Subject"] == "a phase Bcc: eve@example.org waits"
    assert message["Bcc"] is None
    assert message.get_content().split() == ["The", "body", "–", "of", "two", "lines."]


def test_a_server_that_refuses_or_is_not_there_is_named_and_no_password_is_said() -> None:
    with mail_server("another") as (port, taken):
        for tried in (port, free_port()):
            with pytest.raises(NotificationError) as refused:
                send(mail(tried), "x")
            assert f"127.0.0.1:{tried} did not take the mail: " in refused.value.log
            assert PASSWORD not in refused.value.log
    assert taken == []
    with pytest.raises(ValidationError, match="sender"):
        Mail(host="127.0.0.1", sender="nobody", recipients=["ada@example.org"])
