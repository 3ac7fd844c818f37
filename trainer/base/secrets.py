"""Addresses that carry a password or a token: they are refused where they would be written down, and hidden where they are said."""

import re

_OWNER = re.compile(r"(?P<before>https?://)[^/@\s]+@|(?P<other>[a-z0-9+.-]+://)[^/@:\s]*:[^/@\s]+@", re.IGNORECASE)
_QUERY = re.compile(
    r"(?P<name>[?&][^=&\s]*(?:token|secret|password|passwd|signature|sig|credential|api[_-]?key|accesskeyid)=)[^&\s]+", re.IGNORECASE
)
HIDDEN = "…"


def has_secret(url: str) -> bool:
    """Whether the address carries a name with a password, or a token: `https://NAME:PASSWORD@host/`, `https://host/?token=…`."""
    return bool(_OWNER.search(url) or _QUERY.search(url))


def without_secrets(text: str) -> str:
    """The text with what addresses in it carry left out."""
    hidden = _OWNER.sub(lambda match: f"{match['before'] or match['other']}{HIDDEN}@", text)
    return _QUERY.sub(lambda match: f"{match['name']}{HIDDEN}", hidden)


def check_no_secret(url: str | None, field: str) -> None:
    """Refuse an address that carries a secret: it is written to caches' manifests, reports and cards.

    Raises:
        ValueError: with what to do instead; the secret is not in it.
    """
    if url is not None and has_secret(url):
        raise ValueError(
            f"{field} must not carry a password or a token, found {without_secrets(url)}: it would be written to caches, reports and "
            "cards. Take it out, and give it to fsspec by the environment (FSSPEC_HTTPS, or the store's own variables)"
        )
