"""What was measured of each phase, in words for the page and for Prefect's, and how far each phase is from its parent on the whole."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from phasewise.tasks.publication.contents import MeasuredReport, PhaseReport, RecordReport, Report
from phasewise.trainer.base.wording import MISSING, decimal, signed

Direction = Literal["better", "worse", "unclear"]
PLACES = 3


@dataclass(frozen=True)
class MeasuredRow:
    """One figure in words; `direction` is unclear where the interval has zero in it, or where there is none."""

    what: str
    value: str
    parent: str
    difference: str
    interval: str
    smallest_effect: str
    floor: str
    direction: Direction
    not_compared: str


@dataclass(frozen=True)
class Gap:
    """How far a phase is from its parent: its components (or benchmarks), those that both have, and their mean."""

    phase: str
    changes: tuple[tuple[str, float], ...]

    @property
    def mean(self) -> float:
        """Each counts the same."""
        return sum(change for _, change in self.changes) / len(self.changes)


@dataclass(frozen=True)
class MeasuredPhase:
    """A phase's figures, and what the record reported of its own run."""

    phase: PhaseReport
    rows: tuple[MeasuredRow, ...]
    reported: tuple[RecordReport, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the record's figures are printed."""
        return tuple(dict.fromkeys(one.source for one in self.reported))


def measured_phases(report: Report) -> list[MeasuredPhase]:
    """The phases that were measured, or of which the record reported a score or a loss."""
    found = (
        MeasuredPhase(
            phase,
            tuple(row_of(one, report) for one in phase.measured),
            tuple(one for one in phase.reported if one.is_measure),
        )
        for phase in report.phases
    )
    return [one for one in found if one.rows or one.reported]


def row_of(measured: MeasuredReport, report: Report) -> MeasuredRow:
    """The floor of bits per byte is the best of the simple models."""
    return MeasuredRow(
        what=measured.what,
        value=decimal(measured.value, places=PLACES) + (f" ± {decimal(measured.stderr, places=PLACES)}" if measured.stderr else ""),
        parent=decimal(measured.parent, places=PLACES),
        difference=MISSING if measured.difference is None else _signed(measured.difference),
        interval=MISSING if measured.interval is None else f"{_signed(measured.interval[0])} to {_signed(measured.interval[1])}",
        smallest_effect=decimal(measured.smallest_effect, places=PLACES),
        floor=_floor(measured, report),
        direction=_direction(measured),
        not_compared=measured.not_compared,
    )


def component_gaps(report: Report) -> list[Gap]:
    """Bits per byte of each component minus the parent's; a phase without a measured parent has none."""
    measured = {phase.name: phase.bits_per_byte for phase in report.phases}
    gaps = (Gap(phase.name, tuple(_changes(phase.bits_per_byte, measured.get(phase.parent or "", {})))) for phase in report.phases)
    return [gap for gap in gaps if gap.changes]


def benchmark_gaps(report: Report) -> list[Gap]:
    """Each benchmark's value minus the parent's, where the gate compared them."""
    gaps = (
        Gap(
            phase.name,
            tuple(
                (one.what, one.difference)
                for one in phase.measured
                if one.higher_is_better and one.difference is not None and math.isfinite(one.difference)
            ),
        )
        for phase in report.phases
    )
    return [gap for gap in gaps if gap.changes]


def measured_markdown(report: Report) -> list[str]:
    """The same as lines of Markdown, for the page in the Prefect UI."""
    phases = measured_phases(report)
    rows = [(one.phase.name, row) for one in phases for row in one.rows]
    if not rows:
        return []
    lines = ["## Measured", "", "| phase | what | value | parent | difference | 95 % interval | smallest effect | floor |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, row in rows:
        cells = (name, row.what, row.value, row.parent, row.difference, row.interval, row.smallest_effect, row.floor)
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    lines += ["", *_across(report)]
    reported = [(one.phase.name, row) for one in phases for row in one.reported]
    if reported:
        lines += [f"## Reported by the record{'' if report.scale == 'full' else ', at full scale: not to be compared'}", ""]
        lines += ["| phase | what | reported | where |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(map(_cell, (name, one.what, one.value, one.source)))} |" for name, one in reported]
        lines.append("")
    return lines


def _across(report: Report) -> list[str]:
    """Macro bits per byte and the mean gap to the parent, a column a phase."""
    phases = [phase for phase in report.phases if phase.macro_bits_per_byte is not None]
    lines = [f"| | {' | '.join(_cell(phase.name) for phase in phases)} |", f"|---{'|---' * len(phases)}|"]
    values = [decimal(phase.macro_bits_per_byte, places=PLACES) for phase in phases]
    averaged = [decimal(phase.ema_macro_bits_per_byte, places=PLACES) for phase in phases]
    lines.append(f"| macro bits per byte | {' | '.join(values)} |")
    lines.append(f"| of the moving average | {' | '.join(averaged)} |")
    for name, gaps in (("components' mean gap to the parent", component_gaps(report)), ("benchmarks'", benchmark_gaps(report))):
        means = {gap.phase: _signed(gap.mean) for gap in gaps}
        lines.append(f"| {name} | {' | '.join(means.get(phase.name, MISSING) for phase in phases)} |")
    return [*lines, ""]


def _changes(values: dict[str, float], before: dict[str, float]) -> Iterator[tuple[str, float]]:
    for name in sorted(values.keys() & before.keys()):
        if math.isfinite(values[name] - before[name]):
            yield name, values[name] - before[name]


def _floor(measured: MeasuredReport, report: Report) -> str:
    if measured.higher_is_better or not report.baselines:
        return decimal(measured.floor, places=PLACES)
    name = min(report.baselines, key=lambda name: report.baselines[name])
    return f"{decimal(report.baselines[name], places=PLACES)} ({name})"


def _direction(measured: MeasuredReport) -> Direction:
    if measured.interval is None or measured.interval[0] <= 0 <= measured.interval[1]:
        return "unclear"
    return "better" if (measured.interval[0] > 0) == measured.higher_is_better else "worse"


def _signed(value: float) -> str:
    return signed(value, places=PLACES) if math.isfinite(value) else "not finite"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
