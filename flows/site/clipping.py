"""Text that may be of any length, cut where nobody would read on."""

CLIPPED = 600


def clipped(text: object, most: int = CLIPPED) -> str:
    """The text, cut where nobody would read on."""
    said = str(text)
    return said if len(said) <= most else f"{said[: most - 1]}…"
