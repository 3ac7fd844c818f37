"""How a phase trains, as a page of the Prefect UI: the loss as a picture, and a table."""

import base64
import math
from collections.abc import Iterable, Mapping
from typing import Any

from phasewise.tasks.site import site_address
from phasewise.trainer.base.wording import decimal
from phasewise.trainer.config import RunConfig

MAX_POINTS = 400
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 260, 56, 28, 12


class Curve:
    """The loss by steps, thinned to a few hundred points however long the run is."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._every, self._count = 1, 0
        self.last: Mapping[str, Any] | None = None

    @property
    def points(self) -> list[tuple[int, float]]:
        """Step and loss, the last one always among them."""
        last = self.last
        if last is None or not _is_number(last["loss"]) or (self._points and self._points[-1][0] == last["step"]):
            return self._points
        return [*self._points, (last["step"], last["loss"])]

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of the metrics in order; one whose loss is no number leaves a gap."""
        for row in rows:
            self.last = row
            if self._count % self._every == 0 and _is_number(row["loss"]):
                self._points.append((row["step"], row["loss"]))
            self._count += 1
            if len(self._points) >= MAX_POINTS:
                self._points = self._points[::2]
                self._every *= 2


def training_markdown(run: RunConfig, curve: Curve, rate: float) -> str:
    """The page.

    Args:
        rate: tokens a second.
    """
    last = curve.last or {}
    done, total = last.get("step", run.start_step) - run.start_step, run.stop_step - run.start_step
    page = site_address(run.recipe, run.scale, run.phase)
    rows = {
        "step": f"{last.get('step', run.start_step):,} of {run.stop_step:,}",
        "done": f"{100 * done / total:.0f} %",
        "loss": "no number" if last and not _is_number(last["loss"]) else decimal(last.get("loss"), places=3),
        "learning rate": f"{last['learning_rate']:.3g}" if "learning_rate" in last else "–",
        "tokens a second": f"{rate:,.0f}" if rate else "–",
    }
    lines = [f"# Training of {run.recipe}/{run.scale}/{run.phase}", ""]
    lines += [f"[Live, with every measure]({page})", ""] if page else []
    if len(curve.points) > 1:
        svg = base64.b64encode(loss_svg(curve.points).encode()).decode()
        lines += [f"![loss by step](data:image/svg+xml;base64,{svg})", ""]
    return "\n".join([*lines, "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _is_number(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def loss_svg(points: list[tuple[int, float]]) -> str:
    """The loss by step as a picture that reads on light and dark; it needs two points."""
    steps, losses = [step for step, _ in points], [loss for _, loss in points]
    low, high = min(losses), max(losses)
    span, length = (high - low) or 1.0, (steps[-1] - steps[0]) or 1
    inner, height = WIDTH - LEFT - 12, HEIGHT - BOTTOM - TOP
    path = " ".join(f"{LEFT + inner * (step - steps[0]) / length:.1f},{TOP + height * (high - loss) / span:.1f}" for step, loss in points)
    text = 'font-family="sans-serif" font-size="13" fill="#64748b"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
        f'<line x1="{LEFT}" y1="{HEIGHT - BOTTOM}" x2="{WIDTH - 12}" y2="{HEIGHT - BOTTOM}" stroke="#94a3b8"/>'
        f'<polyline points="{path}" fill="none" stroke="#1d4ed8" stroke-width="1.6"/>'
        f'<text x="4" y="{TOP + 10}" {text}>{high:.3f}</text><text x="4" y="{HEIGHT - BOTTOM}" {text}>{low:.3f}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 8}" {text}>step {steps[0]:,}</text>'
        f'<text x="{WIDTH - 12}" y="{HEIGHT - 8}" text-anchor="end" {text}>step {steps[-1]:,}</text></svg>'
    )
