"""Pictures as inline SVG: curves, and the tree of phases. Colours and sizes of text are the style sheet's, by class."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from phasewise.flows.site.metrics import Points
from phasewise.trainer.base.wording import count, number

WIDTH, HEIGHT = 440, 190
LEFT, RIGHT, TOP, BOTTOM = 58, 20, 10, 26
TICKS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Line:
    """One curve of a picture.

    Attributes:
        parts: a curve with gaps is several.
        place: which of the styles it has: 0 the first, 1 the one that is compared with it.
        is_dots: measured now and then: a dot each.
    """

    name: str
    parts: Sequence[Points]
    place: int = 0
    is_dots: bool = False

    @property
    def points(self) -> Points:
        """All of them."""
        return [point for part in self.parts for point in part]


@dataclass(frozen=True)
class Figure:
    """A picture with its title, and the same in words."""

    title: str
    words: str
    svg: Markup
    legend: tuple[tuple[int, str], ...] = ()
    note: str = ""


def curve(title: str, lines: Sequence[Line], *, unit: str = "", note: str = "") -> Figure | None:
    """A picture of the lines over steps; None where there is nothing to draw."""
    drawn = [line for line in lines if line.points]
    if not drawn:
        return None
    points = [point for line in drawn for point in line.points]
    across = _range([x for x, _ in points])
    up = _range([y for _, y in points], is_padded=True)
    body = Markup("").join([_axes(across, up), *(_drawn(line, across, up) for line in drawn)])
    words = ". ".join(_words(line, unit) for line in drawn)
    svg = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(WIDTH, HEIGHT, f"{title}: {words}", body)
    legend = tuple((line.place, line.name) for line in drawn) if len(drawn) > 1 else ()
    return Figure(f"{title}{f', {unit}' if unit else ''}", words, svg, legend, note)


def _words(line: Line, unit: str) -> str:
    points = line.points
    first, last = points[0], points[-1]
    least, greatest = min(y for _, y in points), max(y for _, y in points)
    return (
        f"{line.name} {_short(first[1])} at step {first[0]:,.0f}, {_short(last[1])} at step {last[0]:,.0f}, "
        f"between {_short(least)} and {_short(greatest)}"
    )


def _short(value: float) -> str:
    return f"{value:.4g}"


def _range(values: Sequence[float], *, is_padded: bool = False) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        half = abs(low) / 10 or 1.0
        return low - half, high + half
    room = (high - low) * 0.05 if is_padded else 0.0
    return low - room, high + room


def _axes(across: tuple[float, float], up: tuple[float, float]) -> Markup:
    parts: list[Markup] = []
    for tick in ticks(*up, most=4):
        y = _y(tick, up)
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(LEFT, WIDTH - RIGHT, y=y))
        parts.append(Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(LEFT - 6, y + 4, _tick(tick)))
    for tick in ticks(*across, most=5):
        x = _x(tick, across)
        parts.append(Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(x, HEIGHT - 8, _tick(tick)))
    parts.append(Markup('<line class="axis" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(LEFT, WIDTH - RIGHT, y=HEIGHT - BOTTOM))
    return Markup("").join(parts)


def _drawn(line: Line, across: tuple[float, float], up: tuple[float, float]) -> Markup:
    if line.is_dots or all(len(part) == 1 for part in line.parts):
        dot = Markup('<circle class="dot place-{}" cx="{}" cy="{}" r="2.6"/>')
        return Markup("").join(dot.format(line.place, _x(x, across), _y(y, up)) for x, y in line.points)
    path = " ".join("M" + " ".join(f"{_x(x, across)},{_y(y, up)}" for x, y in part) for part in line.parts)
    return Markup('<path class="curve place-{}" d="{}"/>').format(line.place, path)


def ticks(low: float, high: float, *, most: int) -> list[float]:
    """Round numbers within the range, at most so many and one more."""
    raw = (high - low) / most
    if not math.isfinite(raw) or raw <= 0:
        return []
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(size * scale for size in TICKS if size * scale >= raw * 0.999)
    first = math.ceil(low / step)
    return [round(place * step, 12) for place in range(first, math.floor(high / step) + 1)]


def _tick(value: float) -> str:
    return count(int(value)) if abs(value) >= 10_000 and value == int(value) and value > 0 else number(value)


def _x(value: float, across: tuple[float, float]) -> float:
    return round(LEFT + (value - across[0]) / (across[1] - across[0]) * (WIDTH - LEFT - RIGHT), 1)


def _y(value: float, up: tuple[float, float]) -> float:
    return round(HEIGHT - BOTTOM - (value - up[0]) / (up[1] - up[0]) * (HEIGHT - BOTTOM - TOP), 1)
