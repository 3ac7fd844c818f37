"""A notification block that sends email over SMTP. Prefect's own email block needs Prefect Cloud."""

import asyncio
import smtplib
import ssl
from email.message import EmailMessage

from prefect.blocks.abstract import NotificationBlock, NotificationError
from pydantic import Field, SecretStr

SEND_SECONDS = 30.0


class Mail(NotificationBlock):
    """Sends a message through a mail server."""

    _block_type_name = "Mail"
    _block_type_slug = "mail"
    _description = "Sends a message through a mail server (SMTP)."

    host: str = Field(title="Mail server", description="Its name, such as smtp.example.org.")
    port: int = Field(default=587, ge=1, le=65_535, title="Port")
    encrypt: bool = Field(default=True, title="Encrypt", description="With STARTTLS. Off is for a server on the same machine.")
    sender: str = Field(title="From", pattern=r"^[^\s@]+@[^\s@]+$")
    recipients: list[str] = Field(title="To", min_length=1, description="Addresses.")
    user: str | None = Field(default=None, title="User")
    password: SecretStr | None = Field(default=None, title="Password", description="Used only with a user.")

    async def notify(self, body: str, subject: str | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # awaited there
        """Send a message. Raises NotificationError if the server rejected the message. The error never contains the password."""
        message = EmailMessage()
        message["From"] = self.sender
        message["To"] = ", ".join(self.recipients)
        message["Subject"] = " ".join((subject or "").split())
        message.set_content(body)
        try:
            await asyncio.to_thread(self._send, message)
        except (OSError, smtplib.SMTPException) as error:
            if self._raise_on_failure:
                raise NotificationError(log=f"{self.host}:{self.port} did not take the mail: {error}") from None

    def _send(self, message: EmailMessage) -> None:
        with smtplib.SMTP(self.host, self.port, timeout=SEND_SECONDS) as server:
            if self.encrypt:
                server.starttls(context=ssl.create_default_context())
            if self.user:
                server.login(self.user, self.password.get_secret_value() if self.password else "")
            server.send_message(message)
