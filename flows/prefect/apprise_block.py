"""A notification block for every service of Apprise, such as a mail server. Prefect's own email block needs Prefect Cloud."""

from prefect.blocks.notifications import AppriseNotificationBlock
from pydantic import Field, SecretStr


class AppriseUrl(AppriseNotificationBlock):
    """Sends a message to the service of a URL. An error has the answer of the service, and no password."""

    _block_type_name = "Apprise URL"
    _block_type_slug = "apprise-url"
    _description = "Sends a message by mail (mailto:, mailtos:) or to any other service of Apprise."

    url: SecretStr = Field(
        title="URL",
        description="Address of the service as Apprise writes it.",
        examples=["mailtos://USER:PASSWORD@smtp.example.org:587?from=gates@example.org&to=ada@example.org,grace@example.org"],
        json_schema_extra={"pattern": "^[A-Za-z][A-Za-z0-9+.-]*://"},
    )

    def block_initialization(self) -> None:
        """Open the service. Raises ValueError for a URL of no known service: its messages would be lost."""
        super().block_initialization()
        if not len(self._apprise_client):
            raise ValueError("url: expected the URL of a service of Apprise, such as mailtos://…, found another one. Correct the block.")
