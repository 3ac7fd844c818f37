"""What the routers of a sparse model did in a phase: how the balance went, and the load on each expert at its end."""

import re
from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup

from phasewise.tasks.publication.contents import Points, RoutingReport
from phasewise.trainer.base.wording import decimal
from phasewise.trainer.metrics import Row

LOAD = re.compile(r"expert_load/(\d+)/(\d+)")
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
"""A load, as a share of the mean, is of the first level whose bound is above it; none at all is of the first."""


def routing_of(rows: Sequence[Row], max_violation: float | None) -> RoutingReport | None:
    """What the rows of a phase say of its routers; None where it has none. The load is that of the last row that holds it.

    Args:
        max_violation: the phase's limit.
    """
    if not any("max_violation" in row for row in rows):
        return None
    last = next((row for row in reversed(rows) if any(LOAD.fullmatch(name) for name in row)), None)
    loads = {} if last is None else _loads(last)
    return RoutingReport(
        max_violation=_points(rows, "max_violation"),
        dead_experts=_points(rows, "dead_experts"),
        router_entropy=_points(rows, "router_entropy"),
        limit=max_violation,
        layers=tuple(loads),
        loads=tuple(loads.values()),
        loads_step=None if last is None else last["step"],
    )


def level_of(load: float) -> int:
    """The place in `LEVELS` of a load, as a share of the mean."""
    return next(level for level, (bound, _) in enumerate(LEVELS) if load < bound or load == bound == 0)


def heat_map(routing: RoutingReport) -> Markup | None:
    """A row a layer, a column an expert, as one picture that stretches; equal neighbours are one stroke. None where no load is known.

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


def busiest_in_words(routing: RoutingReport) -> str:
    """The most loaded expert, and how many had nothing."""
    every = [(load, layer, expert) for layer, loads in zip(routing.layers, routing.loads, strict=True) for expert, load in enumerate(loads)]
    load, layer, expert = max(every, key=lambda one: one[0])
    dead = sum(load == 0 for load, _, _ in every)
    said = f"expert {expert} of layer {layer} has {decimal(load, places=2)} times the mean"
    return f"{said}; {dead:,} of {len(every):,} experts have nothing" if dead else said


def _points(rows: Sequence[Row], name: str) -> Points:
    return tuple((row["step"], row[name]) for row in rows if row.get(name) is not None)


def _loads(row: Row) -> dict[int, tuple[float, ...]]:
    """Layer → the load on each of its experts, as a share of the mean."""
    found: dict[int, dict[int, float]] = {}
    for name, value in row.items():
        if (match := LOAD.fullmatch(name)) and value is not None:
            found.setdefault(int(match[1]), {})[int(match[2])] = value
    return {layer: tuple(loads[expert] * len(loads) for expert in sorted(loads)) for layer, loads in sorted(found.items())}
