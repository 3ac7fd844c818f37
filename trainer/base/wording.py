"""Values as text: numbers, counts, shares, times and lists in sentences, tables and pages. JSON has the values themselves."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from difflib import SequenceMatcher, get_close_matches
from typing import Any, Literal

MISSING = "–"
MINUS = "−"
MINUTE_SECONDS = 60
HOUR_SECONDS = 3600
MOST_NAMES = 40


def near(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> str:
    """Suggest the most similar names, or list the known names. `cutoff`: least similarity, from 0 to 1."""
    alike = get_close_matches(name, known, n=3, cutoff=cutoff)
    alike = [one for one in alike if SequenceMatcher(None, one, name).ratio() > SequenceMatcher(None, alike[0], name).ratio() - 0.1]
    return f"did you mean {' or '.join(alike)}?" if alike else f"there are {name_some(known, MOST_NAMES)}."


def rounded(value: float) -> float:
    """Round a float to 12 significant digits: 0.0016999999999999999 becomes 0.0017."""
    return float(f"{value:.12g}")


def to_places(value: float, places: int, *, digits: int = 4) -> float:
    """Round to a number of places, or to `digits` significant digits if that is more. The result is an int if it has no places."""
    if value == 0 or not math.isfinite(value):
        return value
    needed = max(places, digits - 1 - math.floor(math.log10(abs(value))))
    return round(value, needed) if needed > 0 else round(value)


def small(value: float, places: int) -> str:
    """Return `1,234.57`, with a number of places or with two significant digits, if that is more: `2.3`, `0.049`, `0.00072`."""
    found = to_places(value, places, digits=2)
    return f"{found:,.{places if found == 0 else max(places, 1 - math.floor(math.log10(abs(found))))}f}"


def number(value: float) -> str:
    """Return 0.0017, 1.7e-05, 12,000."""
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.6g}"


def in_words(value: Any) -> str:
    """Return the text of a setting: a number, a switch, or a list or mapping of settings. A mapping's entries that are off are omitted."""
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, dict):
        parts = [(name.replace("_", " "), part) for name, part in value.items() if part is not None and part is not False and part != []]
        return ", ".join(name if part is True else f"{name} {in_words(part)}" for name, part in parts)
    if isinstance(value, list | tuple):
        return ", ".join(in_words(part) for part in value) or "none"
    return str(value)


def plural(count: int, noun: str) -> str:
    """Return `1 warning`, `1,200 warnings`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def name_some(names: Iterable[object], most: int, between: Literal[", ", "; "] = ", ") -> str:
    """Return the first names and the number of the others: `a, b and 3 more`, `a; b; and 3 more`."""
    every = [str(name) for name in names]
    more = len(every) - most
    return between.join(every[:most]) + (f"{';' if between == '; ' else ''} and {more:,} more" if more > 0 else "")


def about(seconds: float) -> str:
    """Return a rough duration: `about 90 s`, `about 5 min`, `about 30 h`."""
    if seconds < 2 * MINUTE_SECONDS:
        return f"about {seconds:.0f} s"
    if seconds < 2 * HOUR_SECONDS:
        return f"about {seconds / MINUTE_SECONDS:.0f} min"
    return f"about {seconds / HOUR_SECONDS:,.0f} h"


def tokens(count: int) -> str:
    """Return 2.768 T, 125.8 B, 3.41 M: four digits with the unit."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.4g} {unit}" if count / size >= 1000 else f"{count / size:#.4g} {unit}"
    return f"{count:,}"


def decimal(value: float | None, *, places: int) -> str:
    """Return `2.50` for 2.5."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.{places}f}".replace("-", MINUS)


def signed(value: float, *, places: int) -> str:
    """Return `+0.25` for 0.25, and `±0.00` for a value that rounds to zero."""
    text = f"{value:+.{places}f}"
    return f"±{text[1:]}" if float(text) == 0 else text.replace("-", MINUS)


def rate(value: float | None) -> str:
    """Return a learning rate: `5.7e-3`, `0`."""
    if value is None:
        return MISSING
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "not finite"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def count(value: int) -> str:
    """Return `2.36 M` for 2,360,000: three digits, for narrow columns."""
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 999.5 * scale else f"{value / scale:,.0f} {unit}"
    return str(value)


def percent(value: float) -> str:
    """Return a share in percent: `92.6`, `0.33`, or `<0.01` for a tiny positive share."""
    if 0 < value < 0.005:
        return "<0.01"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def moment(iso: str) -> str:
    """Return an ISO time to the minute, with its zone, and other text unchanged."""
    try:
        time = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{time:%Y-%m-%d %H:%M} {time.tzname() or ''}".strip()
