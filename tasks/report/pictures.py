"""The pictures of a run's report, each as wide as the page: drawn wide and narrow, of which the page shows the one that fits."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from phasewise.tasks.report.charts import Axes, Points, Range, cut, padded, svg, thinned
from phasewise.tasks.report.contents import PhaseReport, Report, RoutingReport
from phasewise.tasks.report.sections import Gap, benchmark_gaps, component_gaps
from phasewise.trainer.base.wording import decimal, rate, signed

WIDE_PIXELS, NARROW_PIXELS = 1000, 400
LETTER_PIXELS, LINE_PIXELS = 6.8, 14
LEFT_PIXELS, RIGHT_PIXELS, NAMES_PIXELS = 54, 20, 204
MAX_STRETCHES = 750
LEVELS = (
    (0.0, "no token"),
    (0.25, "below ¼ of the mean"),
    (0.5, "below ½"),
    (0.8, "below 0.8"),
    (1.25, "about the mean"),
    (2.0, "above 1.25"),
    (4.0, "above 2"),
    (float("inf"), "4 times the mean or more"),
)
"""A load, as a share of the mean, is of the first level whose bound is above it; no load is of the first."""


def _in_both_widths(draw: Callable[[int], Markup]) -> Markup:
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(draw(WIDE_PIXELS), draw(NARROW_PIXELS))


def training_picture(report: Report) -> Markup | None:
    """Loss over all phases, learning rate beneath on the same steps; None if neither was recorded."""
    if not any(phase.loss or phase.learning_rate for phase in report.phases):
        return None
    return _in_both_widths(lambda pixels: _training(report.phases, pixels))


def _training(phases: Sequence[PhaseReport], pixels: int) -> Markup:
    is_wide = pixels >= WIDE_PIXELS
    width = pixels - LEFT_PIXELS - RIGHT_PIXELS
    steps = (min(phase.start_step for phase in phases), max(phase.stop_step for phase in phases))
    steps = (steps[0], max(steps[0] + 1, steps[1]))
    rows = label_rows(phases, width)
    head, tall, low = 20 + 17 * (max(rows) + 1), *((262, 100) if is_wide else (210, 80))
    losses = [_arrays(phase.loss) for phase in phases]
    values = np.concatenate([part for _, part in losses])
    values = values[np.isfinite(values)]
    frame, is_cut = _loss_frame(values)
    loss = Axes((LEFT_PIXELS, head, width, tall), steps, frame)
    rates = [_arrays(phase.learning_rate) for phase in phases]
    top = max((float(np.nanmax(part)) for _, part in rates if len(part)), default=1.0) or 1.0
    learning_rate = Axes((LEFT_PIXELS, head + tall + 28, width, low), steps, (0, 1.45 * top))
    for axes in (loss, learning_rate):
        for place, phase in enumerate(phases):
            x, stop = axes.x(phase.start_step), axes.x(phase.stop_step)
            if place % 2:
                band = Markup('<rect class="band" x="{}" y="{}" width="{}" height="{}"/>')
                axes.parts.append(band.format(x, axes.top, round(stop - x, 1), axes.height))
            above = 7 + 17 * rows[place] + 11 if axes is loss else 0
            axes.parts.append(Markup('<path class="grid" d="M{x} {a}V{b}"/>').format(x=x, a=axes.top - above, b=axes.top + axes.height))
    loss.grid(6)
    learning_rate.grid(3, rate)
    learning_rate.steps(8 if is_wide else 4)
    learning_rate.text((LEFT_PIXELS + width / 2, head + tall + low + 64), "step", anchor="middle")
    learning_rate.text(
        (LEFT_PIXELS + 10, learning_rate.top + 14), "learning rate" if any(len(part) for _, part in rates) else "no learning rate recorded"
    )
    for place, phase in enumerate(phases):
        x, name = loss.x(phase.start_step), _label(phase)
        is_at_edge = x + _text_pixels(name) + 8 > pixels - RIGHT_PIXELS
        at = (pixels - RIGHT_PIXELS if is_at_edge else x + 4, head - 9 - 17 * rows[place])
        loss.text(at, name, "strong" if phase.state == "done" else "", "end" if is_at_edge else "start")
    for at, curves in ((loss, losses), (learning_rate, rates)):
        total = sum(len(part) for _, part in curves)
        for of_phase, part in curves:
            most = max(2, math.ceil(MAX_STRETCHES * len(part) / max(total, 1)))
            at.line(thinned(of_phase, part, most=most), "raw-loss" if at is loss else "rate")
            if at is loss and len(part):
                finite = np.isfinite(part)
                smooth = smoothed(part[finite], max(3, round(0.015 * total)))
                at.line(thinned(of_phase[finite], smooth, most=most), "loss")
    breaks = [int(of_phase[~np.isfinite(part)][0]) for of_phase, part in losses if len(part) and not np.isfinite(part).all()]
    for step in breaks:
        x, is_left = loss.x(step), step < sum(steps) / 2
        loss.line([[(step, frame[0]), (step, frame[1])]], "break")
        loss.text((x + (5 if is_left else -5), head + tall / 2), f"not finite from step {step:,}", "warning", "start" if is_left else "end")
    if len(values):
        loss.text((pixels - RIGHT_PIXELS - 6, head + 14), "training loss", anchor="end")
        if is_cut:
            loss.text(
                (pixels - RIGHT_PIXELS - 6, head + 30), f"above the frame at first: {decimal(float(values.max()), places=2)}", anchor="end"
            )
    elif not breaks:
        loss.text((LEFT_PIXELS + width / 2, head + tall / 2), "no loss recorded", anchor="middle")
    return svg(pixels, head + tall + low + 72, [loss, learning_rate])


def _arrays(points: Sequence[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([step for step, _ in points], dtype=float), np.array([value for _, value in points], dtype=float)


def _loss_frame(values: np.ndarray) -> tuple[Range, bool]:
    """The range that shows most steps, and whether the first steep steps are beyond it, where they would squeeze the rest."""
    if not len(values):
        return (0.0, 1.0), False
    low, high, usual = float(values.min()), float(values.max()), float(np.quantile(values, 0.94))
    is_cut = high - low > 1.6 * (usual - low) > 0
    top = usual if is_cut else high
    margin = 0.06 * (top - low) or 0.5
    return (low - margin, top + (4 if is_cut else 3) * margin), is_cut


def label_rows(phases: Sequence[PhaseReport], pixels: float) -> list[int]:
    """The row above the axes in which each phase's name fits without touching another; row 0 is the lowest.

    A name begins at its phase's start, or ends at the right edge if it would stick out.
    """
    start = min(phase.start_step for phase in phases)
    stop = max(start + 1, *(phase.stop_step for phase in phases))
    taken: list[list[Range]] = []
    rows: list[int] = []
    for phase in phases:
        width = _text_pixels(_label(phase)) + 8
        left = min((phase.start_step - start) / (stop - start) * pixels, pixels - width)
        row = next((i for i, spans in enumerate(taken) if all(left >= b or left + width <= a for a, b in spans)), len(taken))
        if row == len(taken):
            taken.append([])
        taken[row].append((left, left + width))
        rows.append(row)
    return rows


def _label(phase: PhaseReport) -> str:
    return phase.name if phase.state == "done" else f"{phase.name} ({phase.state})"


def _text_pixels(text: str) -> float:
    return LETTER_PIXELS * len(text)


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean over `window` points; towards the ends over those of them that exist."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    i = np.arange(len(values))
    first, end = np.maximum(i - window // 2, 0), np.minimum(i + window // 2 + 1, len(values))
    return (sums[end] - sums[first]) / (end - first)


def macro_picture(report: Report) -> Markup | None:
    """Macro bits per byte after each phase, between the simple models that it must beat; None if no phase was evaluated."""
    if not any(_is_number(phase.macro_bits_per_byte) for phase in report.phases):
        return None
    return _in_both_widths(lambda pixels: _macro(report, pixels))


def _macro(report: Report, pixels: int) -> Markup:
    is_wide = pixels >= WIDE_PIXELS
    raw = [(place, phase.macro_bits_per_byte or 0.0) for place, phase in enumerate(report.phases) if _is_number(phase.macro_bits_per_byte)]
    averaged = [
        (place, phase.ema_macro_bits_per_byte or 0.0)
        for place, phase in enumerate(report.phases)
        if _is_number(phase.ema_macro_bits_per_byte)
    ]
    baselines = [(name, value) for name, value in report.baselines.items() if math.isfinite(value)]
    values = [value for _, value in raw + averaged + baselines]
    margin = 0.12 * (max(values) - min(values)) or 0.1
    axes = _phase_axes(report, pixels, top=14, height=212, up=(min(values) - margin, max(values) + 2.2 * margin))
    axes.grid(6)
    _name_phases(axes, report, is_wide=is_wide)
    for _, value in baselines:
        axes.level(value, "floor")
    axes.line([averaged], "average")
    axes.dots(averaged, "average")
    axes.line([raw], "loss")
    axes.dots(raw, "dot")
    for place, value in raw:
        axes.text((axes.x(place), axes.y(value) - 9), decimal(value, places=2), "value", "middle")
    ends = [(f"{name} {decimal(value, places=2)}", value, "floor-name") for name, value in baselines]
    _name_ends(axes, ends, is_wide=is_wide)
    return svg(pixels, 226 + (36 if is_wide else 86), [axes])


def _phase_axes(report: Report, pixels: int, *, top: float, height: float, up: Range) -> Axes:
    """Axes with a place a phase from left to right, and room for names at the right of a wide picture."""
    right = NAMES_PIXELS if pixels >= WIDE_PIXELS else 12
    return Axes((LEFT_PIXELS, top, pixels - LEFT_PIXELS - right, height), (-0.45, len(report.phases) - 0.55), up)


def _name_phases(axes: Axes, report: Report, *, is_wide: bool) -> None:
    """The names of the phases below the axes, slanted if there is little room."""
    room = axes.width / max(1, len(report.phases))
    is_flat = is_wide and all(_text_pixels(phase.name) < room - 6 for phase in report.phases)
    for place, phase in enumerate(report.phases):
        at = (axes.x(place), axes.top + axes.height + 18)
        axes.text(at, phase.name, "", "middle" if is_flat else "end", "" if is_flat else "-40")


def _name_ends(axes: Axes, ends: Sequence[tuple[str, float, str]], *, is_wide: bool) -> None:
    """Names (text, value, style) at the right edge, moved apart if they would touch. A narrow picture has the strong ones inside, above."""
    right = axes.left + axes.width
    if is_wide:
        apart = spread_apart([value for _, value, _ in ends], LINE_PIXELS * (axes.up[1] - axes.up[0]) / axes.height, *axes.up)
        for (text, _, css), value in zip(ends, apart, strict=True):
            axes.text((right + 8, axes.y(value) + 4), cut(text, int((NAMES_PIXELS - 12) / LETTER_PIXELS)), css)
        return
    for place, (text, _, css) in enumerate([end for end in ends if end[2]][:6]):
        axes.text((right - 2, axes.top + 10 + LINE_PIXELS * place), text, f"{css} value", "end")


def spread_apart(values: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """The values moved so that no two are nearer than `distance`: in their order, and within the bounds if they fit."""
    order = sorted(range(len(values)), key=lambda place: -values[place])
    placed = [0.0] * len(values)
    above = math.inf
    for place in order:
        placed[place] = above = min(values[place], above - distance, high)
    below = low
    for place in reversed(order):
        placed[place] = max(placed[place], below)
        below = placed[place] + distance
    return placed


class PhaseCurve(NamedTuple):
    """Values by phase, each joined to its parent's if it is in `joined`; `errors` are standard errors."""

    name: str
    values: Mapping[str, float]
    errors: Mapping[str, float]
    joined: frozenset[str]


