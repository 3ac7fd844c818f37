"""How pictures are drawn with matplotlib: inline SVG whose text and colours are the page's.

Colours are drawn as numbered stand-ins and become CSS variables afterwards, so that one picture serves light, dark and print.
A picture as wide as the page is drawn twice, wide and narrow, and the page shows the one that fits.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.typing import RcKeyType

from phasewise.tasks.report.contents import PhaseReport, Points, Report, RoutingReport
from phasewise.tasks.report.sections import LEVELS, busiest_in_words, heat_map
from phasewise.trainer.base.wording import count, decimal, rate

CARD_PIXELS, CARD_HEIGHT = 480, 330
MIN_ROW_PIXELS, MIN_MAP_PIXELS = 4, 120
CURVES = 3


@dataclass(frozen=True)
class Card:
    """A phase whose model has experts.

    Attributes:
        heat_map: None where the load was not recorded; then `busiest` is empty.
        heat_pixels: how high the map is.
    """

    phase: PhaseReport
    routing: RoutingReport
    picture: Markup
    heat_map: Markup | None
    heat_pixels: int
    busiest: str


def routing_cards(report: Report) -> list[Card]:
    """One a phase, in their order; none for dense models."""
    top = max([_highest(phase.routing) for phase in report.phases if phase.routing], default=0.0)
    return [_card(f"routing-{number}", phase, phase.routing, top) for number, phase in enumerate(report.phases) if phase.routing]


def levels() -> list[tuple[int, str]]:
    """The levels of the map, and what each means."""
    return [(level, words) for level, (_, words) in enumerate(LEVELS)]


def _highest(routing: RoutingReport) -> float:
    """What the axis of MaxVio must reach."""
    return max([routing.limit or 0.0, *finite_points(routing.max_violation)[1].tolist()])


def _card(name: str, phase: PhaseReport, routing: RoutingReport, top: float) -> Card:
    pixels = max(MIN_MAP_PIXELS, MIN_ROW_PIXELS * len(routing.loads))
    busiest = busiest_in_words(routing) if routing.loads else ""
    return Card(phase, routing, balance_picture(name, phase, routing, top=top), heat_map(routing), pixels, busiest)


def balance_picture(name: str, phase: PhaseReport, routing: RoutingReport, *, top: float) -> Markup:
    """MaxVio with its limit, dead experts and the router's entropy over the steps of a phase.

    Args:
        name: begins the ids of the picture.
        top: where the axis of MaxVio ends; the cards of a report share it.
    """
    return in_one_width(name, lambda: balance_figure(phase, routing, top=top))


def balance_figure(phase: PhaseReport, routing: RoutingReport, *, top: float) -> Figure:
    """Three axes over the same steps."""
    figure = new_figure(CARD_PIXELS, CARD_HEIGHT)
    violation, dead, entropy = figure.subplots(CURVES, 1, sharex=True, height_ratios=(5, 3, 3))
    figure.subplots_adjust(left=40 / CARD_PIXELS, right=1 - 8 / CARD_PIXELS, top=1 - 20 / CARD_HEIGHT, bottom=40 / CARD_HEIGHT, hspace=0.5)
    violation.set_xlim(phase.start_step, max(phase.stop_step, phase.start_step + 1))
    _draw(violation, routing.max_violation, "MaxVio")
    violation.set_ylim(0, 1.05 * top or 1.0)
    if routing.limit is not None:
        violation.axhline(routing.limit, color=BASELINE, linewidth=1.3, linestyle=(0, (5, 3)))
    _draw(dead, routing.dead_experts, "experts without a token")
    dead.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    _draw(entropy, routing.router_entropy, "entropy of the scores")
    entropy.set_ylim(0, 1.05)
    entropy.set_xlabel("step")
    entropy.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    entropy.xaxis.set_major_formatter(FuncFormatter(lambda step, _: count(round(step)) if step >= 1e5 else f"{step:,.0f}"))
    return figure


def _draw(axes: Axes, points: Points, name: str) -> None:
    """A curve that begins at zero, where nothing is missing; its name is above it."""
    steps, values = finite_points(points)
    if len(steps):
        axes.plot(*thinned(steps, values, CURVES * len(steps)), color=LOSS, linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_title(name, loc="left", color=MUTED, pad=5)
    axes.grid(axis="y")
    axes.tick_params(length=0)
    axes.yaxis.set_major_locator(MaxNLocator(3))


LEFT_PIXELS, RIGHT_PIXELS = 50, 8
MAX_POINTS = 1500
SMOOTHED_PART = 0.015

Curve = tuple[np.ndarray, np.ndarray]


def training_picture(report: Report) -> Markup | None:
    """Loss over all phases, learning rate beneath; None where neither was recorded."""
    if not any(phase.loss or phase.learning_rate for phase in report.phases):
        return None
    return in_both_widths("training", lambda pixels: training_figure(report, pixels))


def training_figure(report: Report, pixels: int) -> Figure:
    """Two axes over the same steps."""
    is_wide = pixels >= WIDE_PIXELS
    rows = label_rows(report.phases, pixels - LEFT_PIXELS - RIGHT_PIXELS)
    head = 20 + 17 * (max(rows, default=0) + 1)
    height = head + (420 if is_wide else 340)
    figure = new_figure(pixels, height)
    loss, learning_rate = figure.subplots(2, 1, sharex=True, height_ratios=(5, 2))
    figure.subplots_adjust(
        left=LEFT_PIXELS / pixels, right=1 - RIGHT_PIXELS / pixels, top=1 - head / height, bottom=44 / height, hspace=0.16
    )
    start, stop = step_range(report.phases)
    loss.set_xlim(start, stop)
    for axes in (loss, learning_rate):
        shade_phases(axes, report.phases)
        axes.grid(axis="y")
        axes.tick_params(length=0)
    name_phases(loss, report.phases, rows)
    draw_loss(loss, report.phases)
    draw_learning_rate(learning_rate, report.phases, is_wide=is_wide)
    learning_rate.set_xlabel("step")
    learning_rate.xaxis.set_major_locator(MaxNLocator(8 if is_wide else 4, integer=True))
    learning_rate.xaxis.set_major_formatter(FuncFormatter(lambda step, _: count(round(step)) if step >= 1e5 else f"{step:,.0f}"))
    return figure


def step_range(phases: Sequence[PhaseReport]) -> tuple[int, int]:
    """First and last step of the recipe."""
    start = min(phase.start_step for phase in phases)
    return start, max(start + 1, *(phase.stop_step for phase in phases))


def label_rows(phases: Sequence[PhaseReport], pixels: int) -> list[int]:
    """The row above the axes in which each phase's name fits without touching another; row 0 is the lowest.

    A name begins at its phase's start, or ends at the right edge where it would stick out.
    """
    start, stop = step_range(phases) if phases else (0, 1)
    taken: list[list[tuple[float, float]]] = []
    rows: list[int] = []
    for phase in phases:
        width = text_pixels(label_of(phase)) + 8
        left = min((phase.start_step - start) / (stop - start) * pixels, pixels - width)
        row = next((i for i, spans in enumerate(taken) if all(left >= b or left + width <= a for a, b in spans)), len(taken))
        if row == len(taken):
            taken.append([])
        taken[row].append((left, left + width))
        rows.append(row)
    return rows


def label_of(phase: PhaseReport) -> str:
    """The phase's name, and that it did not train."""
    return phase.name if phase.state == "done" else f"{phase.name} ({phase.state})"


