"""The picture of training: loss over all phases, and the learning rate beneath on the same steps."""

import math
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from phasewise.tasks.publication.contents import PhaseReport, Report
from phasewise.tasks.publication.drawing import (
    BAND,
    INK,
    LINE,
    LOSS,
    MUTED,
    RATE,
    WIDE_PIXELS,
    in_both_widths,
    new_figure,
    say,
    text_pixels,
)
from phasewise.trainer.base.wording import count, decimal, rate

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