class Panel(NamedTuple):
    """One plot of the picture across phases."""

    title: str
    height: float
    draw: "Callable[[Panel, Report, int, float], Axes]"
    curves: Sequence[PhaseCurve] = ()
    gaps: Sequence[Gap] = ()
    places: int = 3


def across_picture(report: Report) -> Markup | None:
    """What was measured over all phases: benchmarks, components, and gaps to the parents; None if fewer than two were measured."""
    panels = panels_of(report)
    return _in_both_widths(lambda pixels: _across(report, panels, pixels)) if panels else None


def panels_of(report: Report) -> list[Panel]:
    """The panels that have something to show."""
    if sum(bool(phase.bits_per_byte or phase.benchmarks) for phase in report.phases) < 2:
        return []
    # Score above the floor of each benchmark; joined if the gate compared them
    found: dict[str, PhaseCurve] = {}
    for phase in report.phases:
        for one in phase.measured:
            if one.higher_is_better and math.isfinite(one.value):
                before = found.get(one.what, PhaseCurve(one.what, {}, {}, frozenset()))
                found[one.what] = PhaseCurve(
                    one.what,
                    {**before.values, phase.name: one.value - (one.floor or 0.0)},
                    {**before.errors, phase.name: one.stderr or 0.0},
                    before.joined | ({phase.name} if one.difference is not None else set()),
                )
    scores, components = list(found.values()), _component_curves(report)
    averages = [
        Gap(phase.name, (("macro", phase.ema_macro_bits_per_byte - phase.macro_bits_per_byte),))
        for phase in report.phases
        if phase.ema_macro_bits_per_byte is not None
        and phase.macro_bits_per_byte is not None
        and math.isfinite(phase.ema_macro_bits_per_byte - phase.macro_bits_per_byte)
    ]
    tall = max(220, min(480, LINE_PIXELS * (len(components) + 3)))
    panels = (
        Panel("benchmarks: score above the floor ± standard error", max(150, LINE_PIXELS * (len(scores) + 3)), _benchmarks, scores),
        Panel("held-out bits per byte by component (lower is better)", tall, _components, components),
        Panel("bits per byte against the parent: components, mean", 150, _gaps, gaps=component_gaps(report), places=2),
        Panel("benchmarks against the parent: each, mean", 150, _gaps, gaps=benchmark_gaps(report)),
        Panel("moving average against trained weights, bits per byte", 150, _gaps, gaps=averages),
    )
    return [panel for panel in panels if panel.curves or panel.gaps]