def shade_phases(axes: Axes, phases: Sequence[PhaseReport]) -> None:
    """Every second phase gets a band."""
    for i, phase in enumerate(phases):
        if i % 2:
            axes.axvspan(phase.start_step, phase.stop_step, color=BAND, linewidth=0, zorder=0)
        axes.axvline(phase.start_step, color=LINE, linewidth=1, zorder=0.5)


def name_phases(axes: Axes, phases: Sequence[PhaseReport], rows: Sequence[int]) -> None:
    """The names above the axes, each on a leader from its phase's start."""
    start, stop = step_range(phases)
    pixels = axes.get_window_extent().width
    for phase, row in zip(phases, rows, strict=True):
        offset = 7 + 17 * row
        left = (phase.start_step - start) / (stop - start) * pixels
        is_at_edge = left + text_pixels(label_of(phase)) + 8 > pixels
        axes.annotate(
            "",
            (phase.start_step, 1),
            (0, offset + 11),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": LINE, "linewidth": 1, "shrinkA": 0, "shrinkB": 0},
        )
        axes.annotate(
            label_of(phase),
            (stop if is_at_edge else phase.start_step, 1),
            (0 if is_at_edge else 4, offset),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="right" if is_at_edge else "left",
            va="bottom",
            color=INK if phase.state == "done" else MUTED,
        )


