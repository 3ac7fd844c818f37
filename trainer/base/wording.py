"""Values in words: how sentences, tables and pages write numbers, counts, shares, times and lists. Nothing else decides that.

A missing value is a dash; one that is not finite says so. JSON has the values themselves.
"""

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

MISSING = "–"
MINUS = "−"
SIGNIFICANT = 12
"""Digits of a float as it was written. More only shows how it is computed: 0.0016999999999999999."""
MINUTE_SECONDS, HOUR_SECONDS = 60, 3600
MEGABYTE = 1e6


def rounded(value: float) -> float:
    """A float with as many digits as it was written with."""
    return float(f"{value:.{SIGNIFICANT}g}")


def to_places(value: float, places: int, *, digits: int = 4) -> float:
    """Rounded to so many places, or to more where so few digits would be left: 0.0004 is not nothing. Without places it is a whole number
    where its digits are enough.
    """
    if value == 0 or not math.isfinite(value):
        return value
    wanted = max(places, digits - 1 - math.floor(math.log10(abs(value))))
    return round(value, wanted) if wanted > 0 else round(value)


def small(value: float, places: int) -> str:
    """`1,234.57`, with so many places, or with two digits where that is more: `2.3`, `0.049`, `0.00072`."""
    found = to_places(value, places, digits=2)
    return f"{found:,.{places if found == 0 else max(places, 1 - math.floor(math.log10(abs(found))))}f}"


def number(value: float) -> str:
    """0.0017, 1.7e-05, 12,000: never with a tail of nines."""
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.6g}"


def in_words(value: Any) -> str:
    """A setting: a number, a switch, or a list or mapping of settings. Of a mapping, what is off is left out."""
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, dict):
        parts = [(name, part) for name, part in value.items() if part is not None and part is not False and part != []]
        return ", ".join(
            f"{name.replace('_', ' ')} {in_words(part)}" if part is not True else name.replace("_", " ") for name, part in parts
        )
    if isinstance(value, list | tuple):
        return ", ".join(in_words(part) for part in value) or "none"
    return str(value)


def plural(count: int, noun: str) -> str:
    """`1 warning`, `1,200 warnings`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def name_some(names: Iterable[object], most: int, between: Literal[", ", "; "] = ", ") -> str:
    """The first few and how many more there are: `a, b and 3 more`, `a; b; and 3 more`."""
    every = [str(name) for name in names]
    more = len(every) - most
    return between.join(every[:most]) + (f"{';' if between == '; ' else ''} and {more:,} more" if more > 0 else "")


def about(seconds: float) -> str:
    """How long work takes, roughly: `about 90 s`, `about 5 min`, `about 30 h`."""
    if seconds < 2 * MINUTE_SECONDS:
        return f"about {seconds:.0f} s"
    if seconds < 2 * HOUR_SECONDS:
        return f"about {seconds / MINUTE_SECONDS:.0f} min"
    return f"about {seconds / HOUR_SECONDS:,.0f} h"


def megabytes(size_bytes: int) -> str:
    """`1,234.5 MB`, of a million bytes each."""
    return f"{size_bytes / MEGABYTE:,.1f} MB"


def tokens(count: int) -> str:
    """2.768 T, 125.8 B, 3.41 M: four digits, and the unit."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.4g} {unit}" if count / size >= 1000 else f"{count / size:#.4g} {unit}"
    return f"{count:,}"


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
    """`2_360_000` as `2.36 M`: three digits, where there is little room."""
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