def _across(report: Report, panels: Sequence[Panel], pixels: int) -> Markup:
    top, drawn = 0.0, list[Axes]()
    for panel in panels:
        axes = panel.draw(panel, report, pixels, top + 34)
        axes.text((LEFT_PIXELS, top + 20), cut(panel.title, int((pixels - LEFT_PIXELS) / LETTER_PIXELS)))
        drawn.append(axes)
        top += panel.height + 34
    _name_phases(drawn[-1], report, is_wide=pixels >= WIDE_PIXELS)
    return svg(pixels, top + (30 if pixels >= WIDE_PIXELS else 96), drawn)


def _component_curves(report: Report) -> list[PhaseCurve]:
    """Bits per byte of each component, those that ended highest first."""
    curves: list[PhaseCurve] = []
    for name in {name for phase in report.phases for name in phase.bits_per_byte}:
        values = {phase.name: phase.bits_per_byte[name] for phase in report.phases if _is_number(phase.bits_per_byte.get(name))}
        if values:
            curves.append(PhaseCurve(name, values, {}, frozenset(values)))
    return sorted(curves, key=lambda one: (-list(one.values.values())[-1], one.name))


def _benchmarks(panel: Panel, report: Report, pixels: int, top: float) -> Axes:
    """A line each, named at the right edge; the floor is zero."""
    ends = [value + sign * curve.errors[name] for curve in panel.curves for name, value in curve.values.items() for sign in (-1, 1)]
    axes = _phase_axes(report, pixels, top=top, height=panel.height, up=padded([0.0, *ends], 0.14))
    axes.grid(4)
    axes.level(0, "floor")
    named = [("dashed: the floor", 0.0, "floor-name")]
    for place, curve in enumerate(panel.curves):
        css = f"score-{place % 4} dashes-{place // 4 % 4}"
        points = _draw_curve(axes, report, curve, css, 2.5)
        for (at, value), name in zip(points, curve.values, strict=True):
            axes.line([[(at, value - curve.errors[name]), (at, value + curve.errors[name])]], f"error score-{place % 4}")
        named.append((f"{cut(curve.name, 22)} {decimal(points[-1][1], places=2)}", points[-1][1], f"name-{place % 4}"))
    _name_ends(axes, named, is_wide=pixels >= WIDE_PIXELS)
    return axes


