"""The picture across phases: benchmarks above their floors, bits per byte by component, and how far each phase is from its parent."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phasewise.tasks.report.charts import (
    BASELINE,
    CARD,
    INK,
    LINE,
    LOSS,
    MUTED,
    RATE,
    WIDE_PIXELS,
    fitted,
    in_both_widths,
    new_figure,
    spread_apart,
    text_pixels,
)
from phasewise.tasks.report.contents import PhaseReport, Report
from phasewise.tasks.report.sections import Gap, benchmark_gaps, component_gaps
from phasewise.trainer.base.wording import decimal, signed

LEFT_PIXELS, RIGHT_PIXELS, NARROW_RIGHT_PIXELS = 54, 204, 12
PANEL_PIXELS, TITLE_PIXELS = 150, 34
MIN_TALL_PIXELS, MAX_TALL_PIXELS = 220, 480
NAMES_PIXELS, SLANTED_PIXELS = 30, 96
LINE_PIXELS = 14
FLOOR = "dashed: the floor"
MAX_ABOVE = 6
"""Names within a narrow picture; the cards of the benchmarks have them all."""
COLOURS = (LOSS, RATE, BASELINE, INK)
STYLES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))


class Panel(NamedTuple):
    """One axes of the picture: its title, its height, and what draws it."""

    title: str
    pixels: int
    draw: Callable[[Axes, Report, bool], None]


class Curve(NamedTuple):
    """Values by phase, of which each is joined to its parent's; `errors` are standard errors."""

    name: str
    values: Mapping[str, float]
    errors: Mapping[str, float]
    joined: frozenset[str]


def across_picture(report: Report) -> Markup | None:
    """What was measured over all phases; None where fewer than two were."""
    panels = panels_of(report)
    return in_both_widths("across", lambda pixels: across_figure(report, panels, pixels)) if panels else None


def panels_of(report: Report) -> list[Panel]:
    """Those that have something to show."""
    if sum(bool(phase.bits_per_byte or phase.benchmarks) for phase in report.phases) < 2:
        return []
    averaged = [phase for phase in report.phases if _is_number(phase.ema_macro_bits_per_byte) and _is_number(phase.macro_bits_per_byte)]
    curves = component_curves(report)
    tall = max(MIN_TALL_PIXELS, min(MAX_TALL_PIXELS, LINE_PIXELS * (len(curves) + 3)))
    scores = benchmark_curves(report)
    room = max(PANEL_PIXELS, LINE_PIXELS * (len(scores) + 3))
    panels = (
        (scores, Panel("benchmarks: score above the floor ± standard error", room, draw_benchmarks)),
        (curves, Panel("held-out bits per byte by component (lower is better)", tall, draw_components)),
        (
            component_gaps(report),
            Panel("bits per byte against the parent: components, mean", PANEL_PIXELS, draw_component_gaps),
        ),
        (benchmark_gaps(report), Panel("benchmarks against the parent: each, mean", PANEL_PIXELS, draw_benchmark_gaps)),
        (averaged, Panel("moving average against trained weights, bits per byte", PANEL_PIXELS, draw_average_gap)),
    )
    return [panel for shown, panel in panels if shown]


def across_figure(report: Report, panels: Sequence[Panel], pixels: int) -> Figure:
    """One panel under the other, a place a phase from left to right."""
    is_wide = pixels >= WIDE_PIXELS
    below = NAMES_PIXELS if is_wide else SLANTED_PIXELS
    height = sum(panel.pixels + TITLE_PIXELS for panel in panels) + below
    right = RIGHT_PIXELS if is_wide else NARROW_RIGHT_PIXELS
    figure = new_figure(pixels, height)
    top = height
    for panel in panels:
        top -= TITLE_PIXELS + panel.pixels
        box = (LEFT_PIXELS / pixels, top / height, 1 - (LEFT_PIXELS + right) / pixels, panel.pixels / height)
        axes = figure.add_axes(box)
        axes.set_title(fitted(panel.title, pixels - LEFT_PIXELS), loc="left", color=MUTED, pad=9)
        axes.set_xlim(-0.45, len(report.phases) - 0.55)
        axes.set_xticks(range(len(report.phases)), [""] * len(report.phases))
        axes.tick_params(length=0)
        axes.grid(axis="y")
        panel.draw(axes, report, is_wide)
    name_places(figure.axes[-1], report.phases, is_wide=is_wide)
    return figure


