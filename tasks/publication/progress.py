"""What each phase changed: held-out bits per byte against the parent, and benchmarks against their baselines."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from phasewise.tasks.publication.contents import BenchmarkReport, PhaseReport, Report
from phasewise.trainer.config import Component


@dataclass(frozen=True)
class Cell:
    """A component after a phase. `change` is bits per byte against the parent; `strength` in [-1, 1] is negative where better."""

    value: float | None
    change: float | None
    strength: float
    trained_on: bool


@dataclass(frozen=True)
class Row:
    """A component (or the macro mean), one cell a phase."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Mark:
    """A benchmark after a phase, on a scale of 0 to 100. Without a standard error `low` and `high` are the value."""

    phase: str
    value: float
    stderr: float | None
    position: float | None
    low: float
    high: float


@dataclass(frozen=True)
class Gauge:
    """One benchmark's metric over the phases. `top` is the value at the right end of the scale, `bottom` at the left."""

    benchmark: str
    metric: str
    baseline: float | None
    baseline_position: float | None
    bottom: float
    top: float
    marks: tuple[Mark, ...]


def evaluated_phases(report: Report) -> tuple[PhaseReport, ...]:
    """The phases with held-out values: the columns of the table."""
    return tuple(phase for phase in report.phases if phase.bits_per_byte)


def component_rows(phases: tuple[PhaseReport, ...]) -> list[Row]:
    """One row a component, grouped by the phase in which it improved most, so that improvements form a staircase."""
    names = {name for phase in phases for name in phase.bits_per_byte}
    changes = {name: changes_of(phases, {phase.name: phase.bits_per_byte.get(name) for phase in phases}) for name in names}
    scale = scale_of([change for by_phase in changes.values() for change in by_phase if change is not None])
    rows = [Row(name, cells_of(phases, name, changes[name], scale)) for name in names]
    return sorted(rows, key=place_of)


def macro_row(phases: tuple[PhaseReport, ...], over: tuple[Component, ...] = ()) -> Row:
    """The macro mean over components, coloured on its own scale. Means over other components than the parent's have no change.

    Args:
        over: the components of all means; none where each is over its phase's own.
    """
    values = {phase.name: phase.macro_bits_per_byte for phase in phases}
    measured = {phase.name: over or frozenset(phase.bits_per_byte) for phase in phases}
    alike = [measured.get(phase.parent or "") == measured[phase.name] for phase in phases]
    changes = [change if same else None for change, same in zip(changes_of(phases, values), alike, strict=True)]
    scale = scale_of([change for change in changes if change is not None])
    cells = (Cell(values[phase.name], change, strength_of(change, scale), False) for phase, change in zip(phases, changes, strict=True))
    return Row("macro", tuple(cells))


def changes_of(phases: tuple[PhaseReport, ...], values: dict[str, float | None]) -> list[float | None]:
    """Value minus the parent's value; None where either is missing."""
    pairs = [(values[phase.name], values.get(phase.parent) if phase.parent else None) for phase in phases]
    return [
        value - before if value is not None and before is not None and math.isfinite(value) and math.isfinite(before) else None
        for value, before in pairs
    ]


def scale_of(changes: list[float]) -> float:
    """The change that gets the full colour: nearly the largest, so that one outlier does not pale the rest."""
    sizes = sorted(abs(change) for change in changes)
    return sizes[math.ceil(0.95 * len(sizes)) - 1] if sizes else 0.0


def strength_of(change: float | None, scale: float) -> float:
    """The change in units of the scale, within [-1, 1]."""
    return max(-1.0, min(1.0, change / scale)) if change is not None and scale else 0.0


def cells_of(phases: tuple[PhaseReport, ...], name: Component, changes: list[float | None], scale: float) -> tuple[Cell, ...]:
    """The component's cells, in the order of the phases."""
    return tuple(
        Cell(
            phase.bits_per_byte.get(name),
            change,
            strength_of(change, scale),
            any(shares.get(name, 0.0) > 0 for _, shares in phase.mixture),
        )
        for phase, change in zip(phases, changes, strict=True)
    )


def place_of(row: Row) -> tuple[int, float, str]:
    """Sort key: the phase of the largest improvement, then its size."""
    known = [(cell.change, i) for i, cell in enumerate(row.cells) if cell.change is not None]
    change, phase = min(known, default=(0.0, len(row.cells)))
    return phase, change, row.name


def gauges_of(report: Report) -> list[Gauge]:
    """One gauge a benchmark and metric, in the order of first appearance."""
    results: dict[tuple[str, str], list[tuple[str, BenchmarkReport]]] = {}
    for phase in report.phases:
        for result in phase.benchmarks:
            results.setdefault((result.benchmark, result.metric), []).append((phase.name, result))
    return [gauge_of(measured) for measured in results.values()]


def gauge_of(measured: list[tuple[str, BenchmarkReport]]) -> Gauge:
    """The scale reaches from zero (or the lowest value below it) to a little past the largest value."""
    last = measured[-1][1]
    shown = [edge for _, result in measured for edge in (result.value - (result.stderr or 0), result.value + (result.stderr or 0))]
    finite = [value for value in [*shown, last.baseline] if value is not None and math.isfinite(value)]
    bottom = min([0.0, *finite])
    largest = max([0.0, *finite])
    top = largest + 0.15 * (largest - bottom) or 1.0
    top = min(top, 1.0) if 0 < largest <= 1 else top

    def position(value: float) -> float:
        return max(0.0, min(100.0, 100 * (value - bottom) / (top - bottom)))

    marks = tuple(mark_of(name, result, position) for name, result in measured)
    baseline = last.baseline
    return Gauge(
        last.benchmark,
        last.metric,
        baseline,
        position(baseline) if baseline is not None and math.isfinite(baseline) else None,
        bottom,
        top,
        marks,
    )


def mark_of(phase: str, result: BenchmarkReport, position: Callable[[float], float]) -> Mark:
    """The value with its standard error on the gauge."""
    if not math.isfinite(result.value):
        return Mark(phase, result.value, None, None, 0.0, 0.0)
    error = result.stderr if result.stderr is not None and math.isfinite(result.stderr) else 0.0
    return Mark(phase, result.value, result.stderr, position(result.value), position(result.value - error), position(result.value + error))