def draw_loss(axes: Axes, phases: Sequence[PhaseReport]) -> None:
    """Raw loss faint, smoothed loss strong; smoothing does not cross a phase boundary."""
    curves = [finite_points(phase.loss) for phase in phases]
    total = sum(len(steps) for steps, _ in curves)
    shown: list[np.ndarray] = []
    for steps, values in curves:
        if not len(steps):
            continue
        smooth = smoothed(values, max(3, round(SMOOTHED_PART * total)))
        axes.plot(*thinned(steps, values, total), color=LOSS, alpha=0.28, linewidth=0.8)
        axes.plot(*thinned(steps, smooth, total), color=LOSS, linewidth=1.9, solid_joinstyle="round")
        shown.append(values)
    if shown:
        frame_loss(axes, np.concatenate(shown))
    breaks = [step for phase in phases for step in islice((step for step, value in phase.loss if not math.isfinite(value)), 1)]
    for step in breaks:
        mark_break(axes, step)
    if not shown and not breaks:
        say(axes, "no loss recorded")


def mark_break(axes: Axes, step: int) -> None:
    """A line where the loss stops being a number, named on the side with more room."""
    axes.axvline(step, color=RATE, linewidth=1.5, linestyle=(0, (3, 2)))
    is_left = step < sum(axes.get_xlim()) / 2
    axes.annotate(
        f"not finite from step {step:,}",
        (step, 0.5),
        (5 if is_left else -5, 0),
        xycoords=axes.get_xaxis_transform(),
        textcoords="offset points",
        ha="left" if is_left else "right",
        color=RATE,
    )


def finite_points(points: Iterable[tuple[int, float]]) -> Curve:
    """Steps and values, without what can't be drawn."""
    kept = [(step, value) for step, value in points if math.isfinite(value)]
    return np.array([step for step, _ in kept], dtype=float), np.array([value for _, value in kept], dtype=float)


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean over `window` points; towards the ends over those of them that exist."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    i = np.arange(len(values))
    first = np.maximum(i - window // 2, 0)
    end = np.minimum(i + window // 2 + 1, len(values))
    return (sums[end] - sums[first]) / (end - first)


def thinned(steps: np.ndarray, values: np.ndarray, total: int) -> Curve:
    """At most about `MAX_POINTS` of `total` points: the least and the greatest of every bin, in order."""
    size = 2 * math.ceil(total / MAX_POINTS)
    if size <= 2:
        return steps, values
    chosen = {0, len(values) - 1}
    for first in range(0, len(values), size):
        piece = values[first : first + size]
        chosen |= {first + int(piece.argmin()), first + int(piece.argmax())}
    kept = sorted(chosen)
    return steps[kept], values[kept]


def frame_loss(axes: Axes, values: np.ndarray) -> None:
    """Name the axes and frame what most steps show; the first steep steps leave the frame where they would squeeze the rest."""
    low = float(values.min())
    high = float(values.max())
    usual = float(np.quantile(values, 0.94))
    is_cut = high - low > 1.6 * (usual - low) > 0
    top = usual if is_cut else high
    margin = 0.06 * (top - low) or 0.5
    axes.set_ylim(low - margin, top + (4 if is_cut else 3) * margin)
    name = f"training loss\nabove the frame at first: {decimal(high, places=2)}" if is_cut else "training loss"
    axes.annotate(
        name,
        (1, 1),
        (-6, -7),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
        va="top",
        color=MUTED,
        linespacing=1.4,
    )


def draw_learning_rate(axes: Axes, phases: Sequence[PhaseReport], *, is_wide: bool) -> None:
    """The learning rate, from zero."""
    axes.set_title("learning rate", loc="left", color=MUTED, y=0.8, x=0.012)
    curves = [finite_points(phase.learning_rate) for phase in phases]
    total = sum(len(steps) for steps, _ in curves)
    if not total:
        say(axes, "no learning rate recorded")
        return
    for steps, values in curves:
        if len(steps):
            axes.plot(*thinned(steps, values, total), color=RATE, linewidth=1.2 if is_wide else 0.7)
    axes.set_ylim(0, (max(values.max() for _, values in curves if len(values)) or 1.0) * 1.45)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rate(value)))


