"""The picture of the gain: macro bits per byte after each phase, between the simple models that it must beat."""

import math

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phasewise.tasks.publication.contents import Report
from phasewise.tasks.publication.drawing import BASELINE, CARD, INK, LOSS, WIDE_PIXELS, in_both_widths, new_figure
from phasewise.trainer.base.wording import decimal

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