def name_places(axes: Axes, phases: Sequence[PhaseReport], *, is_wide: bool) -> None:
    """The names of the phases under the last panel, slanted where there is little room."""
    room = axes.get_window_extent().width / max(1, len(phases))
    is_flat = is_wide and all(text_pixels(phase.name) < room - 6 for phase in phases)
    axes.set_xticks(
        range(len(phases)),
        [phase.name for phase in phases],
        rotation=0 if is_flat else 40,
        ha="center" if is_flat else "right",
        rotation_mode="default" if is_flat else "anchor",
    )


def benchmark_curves(report: Report) -> list[Curve]:
    """Score above the floor; joined where the gate compared them."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    joined: dict[str, set[str]] = {}
    for phase in report.phases:
        for one in phase.measured:
            if one.higher_is_better and math.isfinite(one.value):
                found.setdefault(one.what, {})[phase.name] = (one.value - (one.floor or 0.0), one.stderr or 0.0)
                if one.difference is not None:
                    joined.setdefault(one.what, set()).add(phase.name)
    return [
        Curve(
            name,
            {phase: value for phase, (value, _) in values.items()},
            {phase: error for phase, (_, error) in values.items()},
            frozenset(joined.get(name, ())),
        )
        for name, values in found.items()
    ]


def component_curves(report: Report) -> list[Curve]:
    """Bits per byte of each component, those that ended highest first."""
    names = {name for phase in report.phases for name in phase.bits_per_byte}
    curves = [
        Curve(name, {p.name: p.bits_per_byte[name] for p in report.phases if _is_number(p.bits_per_byte.get(name))}, {}, frozenset())
        for name in names
    ]
    curves = [curve._replace(joined=frozenset(curve.values)) for curve in curves if curve.values]
    return sorted(curves, key=lambda curve: (-list(curve.values.values())[-1], curve.name))


def draw_benchmarks(axes: Axes, report: Report, is_wide: bool) -> None:
    """A line each, named at the right edge; the floor is zero."""
    axes.axhline(0, color=BASELINE, linewidth=1.3, linestyle=(0, (5, 3)))
    curves = benchmark_curves(report)
    ends: list[tuple[str, float, str]] = []
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        style = STYLES[number // len(COLOURS) % len(STYLES)]
        draw_curve(axes, report, curve, colour=colour, linestyle=style, linewidth=1.8, markersize=5)
        for at, value, error in _points(report, curve):
            axes.plot((at, at), (value - error, value + error), color=colour, linewidth=4, alpha=0.3, solid_capstyle="butt")
        ends.append((curve.name, _last(report, curve), colour))
    axes.margins(y=0.14)
    name_ends(axes, [*ends, (FLOOR, 0.0, BASELINE)], is_wide=is_wide)


def draw_components(axes: Axes, report: Report, is_wide: bool) -> None:
    """A thin line a component, the macro mean strong; names at the right edge where there is room for them."""
    curves = component_curves(report)
    for curve in curves:
        draw_curve(axes, report, curve, colour=MUTED, linestyle="-", linewidth=0.7, markersize=2.2)
    macro = {phase.name: phase.macro_bits_per_byte for phase in report.phases if _is_number(phase.macro_bits_per_byte)}
    strong = Curve("macro", {name: value for name, value in macro.items() if value is not None}, {}, frozenset(macro))
    draw_curve(axes, report, strong, colour=LOSS, linestyle="-", linewidth=2.4, markersize=6)
    axes.margins(y=0.06)
    ends = [(curve.name, _last(report, curve), MUTED) for curve in curves]
    room = int(axes.get_window_extent().height // LINE_PIXELS) - 1
    named = ends if len(ends) <= room else [*ends[: room // 2], *ends[-(room - room // 2) :]]
    name_ends(axes, [*named, ("macro", _last(report, strong), LOSS)] if macro else named, is_wide=is_wide)


def draw_curve(
    axes: Axes, report: Report, curve: Curve, *, colour: str, linestyle: object, linewidth: float, markersize: float
) -> None:  # fmt: skip
    """Each phase's value, joined to its parent's: a phase beside the line is not joined to its neighbour."""
    at = {phase.name: place for place, phase in enumerate(report.phases)}
    for phase in report.phases:
        if phase.parent is not None and phase.parent in curve.values and phase.name in curve.joined:
            pair = (phase.parent, phase.name)
            values = [curve.values[name] for name in pair]
            axes.plot([at[name] for name in pair], values, color=colour, linewidth=linewidth, linestyle=linestyle)  # pyright: ignore[reportArgumentType]  # matplotlib takes a pattern of dashes
    axes.plot([at[name] for name in curve.values], list(curve.values.values()), "o", color=colour, markersize=markersize)


def draw_component_gaps(axes: Axes, report: Report, is_wide: bool) -> None:
    """Below zero is better."""
    draw_gaps(axes, report, component_gaps(report), places=2, is_wide=is_wide)


def draw_benchmark_gaps(axes: Axes, report: Report, is_wide: bool) -> None:
    """Above zero is better."""
    draw_gaps(axes, report, benchmark_gaps(report), places=3 if is_wide else 2, is_wide=is_wide)


def draw_average_gap(axes: Axes, report: Report, is_wide: bool) -> None:
    """Below zero the average is better than the weights that were trained."""
    gaps = [
        Gap(phase.name, (("macro", phase.ema_macro_bits_per_byte - phase.macro_bits_per_byte),))
        for phase in report.phases
        if phase.ema_macro_bits_per_byte is not None
        and phase.macro_bits_per_byte is not None
        and math.isfinite(phase.ema_macro_bits_per_byte - phase.macro_bits_per_byte)
    ]
    draw_gaps(axes, report, gaps, places=3, is_wide=is_wide)


def draw_gaps(axes: Axes, report: Report, gaps: Sequence[Gap], *, places: int, is_wide: bool) -> None:
    """A dot each, and a bar at the mean with its value beside it; above it where there is little room."""
    at = {phase.name: place for place, phase in enumerate(report.phases)}
    axes.axhline(0, color=LINE, linewidth=1.6)
    for gap in gaps:
        place = at[gap.phase]
        if len(gap.changes) > 1:
            axes.plot([place] * len(gap.changes), [change for _, change in gap.changes], "o", color=MUTED, markersize=3.5, alpha=0.55)
        axes.plot((place - 0.16, place + 0.16), (gap.mean, gap.mean), color=LOSS, linewidth=3, solid_capstyle="butt")
        axes.annotate(
            signed(gap.mean, places=places),
            (place + 0.18 if is_wide else place, gap.mean),
            (3, 0) if is_wide else (0, 4),
            textcoords="offset points",
            ha="left" if is_wide else "center",
            va="center" if is_wide else "bottom",
            color=INK,
            bbox={"facecolor": CARD, "linewidth": 0, "pad": 0.5},
        )
    axes.margins(y=0.18)


def name_ends(axes: Axes, ends: Sequence[tuple[str, float, str]], *, is_wide: bool) -> None:
    """Names at the right edge, moved apart where they would touch. A narrow picture names the strong lines alone, above all of them."""
    low, high = axes.get_ylim()
    height = axes.get_window_extent().height
    if not is_wide:
        _name_above(axes, [end for end in ends if end[2] != MUTED][:MAX_ABOVE])
        return
    placed = spread_apart([value for _, value, _ in ends], LINE_PIXELS * (high - low) / height, low, high)
    for end, at in zip(ends, placed, strict=True):
        axes.annotate(
            _end_in_words(end), (1, at), (8, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points", va="center", color=end[2]
        )
    axes.set_ylim(low, high)


def _name_above(axes: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """One name a line, in room that is made for them at the top."""
    low, high = axes.get_ylim()
    room = LINE_PIXELS * len(ends)
    axes.set_ylim(low, high + (high - low) * room / max(1, axes.get_window_extent().height - room))
    for number, end in enumerate(ends):
        place = (-2, -2 - LINE_PIXELS * number)
        axes.annotate(
            _end_in_words(end), (1, 1), place, xycoords="axes fraction", textcoords="offset points", ha="right", va="top", color=end[2]
        )


def _end_in_words(end: tuple[str, float, str]) -> str:
    """The name, cut where there is no room for it, and the value."""
    name, value, _ = end
    said = f" {decimal(value, places=2)}" if name != FLOOR else ""
    return f"{fitted(name, RIGHT_PIXELS - 12 - text_pixels(said))}{said}"


def _points(report: Report, curve: Curve) -> Iterator[tuple[int, float, float]]:
    for place, phase in enumerate(report.phases):
        if phase.name in curve.values:
            yield place, curve.values[phase.name], curve.errors.get(phase.name, 0.0)


def _last(report: Report, curve: Curve) -> float:
    return [value for _, value, _ in _points(report, curve)][-1]


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