def _components(panel: Panel, report: Report, pixels: int, top: float) -> Axes:
    """A thin line a component, the macro mean strong; names at the right edge if there is room for them."""
    macro = {phase.name: phase.macro_bits_per_byte or 0.0 for phase in report.phases if _is_number(phase.macro_bits_per_byte)}
    strong = [PhaseCurve("macro", macro, {}, frozenset(macro))] if macro else []
    up = padded([value for curve in [*panel.curves, *strong] for value in curve.values.values()], 0.06)
    axes = _phase_axes(report, pixels, top=top, height=panel.height, up=up)
    axes.grid(8)
    ends: list[tuple[str, float, str]] = []
    for curve in [*panel.curves, *strong]:
        css, radius = ("loss", 3.0) if curve.name == "macro" else ("thin", 1.1)
        points = _draw_curve(axes, report, curve, css, radius)
        ends.append((f"{cut(curve.name, 22)} {decimal(points[-1][1], places=2)}", points[-1][1], "name-0" if css == "loss" else ""))
    room = int(panel.height // LINE_PIXELS) - 1
    if len(ends) > room:
        ends = [*ends[: room // 2], *ends[-(room - room // 2) :]]
    _name_ends(axes, ends, is_wide=pixels >= WIDE_PIXELS)
    return axes


def _draw_curve(axes: Axes, report: Report, curve: PhaseCurve, css: str, radius: float) -> Points:
    """Join each value to that of the phase's parent: a branch is not joined to its neighbour."""
    at = {phase.name: place for place, phase in enumerate(report.phases)}
    for phase in report.phases:
        if (parent := phase.parent) in curve.values and parent and phase.name in curve.joined:
            axes.line([[(at[name], curve.values[name]) for name in (parent, phase.name)]], css)
    points = [(at[name], value) for name, value in curve.values.items()]
    axes.dots(points, f"dot-of {css}", radius)
    return points


def _gaps(panel: Panel, report: Report, pixels: int, top: float) -> Axes:
    """A dot each, and a bar at the mean with its value."""
    is_wide = pixels >= WIDE_PIXELS
    changes = [change for gap in panel.gaps for _, change in gap.changes]
    axes = _phase_axes(report, pixels, top=top, height=panel.height, up=padded([0.0, *changes], 0.18))
    axes.grid(4)
    axes.level(0, "axis")
    at = {phase.name: place for place, phase in enumerate(report.phases)}
    for gap in panel.gaps:
        place = at[gap.phase]
        if len(gap.changes) > 1:
            axes.dots([(place, change) for _, change in gap.changes], "faint", 1.8)
        axes.line([[(place - 0.16, gap.mean), (place + 0.16, gap.mean)]], "mean")
        mean = signed(gap.mean, places=panel.places if is_wide else 2)
        beside = (axes.x(place + 0.18) + 3, axes.y(gap.mean) + 4) if is_wide else (axes.x(place), axes.y(gap.mean) - 5)
        axes.text(beside, mean, "value", "start" if is_wide else "middle")
    return axes


def balance_picture(phase: PhaseReport, routing: RoutingReport, *, top: float) -> Markup:
    """MaxVio with its limit, experts without a token, and the router's entropy over the steps of a phase.

    Args:
        top: the end of the axis of MaxVio, which the cards of a report share.
    """
    steps = (phase.start_step, max(phase.stop_step, phase.start_step + 1))
    dead = max((value for _, value in routing.dead_experts if math.isfinite(value)), default=0.0)
    drawn: list[Axes] = []
    for name, points, height, high, y in (
        ("MaxVio", routing.max_violation, 110, 1.05 * top or 1.0, 20),
        ("experts without a token", routing.dead_experts, 60, 1.1 * dead or 1.0, 158),
        ("entropy of the scores", routing.router_entropy, 60, 1.05, 246),
    ):
        axes = Axes((40, y, 420, height), steps, (0.0, high))
        axes.text((40, y - 6), name)
        axes.grid(3 if height > 100 else 2)
        axes.line(thinned(*_arrays(points), most=MAX_STRETCHES // 3), "curve")
        drawn.append(axes)
    if routing.limit is not None:
        drawn[0].level(routing.limit, "floor")
    drawn[-1].steps(5)
    drawn[-1].text((256, 342), "step", anchor="middle")
    return svg(480, 348, drawn)


def heat_map(routing: RoutingReport) -> Markup | None:
    """A row a layer, a column an expert, as one picture that stretches; equal neighbours are one stroke. None if no load is known.

    A stroke's class names its level, and the page's style its colour.
    """
    if not routing.loads:
        return None
    strokes: dict[int, list[str]] = {}
    for layer, loads in enumerate(routing.loads):
        for level, cells in groupby(enumerate(loads), key=lambda cell: level_of(cell[1])):
            experts = [expert for expert, _ in cells]
            strokes.setdefault(level, []).append(f"M{experts[0]} {layer}.5h{len(experts)}")
    paths = "".join(f'<path class="level-{level}" d="{"".join(parts)}"/>' for level, parts in sorted(strokes.items()))
    box = f"0 0 {len(routing.loads[0])} {len(routing.loads)}"
    return Markup(f'<svg viewBox="{box}" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>')


def level_of(load: float) -> int:
    """The place in `LEVELS` of a load, as a share of the mean."""
    return next(level for level, (bound, _) in enumerate(LEVELS) if load < bound or load == bound == 0)


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
