"""How pictures are drawn with matplotlib: inline SVG whose text and colours are the page's.

Colours are drawn as numbered stand-ins and become CSS variables afterwards, so that one picture serves light, dark and print.
A picture as wide as the page is drawn twice, wide and narrow, and the page shows the one that fits.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.typing import RcKeyType

INK, MUTED, LINE, BAND, LOSS, RATE, BASELINE, CARD = (f"#0000{i:02x}" for i in range(0xA1, 0xA9))
CSS_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    LINE: "--line",
    BAND: "--band",
    LOSS: "--loss",
    RATE: "--rate",
    BASELINE: "--baseline",
    CARD: "--card",
}
FONT_PIXELS = 12
STYLE: dict[RcKeyType, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": FONT_PIXELS,
    "text.color": INK,
    "axes.titlesize": FONT_PIXELS,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
}
WIDE_PIXELS, NARROW_PIXELS = 1000, 400


def in_both_widths(name: str, draw: Callable[[int], Figure]) -> Markup:
    """The picture, wide and narrow. It is safe in a page: matplotlib escapes the text that it is given."""
    wide = in_one_width(f"{name}-wide", lambda: draw(WIDE_PIXELS))
    narrow = in_one_width(f"{name}-narrow", lambda: draw(NARROW_PIXELS))
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(wide, narrow)


def in_one_width(name: str, draw: Callable[[], Figure]) -> Markup:
    """The picture alone, for where it is as wide on every screen; `name` begins its ids."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # The browser draws the text, so what matplotlib's own font lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        return Markup(svg_of(draw(), name))  # matplotlib escapes the text that it is given


def svg_of(figure: Figure, prefix: str) -> str:
    """The figure as an `<svg>` element for an HTML page: no namespaces, own style or metadata; ids carry the prefix."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\s+(xmlns(:\w+)?|version)="[^"]*"', "", svg, count=3)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'xlink:href="#', f'href="#{prefix}-', svg)
    svg = svg.replace("'DejaVu Sans'", "var(--sans)").replace("<svg ", '<svg aria-hidden="true" ', 1)
    return re.sub(r"#0000a\d", lambda match: f"var({CSS_VARIABLES[match[0]]})", svg)


def new_figure(pixels: int, height: int) -> Figure:
    """A figure in CSS pixels: 72 points of SVG an inch, one point a pixel."""
    return Figure(figsize=(pixels / 72, height / 72), dpi=72)


def text_pixels(text: str) -> float:
    """About how wide the text will be."""
    font = FontProperties(family=STYLE["font.family"], size=FONT_PIXELS)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]


def say(axes: Axes, text: str) -> None:
    """Words in the place of a curve."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)
    axes.set_yticks([])


def fitted(text: str, pixels: float) -> str:
    """The text, cut where it would be wider."""
    if text_pixels(text) <= pixels:
        return text
    while text and text_pixels(f"{text}…") > pixels:
        text = text[:-1]
    return f"{text}…"


def spread_apart(values: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """The values moved so that no two are nearer than `distance`: in their order, and within the bounds if they fit."""
    order = sorted(range(len(values)), key=lambda number: -values[number])
    placed = [0.0] * len(values)
    above = math.inf
    for number in order:
        placed[number] = min(values[number], above - distance, high)
        above = placed[number]
    below = low
    for number in reversed(order):
        placed[number] = max(placed[number], below)
        below = placed[number] + distance
    return placed
