"""Full-width pictures of a run's report, in a wide and a narrow version for the page to choose from."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeGuard

import numpy as np
import pandas as pd
from markupsafe import Markup

from phasewise.tasks.phase_state import State
from phasewise.tasks.report.charts import Axes, Range, cut, padded, svg, thinned
from phasewise.tasks.report.contents import PhaseReport, Report, RoutingReport
from phasewise.tasks.report.sections import Gap, gaps_of, parent_gaps
from phasewise.trainer.base.wording import decimal, rate, signed
from phasewise.validations.limits import MACRO

WIDE_PIXELS, NARROW_PIXELS = 1000, 400
LETTER_PIXELS, LINE_PIXELS = 6.8, 14
LEFT_PIXELS, RIGHT_PIXELS, NAMES_PIXELS = 54, 20, 204
MAX_STRETCHES = 750
LEVELS = (
    (0.0, "no token"), (0.25, "below ¼ of the mean"), (0.5, "below ½"), (0.8, "below 0.8"), (1.25, "about the mean"), (2.0, "above 1.25"),
    (4.0, "above 2"), (float("inf"), "4 times the mean or more"),
)  # fmt: skip
"""Upper bounds of an expert's load as a share of the mean, and names. Only a zero load has the first level."""


def in_both_widths(draw: Callable[[Report, int], Markup | None], report: Report) -> Markup | None:
    """Draw a picture wide and narrow, or return None for an empty picture."""
    wide, narrow = draw(report, WIDE_PIXELS), draw(report, NARROW_PIXELS)
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(wide, narrow) if wide else None


