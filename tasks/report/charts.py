"""Charts as inline SVG: axes, curves over steps, and the tree of phases. The style sheet sets colours, `charts.js` adds hover and zoom."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from phasewise.trainer.base.wording import count, number

Points = Sequence[tuple[float, float]]
Range = tuple[float, float]
MAX_INTERVALS = 240


def short(value: float) -> str:
    """Format a value of an axis, such as `12 k` or `0.25`."""
    return count(int(value)) if value >= 10_000 and value == int(value) else number(value)


class Axes:
    """A plot in CSS pixels with its box, value ranges and SVG parts. Values outside a range are clamped."""

    def __init__(self, box: tuple[float, float, float, float], across: Range, up: Range) -> None:
        self.left, self.top, self.width, self.height = box
        self.across, self.up = across, up
        self.parts: list[Markup] = []

    def x(self, value: float) -> float:
        """Return pixels from the left of the picture."""
        low, high = self.across
        return round(self.left + self.width * (min(max(value, low), high) - low) / (high - low), 1)

    def y(self, value: float) -> float:
        """Return pixels from the top of the picture."""
        low, high = self.up
        return round(self.top + self.height * (high - min(max(value, low), high)) / (high - low), 1)

    def line(self, parts: Iterable[Points], css: str) -> None:
        """Draw a line for each part."""
        path = " ".join("M" + " ".join(f"{self.x(x)},{self.y(y)}" for x, y in part) for part in parts if len(part))
        self.parts.append(Markup('<path class="{}" d="{}"/>').format(css, path))

    def dots(self, points: Points, css: str, radius: float = 3) -> None:
        """Draw dots."""
        self.parts += [Markup('<circle class="{}" cx="{}" cy="{}" r="{}"/>').format(css, self.x(x), self.y(y), radius) for x, y in points]

    def level(self, value: float, css: str) -> None:
        """Draw a horizontal line."""
        self.line([[(self.across[0], value), (self.across[1], value)]], css)

    def text(self, place: tuple[float, float], text: str, css: str = "", anchor: str = "start", turn: str = "") -> None:
        """Write text at a position in pixels."""
        x, y = round(place[0], 1), round(place[1], 1)
        turned = Markup(' transform="rotate({} {} {})"').format(turn, x, y) if turn else ""
        self.parts.append(Markup('<text class="{}" x="{}" y="{}" text-anchor="{}"{}>{}</text>').format(css, x, y, anchor, turned, text))

    def grid(self, most: int, form: Callable[[float], str] = short) -> None:
        """Draw and label horizontal lines at round values."""
        for tick in ticks(*self.up, most=most):
            self.level(tick, "grid")
            self.text((self.left - 6, self.y(tick) + 4), form(tick), anchor="end")

    def steps(self, most: int) -> None:
        """Label round values below the plot."""
        for tick in ticks(*self.across, most=most):
            self.text((self.x(tick), self.top + self.height + 18), short(tick), anchor="middle")
        self.level(self.up[0], "axis")


def svg(pixels: float, height: float, axes: Iterable[Axes], *, label: str = "") -> Markup:
    """Combine plots in a picture, which is hidden from screen readers without a label."""
    about = Markup('role="img" aria-label="{}"').format(label) if label else Markup('aria-hidden="true"')
    body = Markup("").join(part for one in axes for part in one.parts)
    return Markup('<svg viewBox="0 0 {} {}" {}>{}</svg>').format(round(pixels), round(height), about, body)


def ticks(low: float, high: float, *, most: int) -> list[float]:
    """Return at most `most` + 1 round numbers within the range."""
    raw = (high - low) / most
    if not math.isfinite(raw) or raw <= 0:
        return []
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(size * scale for size in (1, 2, 2.5, 5, 10) if size * scale >= raw * 0.999)
    return [round(place * step, 12) for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def padded(values: Sequence[float], room: float = 0.05) -> Range:
    """Return the range of the values with margins."""
    low, high = min(values), max(values)
    half = abs(low) / 10 or 1.0
    return (low - half, high + half) if low == high else (low - room * (high - low), high + room * (high - low))


def thinned(steps: np.ndarray, values: np.ndarray, *, most: int = MAX_INTERVALS) -> list[list[tuple[float, float]]]:
    """Thin a curve to about twice `most` points, the minimum and maximum of each interval. A missing value starts a new part."""
    stretch = max(1, math.ceil(len(steps) / most))
    parts: list[list[tuple[float, float]]] = [[]]
    for start in range(0, len(steps), stretch):
        part = values[start : start + stretch]
        finite = np.flatnonzero(np.isfinite(part))
        if parts[-1] and (not len(finite) or (len(finite) < len(part) and stretch == 1)):
            parts.append([])
        if len(finite):
            ends = {int(finite[np.argmin(part[finite])]), int(finite[np.argmax(part[finite])])}
            parts[-1] += [(float(steps[start + place]), float(part[place])) for place in sorted(ends)]
    return [part for part in parts if part]


def means(steps: np.ndarray, values: np.ndarray, *, most: int = MAX_INTERVALS) -> list[tuple[float, float]]:
    """Return the mean of the finite values of each interval at its first step. Smoothing starts from them: extremes would bias it."""
    starts = np.arange(0, len(steps), max(1, math.ceil(len(steps) / most)))
    is_finite = np.isfinite(values)
    counts = np.add.reduceat(is_finite, starts, dtype=np.int64)
    sums = np.add.reduceat(np.where(is_finite, values, 0.0), starts)
    return [(float(steps[start]), float(total / n)) for start, total, n in zip(starts, sums, counts, strict=True) if n]


class Line(NamedTuple):
    """A curve with a part between gaps. `place` is the style: 0 for the first curve, 1 to 7 for compared curves.

    `means`: the curve to smooth, by default its points. None is never smoothed.
    `spread`: step, lowest and highest value of several seeds, drawn as a band.
    """

    name: str
    parts: Sequence[Points]
    place: int = 0
    is_dots: bool = False
    means: Points | None = ()
    spread: Sequence[tuple[float, float, float]] = ()


class Figure(NamedTuple):
    """A picture with title and legend. `data`: ranges and points as JSON, from which `charts.js` draws the picture again."""

    title: str
    svg: Markup
    legend: tuple[tuple[int, str], ...]
    note: str
    data: str = ""


def curve(title: str, lines: Sequence[Line], *, unit: str = "", note: str = "") -> Figure | None:
    """Draw lines over steps, or return None without points."""
    drawn = [(line, points) for line in lines if (points := [point for part in line.parts for point in part])]
    if not drawn:
        return None
    every = [point for line, points in drawn for point in (*points, *((x, y) for x, *ends in line.spread for y in ends))]
    axes = Axes((58, 10, 362, 154), padded([x for x, _ in every], 0), padded([y for _, y in every]))
    axes.grid(4)
    axes.steps(5)
    words: list[str] = []
    for line, points in drawn:
        if line.spread:
            edge = [(x, low) for x, low, _ in line.spread] + [(x, high) for x, _, high in reversed(line.spread)]
            axes.line([edge], f"spread place-{line.place}")
        if line.is_dots or all(len(part) == 1 for part in line.parts):
            axes.dots(points, f"dot place-{line.place}", 2.6)
        else:
            axes.line(line.parts, f"curve place-{line.place}")
        (first, begin), (last, end) = points[0], points[-1]
        least, greatest = min(y for _, y in points), max(y for _, y in points)
        words.append(f"{line.name} {begin:.4g} at step {first:,.0f}, {end:.4g} at step {last:,.0f}, between {least:.4g} and {greatest:.4g}")
    legend = tuple((line.place, line.name) for line, _ in drawn) if len(drawn) > 1 else ()
    picture = svg(440, 190, [axes], label=f"{title}: {'. '.join(words)}")
    fields: list[dict[str, object]] = []
    for line, _ in drawn:
        points = {"parts": [_rounded(part) for part in line.parts], "spread": _rounded(line.spread)}
        smooth = None if line.means is None else _rounded(line.means)
        fields.append({"name": line.name, "place": line.place, "dots": line.is_dots, "means": smooth, **points})
    return Figure(f"{title}{f', {unit}' if unit else ''}", picture, legend, note, json.dumps(fields, separators=(",", ":")))


class Interval(NamedTuple):
    """A named value with its interval. `place` is the style, as of a `Line`."""

    name: str
    low: float
    value: float
    high: float
    place: int = 0


def intervals(title: str, rows: Sequence[Interval]) -> Figure | None:
    """Draw differences with their intervals beside a line at zero, a row each, or return None without rows."""
    if not rows:
        return None
    height = 26 * len(rows)
    axes = Axes((120, 8, 300, height), padded([0.0, *(end for row in rows for end in (row.low, row.high))], 0.08), (0, len(rows)))
    for tick in ticks(*axes.across, most=4):
        axes.text((axes.x(tick), axes.top + height + 18), number(tick), anchor="middle")
        axes.line([[(tick, 0), (tick, len(rows))]], "axis" if tick == 0 else "grid")
    for at, row in enumerate(rows):
        up = len(rows) - at - 0.5
        axes.line([[(row.low, up), (row.high, up)]], f"whisker place-{row.place}")
        axes.dots([(row.value, up)], f"dot place-{row.place}", 4)
        axes.text((axes.left - 8, axes.y(up) + 4), cut(row.name, 16), anchor="end")
    words = ". ".join(f"{row.name} {row.value:.4g}, {row.low:.4g} to {row.high:.4g}" for row in rows)
    return Figure(title, svg(440, height + 34, [axes], label=f"{title}: {words}"), (), "")


def _rounded(points: Iterable[Sequence[float]]) -> list[float]:
    """Return all numbers in a row: whole numbers, and six digits of others."""
    return [int(value) if value == int(value) else float(f"{value:.6g}") for point in points for value in point]


def stacked_bar(label: str, parts: Sequence[tuple[str, float, str]]) -> Markup:
    """Draw parts of a whole side by side: name, size and colour. A part has its name, or its number from 1, or nothing if it is narrow."""
    axes, start, whole = Axes((1, 1, 678, 40), (0, 1), (0, 1)), 0.0, sum(size for _, size, _ in parts) or 1.0
    for place, (name, size, colour) in enumerate(parts, start=1):
        left, right = axes.x(start / whole), axes.x((start + size) / whole)
        title = Markup("<title>{}: {:.1%}</title>").format(name, size / whole)
        rectangle = '<rect class="part" x="{}" y="1" width="{}" height="40" fill="{}">{}</rect>'
        axes.parts.append(Markup(rectangle).format(left, round(right - left, 1), colour, title))
        shown = next((text for text in (name, str(place)) if 7 * len(text) + 4 < right - left), "")
        if shown:
            axes.text(((left + right) / 2, 26), shown, "part", "middle")
        start += size
    return svg(680, 42, [axes], label=f"{label}: {', '.join(f'{name} {size / whole:.1%}' for name, size, _ in parts)}")


class Node(NamedTuple):
    """A phase in the tree. `kind` sets its colour, `said` is the second line."""

    name: str
    parent: str | None
    link: str
    kind: str
    said: str


def tree(nodes: Sequence[Node]) -> Markup:
    """Draw the tree of phases from left to right. The first child stays in its parent's row. Each box is a link."""
    parents = {node.name: node.parent for node in nodes}
    children: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent if parent in parents and parent != name else None, []).append(name)
    places: dict[str, tuple[int, int]] = {}  # column and row
    next_row = 0
    waiting = [(name, 0, True) for name in reversed(children.get(None, []))]
    while waiting:
        name, column, is_new_row = waiting.pop()
        row = next_row if is_new_row else places[parents[name] or ""][1]
        next_row = max(next_row, row + 1)
        places[name] = (column, row)
        waiting += [(child, column + 1, place > 0) for place, child in reversed(list(enumerate(children.get(name, []))))]
    lost = [name for name in parents if name not in places]  # cycles of a damaged home
    places |= {name: (0, next_row + number) for number, name in enumerate(lost)}

    width, height, column_pixels, row_pixels, margin = 164, 46, 184, 62, 4
    corners = {name: (margin + column * column_pixels, margin + row * row_pixels) for name, (column, row) in places.items()}
    parts: list[Markup] = []
    for node in nodes:
        if node.parent in corners:
            (x1, y1), (x2, y2) = corners[node.parent], corners[node.name]
            middle = x2 - (column_pixels - width) / 2
            edge = Markup('<path class="edge" d="M{},{} H{} V{} H{}"/>')
            parts.append(edge.format(x1 + width, y1 + height / 2, middle, y2 + height / 2, x2))
    for node in nodes:
        x, y = corners[node.name]
        box = Markup('<rect class="box {}" x="{}" y="{}" width="{}" height="{}" rx="8"/>').format(node.kind, x, y, width, height)
        name = Markup('<text class="name" x="{}" y="{}">{}</text>').format(x + 12, y + 19, cut(node.name, 18))
        said = Markup('<text class="said {}" x="{}" y="{}">{}</text>').format(node.kind, x + 12, y + 36, cut(node.said, 24))
        title = Markup("<title>{}: {}</title>").format(node.name, node.said)
        parts.append(Markup('<a href="{}">{}{}{}{}</a>').format(node.link, title, box, name, said))
    right = max((x for x, _ in corners.values()), default=margin) + width + margin
    bottom = max((y for _, y in corners.values()), default=margin) + height + margin
    frame = Markup('<svg class="tree" width="{w}" height="{h}" viewBox="0 0 {w} {h}">{body}</svg>')
    return frame.format(w=right, h=bottom, body=Markup("").join(parts))


def cut(text: str, most: int) -> str:
    """Cut a text to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
