"""Numbers as people read them. A missing one is a dash; one that is not finite says so."""

import math
from datetime import datetime

MISSING = "–"
MINUS = "−"


def decimal(value: float | None, *, places: int) -> str:
    """`2.5` as `2.50`."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.{places}f}".replace("-", MINUS)


def signed(value: float, *, places: int) -> str:
    """`0.25` as `+0.25`; what rounds to nothing as `±0.00`."""
    text = f"{value:+.{places}f}"
    return f"±{text[1:]}" if float(text) == 0 else text.replace("-", MINUS)


def rate(value: float | None) -> str:
    """A learning rate: `5.7e-3`, `0`."""
    if value is None:
        return MISSING
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "not finite"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def count(value: int) -> str:
    """`2_360_000` as `2.36 M`."""
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 999.5 * scale else f"{value / scale:,.0f} {unit}"
    return str(value)


def percent(value: float) -> str:
    """A share: `92.6`, `0.33`; what is there but tiny as `<0.01`."""
    if 0 < value < 0.005:
        return "<0.01"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def moment(iso: str) -> str:
    """An ISO time to the minute, with its zone; other text as it is."""
    try:
        time = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{time:%Y-%m-%d %H:%M} {time.tzname() or ''}".strip()