LINE_HEIGHT = 15


def macro_picture(report: Report) -> Markup | None:
    """Macro bits per byte after each phase, against the baselines; None where no phase was evaluated."""
    if not any(finite(phase.macro_bits_per_byte) for phase in report.phases):
        return None
    return in_both_widths("macro", lambda pixels: macro_figure(report, pixels))


def finite(value: float | None) -> tuple[float, ...]:
    """The value where there is one to draw."""
    return (value,) if value is not None and math.isfinite(value) else ()


def macro_figure(report: Report, pixels: int) -> Figure:
    """One place a phase from left to right; the names of the baselines are at the right edge."""
    is_wide = pixels >= WIDE_PIXELS
    height = 262 if is_wide else 300
    figure = new_figure(pixels, height)
    axes = figure.subplots()
    figure.subplots_adjust(
        left=48 / pixels,
        right=1 - (150 if is_wide else 14) / pixels,
        top=1 - 14 / height,
        bottom=(36 if is_wide else 92) / height,
    )
    names = [phase.name for phase in report.phases]
    axes.set_xlim(-0.45, len(names) - 0.55)
    axes.set_xticks(
        range(len(names)),
        names,
        rotation=0 if is_wide else 40,
        ha="center" if is_wide else "right",
        rotation_mode="anchor" if not is_wide else "default",
    )
    axes.tick_params(length=0)
    axes.grid(axis="y")
    draw_macro(axes, report)
    draw_baselines(axes, report, is_wide=is_wide)
    return figure


def draw_macro(axes: Axes, report: Report) -> None:
    """Trained weights filled, averaged weights hollow; every value is written out."""
    raw = [(i, value) for i, phase in enumerate(report.phases) for value in finite(phase.macro_bits_per_byte)]
    averaged = [(i, value) for i, phase in enumerate(report.phases) for value in finite(phase.ema_macro_bits_per_byte)]
    if averaged:
        axes.plot(
            *zip(*averaged, strict=True),
            color=LOSS,
            linewidth=1,
            linestyle=(0, (2, 2)),
            marker="o",
            markersize=6,
            markerfacecolor=CARD,
        )
    axes.plot(*zip(*raw, strict=True), color=LOSS, linewidth=2, marker="o", markersize=6)
    for i, value in raw:
        axes.annotate(
            decimal(value, places=2),
            (i, value),
            (0, 9),
            textcoords="offset points",
            ha="center",
            color=INK,
            bbox={"facecolor": CARD, "linewidth": 0, "pad": 0.5},
        )
    values = [value for _, value in raw + averaged] + [value for value in report.baselines.values() if math.isfinite(value)]
    margin = 0.12 * (max(values) - min(values)) or 0.1
    axes.set_ylim(min(values) - margin, max(values) + 2.2 * margin)


def draw_baselines(axes: Axes, report: Report, *, is_wide: bool) -> None:
    """A dashed line each, named; names that would touch are moved apart, or are inside where the falling curve leaves room."""
    low, high = axes.get_ylim()
    line_height = LINE_HEIGHT * (high - low) / axes.get_window_extent().height
    below = math.inf
    measured = [value for phase in report.phases for value in finite(phase.macro_bits_per_byte)]
    middle = (min(measured) + max(measured)) / 2
    for name, value in sorted(report.baselines.items(), key=lambda item: -item[1]):
        if not math.isfinite(value):
            continue
        axes.axhline(value, color=BASELINE, linewidth=1.3, linestyle=(0, (5, 3)))
        text = f"{name} {decimal(value, places=2)}"
        if is_wide:
            below = min(value, below - line_height)
            axes.annotate(
                text,
                (1, below),
                (6, 0),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                va="center",
                color=BASELINE,
            )
        else:
            is_above = value > middle
            axes.annotate(
                text,
                (1 if is_above else 0, value),
                (-5 if is_above else 5, 3),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                ha="right" if is_above else "left",
                va="bottom",
                color=BASELINE,
            )


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
