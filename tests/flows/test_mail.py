"""Mail through a real server on this machine."""

import asyncio

import pytest
from prefect.blocks.abstract import NotificationError
from pydantic import SecretStr, ValidationError

from phasewise.flows.prefect.email_block import Mail
from tests.deployments.listening import USER, mail_server
from tests.ports import free_port

PASSWORD = "planted-secret-77aa"


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


def test_a_server_that_refuses_is_named_and_no_password_is_said() -> None:
    with mail_server("another") as (port, taken), pytest.raises(NotificationError) as refused:
        send(mail(port), "x")
    assert taken == []
    assert f"127.0.0.1:{port} did not take the mail: " in refused.value.log
    assert PASSWORD not in refused.value.log


def test_a_server_that_is_not_there_is_named() -> None:
    port = free_port()
    with pytest.raises(NotificationError) as refused:
        send(mail(port), "x")
    assert f"127.0.0.1:{port} did not take the mail: " in refused.value.log


def test_a_sender_that_is_no_address_is_refused() -> None:
    with pytest.raises(ValidationError, match="sender"):
        Mail(host="127.0.0.1", sender="nobody", recipients=["ada@example.org"])