def training_picture(report: Report, pixels: int) -> Markup | None:
    """Draw loss and learning rate over all phases, or return None without records."""
    phases = report.phases
    losses, rates = ([_arrays(phase.loss) for phase in phases], [_arrays(phase.learning_rate) for phase in phases])
    if not any(len(part) for _, part in (*losses, *rates)):
        return None
    is_wide, width = pixels >= WIDE_PIXELS, pixels - LEFT_PIXELS - RIGHT_PIXELS
    first = min(phase.start_step for phase in phases)
    steps = (first, max(first + 1, *(phase.stop_step for phase in phases)))
    labels = [phase.name if phase.state == State.DONE else f"{phase.name} ({phase.state})" for phase in phases]
    rows = _label_rows(labels, [(phase.start_step - steps[0]) / (steps[1] - steps[0]) * width for phase in phases], width)
    head, tall, low = 20 + 17 * (max(rows) + 1), *((262, 100) if is_wide else (210, 80))
    values = np.concatenate([part for _, part in losses])
    values = values[np.isfinite(values)]
    frame, is_cut = (0.0, 1.0), False
    if len(values):  # cut off the first steep steps, which would flatten all others
        least, greatest, usual = float(values.min()), float(values.max()), float(np.quantile(values, 0.94))
        is_cut = greatest - least > 1.6 * (usual - least) > 0
        top = usual if is_cut else greatest
        margin = 0.06 * (top - least) or 0.5
        frame = (least - margin, top + (4 if is_cut else 3) * margin)
    loss = Axes((LEFT_PIXELS, head, width, tall), steps, frame)
    highest = max((float(np.nanmax(part)) for _, part in rates if len(part)), default=1.0) or 1.0
    learning_rate = Axes((LEFT_PIXELS, head + tall + 28, width, low), steps, (0, 1.45 * highest))
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
    name = "learning rate" if any(len(part) for _, part in rates) else "no learning rate recorded"
    learning_rate.text((LEFT_PIXELS + 10, learning_rate.top + 14), name)
    for place, (phase, name) in enumerate(zip(phases, labels, strict=True)):
        x = loss.x(phase.start_step)
        is_at_edge = x + LETTER_PIXELS * len(name) + 8 > pixels - RIGHT_PIXELS
        at = (pixels - RIGHT_PIXELS if is_at_edge else x + 4, head - 9 - 17 * rows[place])
        loss.text(at, name, "strong" if phase.state == State.DONE else "", "end" if is_at_edge else "start")
    for axes, curves, css in ((loss, losses, "raw-loss"), (learning_rate, rates, "rate")):
        total = sum(len(part) for _, part in curves)
        for of_phase, part in curves:
            most = max(2, math.ceil(MAX_STRETCHES * len(part) / max(total, 1)))
            axes.line(thinned(of_phase, part, most=most), css)
            if axes is loss and len(part):
                finite, window = np.isfinite(part), 2 * (max(3, round(0.015 * total)) // 2) + 1
                smooth = pd.Series(part[finite]).rolling(window, center=True, min_periods=1).mean().to_numpy()
                axes.line(thinned(of_phase[finite], smooth, most=most), "loss")
    breaks = [int(of_phase[~np.isfinite(part)][0]) for of_phase, part in losses if len(part) and not np.isfinite(part).all()]
    for step in breaks:
        x, is_left = loss.x(step), step < sum(steps) / 2
        loss.line([[(step, frame[0]), (step, frame[1])]], "break")
        loss.text((x + (5 if is_left else -5), head + tall / 2), f"not finite from step {step:,}", "warning", "start" if is_left else "end")
    if len(values):
        loss.text((pixels - RIGHT_PIXELS - 6, head + 14), "training loss", anchor="end")
        if is_cut:
            beyond = f"above the frame at first: {decimal(float(values.max()), places=2)}"
            loss.text((pixels - RIGHT_PIXELS - 6, head + 30), beyond, anchor="end")
    elif not breaks:
        loss.text((LEFT_PIXELS + width / 2, head + tall / 2), "no loss recorded", anchor="middle")
    return svg(pixels, head + tall + low + 72, [loss, learning_rate])


def _arrays(points: Sequence[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([step for step, _ in points], dtype=float), np.array([value for _, value in points], dtype=float)


def _label_rows(labels: Sequence[str], starts: Sequence[float], pixels: float) -> list[int]:
    """Find a free row above the axes for each name, which starts at its phase or ends at the right edge. Row 0 is the lowest."""
    taken: list[list[Range]] = []
    rows: list[int] = []
    for label, start in zip(labels, starts, strict=True):
        width = LETTER_PIXELS * len(label) + 8
        left = min(start, pixels - width)
        row = next((i for i, spans in enumerate(taken) if all(left >= b or left + width <= a for a, b in spans)), len(taken))
        taken += [[]] if row == len(taken) else []
        taken[row].append((left, left + width))
        rows.append(row)
    return rows


def macro_picture(report: Report, pixels: int) -> Markup | None:
    """Draw macro bits per byte after each phase with baselines, or return None without evaluations."""
    places = list(enumerate(report.phases))
    raw = [(place, phase.macro_bits_per_byte) for place, phase in places if _is_number(phase.macro_bits_per_byte)]
    averaged = [(place, phase.ema_macro_bits_per_byte) for place, phase in places if _is_number(phase.ema_macro_bits_per_byte)]
    if not raw:
        return None
    baselines = [(name, value) for name, value in report.baselines.items() if math.isfinite(value)]
    values = [value for _, value in (*raw, *averaged, *baselines)]
    margin = 0.12 * (max(values) - min(values)) or 0.1
    axes = _phase_axes(report, pixels, top=14, height=212, up=(min(values) - margin, max(values) + 2.2 * margin))
    axes.grid(6)
    _name_phases(axes, report, pixels)
    for _, value in baselines:
        axes.level(value, "floor")
    axes.line([averaged], "average")
    axes.dots(averaged, "average")
    axes.line([raw], "loss")
    axes.dots(raw, "dot")
    for place, value in raw:
        axes.text((axes.x(place), axes.y(value) - 9), decimal(value, places=2), "value", "middle")
    _name_ends(axes, [(f"{name} {decimal(value, places=2)}", value, "floor-name") for name, value in baselines], pixels)
    return svg(pixels, 226 + (36 if pixels >= WIDE_PIXELS else 86), [axes])


def checkpoints_picture(report: Report, pixels: int) -> Markup | None:
    """Draw bits per byte and scores of the kept checkpoints over the steps, or return None without them."""
    curves: dict[str, list[Sequence[tuple[int, float]]]] = {}
    for phase in report.phases:
        for name, points in phase.curves.items():
            curves.setdefault(name, []).append([point for point in points if math.isfinite(point[1])])
    steps = (min(phase.start_step for phase in report.phases), max(phase.stop_step for phase in report.phases))
    right = NAMES_PIXELS if pixels >= WIDE_PIXELS else 12
    top, drawn = 0, list[Axes]()
    scores = [name for name in curves if name != MACRO]
    for title, names in ((f"{MACRO} (lower is better)", [MACRO]), ("benchmarks: score", scores)):
        values = [value for name in names for part in curves.get(name, ()) for _, value in part]
        if not values:
            continue
        axes = Axes((LEFT_PIXELS, top + 34, pixels - LEFT_PIXELS - right, 180), steps, padded(values, 0.12))
        axes.text((LEFT_PIXELS, top + 20), title)
        axes.grid(5)
        axes.steps(8 if pixels >= WIDE_PIXELS else 4)
        ends: list[tuple[str, float, str]] = []
        for place, name in enumerate(names):
            style = f"score-{place % 4} dashes-{place // 4 % 4}"
            axes.line(curves[name], style)
            axes.dots([point for part in curves[name] for point in part], f"dot-of {style}", 2.5)
            last = [value for part in curves[name] for _, value in part][-1:] or [math.nan]
            ends += [(f"{cut(name, 22)} {decimal(last[0], places=2)}", last[0], f"name-{place % 4}")] if math.isfinite(last[0]) else []
        _name_ends(axes, ends, pixels)
        drawn.append(axes)
        top += 34 + 180 + 30
    return svg(pixels, top + 6, drawn) if drawn else None


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _phase_axes(report: Report, pixels: int, *, top: float, height: float, up: Range) -> Axes:
    right = NAMES_PIXELS if pixels >= WIDE_PIXELS else 12
    return Axes((LEFT_PIXELS, top, pixels - LEFT_PIXELS - right, height), (-0.45, len(report.phases) - 0.55), up)


def _name_phases(axes: Axes, report: Report, pixels: int) -> None:
    room = axes.width / max(1, len(report.phases))
    is_flat = pixels >= WIDE_PIXELS and all(LETTER_PIXELS * len(phase.name) < room - 6 for phase in report.phases)
    for place, phase in enumerate(report.phases):
        at = (axes.x(place), axes.top + axes.height + 18)
        axes.text(at, phase.name, "", "middle" if is_flat else "end", "" if is_flat else "-40")


def _name_ends(axes: Axes, ends: Sequence[tuple[str, float, str]], pixels: int) -> None:
    """Write names (text, value, style) at the right edge, moved apart. A narrow picture shows only names with a style, inside the axes."""
    right = axes.left + axes.width
    if pixels < WIDE_PIXELS:
        for place, (text, _, css) in enumerate([end for end in ends if end[2]][:6]):
            axes.text((right - 2, axes.top + 10 + LINE_PIXELS * place), text, f"{css} value", "end")
        return
    (low, high), distance = axes.up, LINE_PIXELS * (axes.up[1] - axes.up[0]) / axes.height
    order = sorted(range(len(ends)), key=lambda place: -ends[place][1])
    placed = [0.0] * len(ends)
    above = math.inf
    for place in order:
        placed[place] = above = min(ends[place][1], above - distance, high)
    for place in reversed(order):
        placed[place] = max(placed[place], low)
        low = placed[place] + distance
    for (text, _, css), value in zip(ends, placed, strict=True):
        axes.text((right + 8, axes.y(value) + 4), cut(text, int((NAMES_PIXELS - 12) / LETTER_PIXELS)), css)


class PhaseCurve(NamedTuple):
    """Values by phase with standard errors. A phase in `joined` is connected to its parent. `css` styles the line, `name_css` the name."""

    name: str
    values: Mapping[str, float]
    joined: frozenset[str]
    css: str
    name_css: str
    radius: float
    errors: Mapping[str, float] = {}


class Panel(NamedTuple):
    """A plot of the picture across phases. `draw` takes picture width, axes top and axes height in pixels."""

    title: str
    height: float
    draw: Callable[[int, float, float], Axes]


def across_picture(report: Report, pixels: int) -> Markup | None:
    """Draw benchmarks, components and gaps to parents over all phases, or return None for fewer than two measured phases."""
    top, drawn = 0.0, list[Axes]()
    for panel in panels_of(report):
        axes = panel.draw(pixels, top + 34, panel.height)
        axes.text((LEFT_PIXELS, top + 20), cut(panel.title, int((pixels - LEFT_PIXELS) / LETTER_PIXELS)))
        drawn.append(axes)
        top += panel.height + 34
    if not drawn:
        return None
    _name_phases(drawn[-1], report, pixels)
    return svg(pixels, top + (30 if pixels >= WIDE_PIXELS else 96), drawn)


def panels_of(report: Report) -> list[Panel]:
    """Return the panels with values."""
    if sum(bool(phase.bits_per_byte or phase.benchmarks) for phase in report.phases) < 2:
        return []
    scores: dict[str, PhaseCurve] = {}
    for phase in report.phases:
        for one in phase.measured:
            if one.higher_is_better and math.isfinite(one.value):
                place = list(scores).index(one.what) if one.what in scores else len(scores)
                style = f"score-{place % 4} dashes-{place // 4 % 4}", f"name-{place % 4}", 2.5
                curve = scores.get(one.what, PhaseCurve(one.what, {}, frozenset(), *style))
                values = {**curve.values, phase.name: one.value - (one.floor or 0.0)}
                joined = curve.joined | ({phase.name} if one.difference is not None else set())
                scores[one.what] = curve._replace(values=values, joined=joined, errors={**curve.errors, phase.name: one.stderr or 0.0})
    components: list[PhaseCurve] = []
    for name in {name for phase in report.phases for name in phase.bits_per_byte}:
        bits = {phase.name: phase.bits_per_byte.get(name) for phase in report.phases}
        if values := {phase: value for phase, value in bits.items() if _is_number(value)}:
            components.append(PhaseCurve(name, values, frozenset(values), "thin", "", 1.1))
    components.sort(key=lambda one: (-list(one.values.values())[-1], one.name))
    tall = max(220, min(480, LINE_PIXELS * (len(components) + 3)))
    if macro := {phase.name: phase.macro_bits_per_byte for phase in report.phases if _is_number(phase.macro_bits_per_byte)}:
        components += [PhaseCurve("macro", macro, frozenset(macro), "loss", "name-0", 3.0)] if components else []
    averages = {
        phase.name: [("macro", phase.ema_macro_bits_per_byte - phase.macro_bits_per_byte)]
        for phase in report.phases
        if phase.ema_macro_bits_per_byte is not None and phase.macro_bits_per_byte is not None
    }
    panels: list[Panel] = []
    if scores:
        draw = partial(_curves, report, list(scores.values()), 4, True)
        panels.append(Panel("benchmarks: score above the floor ± standard error", max(150, LINE_PIXELS * (len(scores) + 3)), draw))
    if components:
        panels.append(Panel("held-out bits per byte by component (lower is better)", tall, partial(_curves, report, components, 8, False)))
    of_components, of_benchmarks = parent_gaps(report)
    for title, gaps, places in (
        ("bits per byte against the parent: components, mean", of_components, 2),
        ("benchmarks against the parent: each, mean", of_benchmarks, 3),
        ("moving average against trained weights, bits per byte", gaps_of(averages), 3),
    ):
        if gaps:
            panels.append(Panel(title, 150, partial(_gaps, report, gaps, places)))
    return panels


def _curves(report: Report, curves: Sequence[PhaseCurve], ticks: int, has_floor: bool, pixels: int, top: float, height: float) -> Axes:
    """Draw named lines from each phase to its parent."""
    ends = [value + sign * curve.errors.get(name, 0.0) for curve in curves for name, value in curve.values.items() for sign in (-1, 1)]
    up = padded([0.0, *ends], 0.14) if has_floor else padded(ends, 0.06)
    axes = _phase_axes(report, pixels, top=top, height=height, up=up)
    axes.grid(ticks)
    named: list[tuple[str, float, str]] = []
    if has_floor:
        axes.level(0, "floor")
        named.append(("dashed: the floor", 0.0, "floor-name"))
    at = {phase.name: place for place, phase in enumerate(report.phases)}
    for curve in curves:
        for phase in report.phases:
            if (parent := phase.parent) in curve.values and parent and phase.name in curve.joined:
                axes.line([[(at[name], curve.values[name]) for name in (parent, phase.name)]], curve.css)
        axes.dots([(at[name], value) for name, value in curve.values.items()], f"dot-of {curve.css}", curve.radius)
        for name, error in curve.errors.items():
            value = curve.values[name]
            axes.line([[(at[name], value - error), (at[name], value + error)]], f"error {curve.css.split()[0]}")
        last = list(curve.values.values())[-1]
        named.append((f"{cut(curve.name, 22)} {decimal(last, places=2)}", last, curve.name_css))
    room = int(height // LINE_PIXELS)
    _name_ends(axes, named if len(named) <= room else [*named[: room // 2], *named[-(room - room // 2) :]], pixels)
    return axes


def _gaps(report: Report, gaps: Sequence[Gap], places: int, pixels: int, top: float, height: float) -> Axes:
    is_wide = pixels >= WIDE_PIXELS
    changes = [change for gap in gaps for _, change in gap.changes]
    axes = _phase_axes(report, pixels, top=top, height=height, up=padded([0.0, *changes], 0.18))
    axes.grid(4)
    axes.level(0, "axis")
    at = {phase.name: place for place, phase in enumerate(report.phases)}
    for gap in gaps:
        place = at[gap.phase]
        if len(gap.changes) > 1:
            axes.dots([(place, change) for _, change in gap.changes], "faint", 1.8)
        axes.line([[(place - 0.16, gap.mean), (place + 0.16, gap.mean)]], "mean")
        mean = signed(gap.mean, places=places if is_wide else 2)
        beside = (axes.x(place + 0.18) + 3, axes.y(gap.mean) + 4) if is_wide else (axes.x(place), axes.y(gap.mean) - 5)
        axes.text(beside, mean, "value", "start" if is_wide else "middle")
    return axes


def balance_picture(phase: PhaseReport, routing: RoutingReport, *, top: float) -> Markup:
    """Draw MaxVio up to `top` with its limit, idle experts and router entropy over a phase."""
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
    """Draw the load by layer (row) and expert (column), with one stroke for equal neighbours. Return None without loads."""
    if not routing.loads:
        return None
    strokes: dict[int, list[str]] = {}
    for layer, loads in enumerate(routing.loads):
        levels = [next(level for level, (bound, _) in enumerate(LEVELS) if load < bound or load == bound == 0) for load in loads]
        for level, cells in groupby(range(len(loads)), key=levels.__getitem__):
            experts = list(cells)
            strokes.setdefault(level, []).append(f"M{experts[0]} {layer}.5h{len(experts)}")
    paths = "".join(f'<path class="level-{level}" d="{"".join(parts)}"/>' for level, parts in sorted(strokes.items()))
    box = f"0 0 {len(routing.loads[0])} {len(routing.loads)}"
    return Markup(f'<svg viewBox="{box}" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>')
