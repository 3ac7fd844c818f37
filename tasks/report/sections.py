"""What a reader wants in the first ten seconds: a word for every phase, a handful of figures, and what failed."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from markupsafe import Markup

from phasewise.tasks.report.contents import (
    BenchmarkReport,
    MeasuredReport,
    PhaseReport,
    Points,
    RecordReport,
    Report,
    RoutingReport,
    VerdictReport,
)
from phasewise.trainer.base.wording import MISSING, count, decimal, signed
from phasewise.trainer.config import Component, MixtureShares
from phasewise.trainer.metrics import Row
from phasewise.validations.outcomes import CheckCounts, count_passed, sum_counts, verdicts_in_words

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


@dataclass(frozen=True)
class Cell:
    """A component after a phase. `change` is bits per byte against the parent; `strength` in [-1, 1] is negative where better."""

    value: float | None
    change: float | None
    strength: float
    trained_on: bool


@dataclass(frozen=True)
class HeatRow:
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


def component_rows(phases: tuple[PhaseReport, ...]) -> list[HeatRow]:
    """One row a component, grouped by the phase in which it improved most, so that improvements form a staircase."""
    names = {name for phase in phases for name in phase.bits_per_byte}
    changes = {name: changes_of(phases, {phase.name: phase.bits_per_byte.get(name) for phase in phases}) for name in names}
    scale = scale_of([change for by_phase in changes.values() for change in by_phase if change is not None])
    rows = [HeatRow(name, cells_of(phases, name, changes[name], scale)) for name in names]
    return sorted(rows, key=place_of)


def macro_row(phases: tuple[PhaseReport, ...], over: tuple[Component, ...] = ()) -> HeatRow:
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
    return HeatRow("macro", tuple(cells))


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


def place_of(row: HeatRow) -> tuple[int, float, str]:
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


MIN_BLOCK_PERCENT = 4.0
# Pastel versions of Paul Tol's colour-blind-safe "muted" set: dark text is readable on every one and on its shades.
HUES = ("#84abd6", "#e3cf86", "#7cc4b5", "#e09aa5", "#a9dbef", "#bfbf70", "#c99bc8", "#bd8aa3")
NEUTRAL = "#c6cdd4"


@dataclass(frozen=True)
class Segment:
    """One component within a block."""

    name: Component
    label: str
    percent: float
    colour: str


@dataclass(frozen=True)
class Block:
    """One family, or the rest. `percent` is the sum of its segments."""

    name: str
    percent: float
    segments: tuple[Segment, ...]
    members: int


@dataclass(frozen=True)
class Span:
    """One bar: the mixture in force from `start_step` on. `shares` has every component."""

    phase: str
    state: str
    start_step: int
    stop_step: int
    blocks: tuple[Block, ...]
    shares: MixtureShares


def mix_with_white(colour: str, part: float) -> str:
    """The hexadecimal colour, moved towards white by `part` in [0, 1]."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (255 - channel) * part):02x}" for channel in channels)


def families_of(components: set[Component]) -> dict[Component, str]:
    """Component → family: the first word of the name where others share it, else the name itself."""
    by_word: dict[str, list[Component]] = defaultdict(list)
    for component in components:
        by_word[re.split(r"[_\-/ .]", component, maxsplit=1)[0]].append(component)
    return {name: word if word and len(names) > 1 else name for word, names in by_word.items() for name in names}


def colours_of(spans: list[MixtureShares], families: dict[Component, str]) -> dict[Component, str]:
    """Component → colour, the same in every bar. The families that are largest anywhere get the hues."""
    peaks: dict[str, float] = defaultdict(float)
    for shares in spans:
        sums: dict[str, float] = defaultdict(float)
        for component, share in shares.items():
            sums[families[component]] += share
        for family, share in sums.items():
            peaks[family] = max(peaks[family], share)
    ranked = sorted(peaks, key=lambda family: (-peaks[family], family))
    hues = dict(zip(ranked, HUES, strict=False))
    colours: dict[Component, str] = {}
    for family in ranked:
        members = [name for name in families if families[name] == family]
        members.sort(key=lambda name: (-max(shares.get(name, 0.0) for shares in spans), name))
        for i, name in enumerate(members):
            colours[name] = mix_with_white(hues.get(family, NEUTRAL), 0.62 * i / max(len(members) - 1, 1))
    return colours


def blocks_of(shares: MixtureShares, families: dict[Component, str], colours: dict[Component, str]) -> tuple[Block, ...]:
    """The bar of one span, families in order of size, small families together as the last block."""
    members: dict[str, list[Component]] = defaultdict(list)
    for name, share in shares.items():
        if share > 0:
            members[families[name]].append(name)
    sums = {family: sum(shares[name] for name in names) for family, names in members.items()}
    large = sorted((family for family in sums if sums[family] >= MIN_BLOCK_PERCENT), key=lambda family: (-sums[family], family))
    blocks: list[Block] = []
    for family in large:
        names = sorted(members[family], key=lambda name: (-shares[name], name))
        segments = tuple(Segment(name, name.removeprefix(family).lstrip("_-/ .") or name, shares[name], colours[name]) for name in names)
        blocks.append(Block(family if len(names) > 1 else names[0], sums[family], segments, len(names)))
    small = [name for family in sums if family not in large for name in members[family]]
    if small:
        rest = sum(shares[name] for name in small)
        label = small[0] if len(small) == 1 else f"other ({len(small)})"
        blocks.append(Block(label, rest, (Segment(label, label, rest, colours[small[0]] if len(small) == 1 else NEUTRAL),), len(small)))
    return tuple(blocks)


def spans_of(report: Report) -> list[Span]:
    """Every span of every phase that has a mixture."""
    every = [shares for phase in report.phases for _, shares in phase.mixture]
    families = families_of({name for shares in every for name in shares})
    colours = colours_of(every, families)
    return [
        Span(phase.name, phase.state, start, stop, blocks_of(shares, families, colours), shares)
        for phase in report.phases
        for (start, shares), stop in zip(phase.mixture, ends_of_stages(phase), strict=True)
    ]


def legend_of(spans: list[Span]) -> dict[str, str]:
    """Block → its first colour, each once, the rest last."""
    blocks = {block.name: block.segments[0].colour for span in spans for block in span.blocks}
    named = {name: colour for name, colour in blocks.items() if not name.startswith("other (")}
    return named | ({"other": NEUTRAL} if len(named) < len(blocks) else {})


def ends_of_stages(phase: PhaseReport) -> list[int]:
    """The last step of every span: the start of the next, and the phase's own stop."""
    return [start for start, _ in phase.mixture[1:]] + [phase.stop_step] * bool(phase.mixture)


MARKS = {"good": "✓", "warned": "!", "bad": "✗", "none": "–"}


@dataclass(frozen=True)
class Standing:
    """The state of a phase or a verdict. `kind` decides colour and mark: good, warned, bad or none."""

    kind: str
    word: str

    @property
    def mark(self) -> str:
        """The sign beside the word."""
        return MARKS[self.kind]


@dataclass(frozen=True)
class Tile:
    """One figure with its name and a remark."""

    name: str
    figure: str
    remark: str


def standing_of(phase: PhaseReport) -> Standing:
    """A failed verdict is named first, then the state; a phase that nobody judged does not pass."""
    failed = " and ".join(verdict.name for verdict in phase.verdicts if not verdict.passes and not verdict.waits)
    if failed:
        return Standing("bad", f"{failed} failed")
    if phase.state == "refused":
        return Standing("bad", "refused")
    if phase.state == "waits for a person":
        return Standing("warned", phase.state)
    if phase.state == "not reached":
        return Standing("none", "not reached")
    if decided := [verdict for verdict in phase.verdicts if verdict.ruling == "approved"]:
        return Standing("warned", f"{' and '.join(verdict.name for verdict in decided)} let pass by a person")
    return standing_of_counts(phase.counts) if phase.verdicts else Standing("none", "not judged")


def standing_of_counts(counts: CheckCounts) -> Standing:
    """The state of a verdict, or of several together."""
    kinds = {"passed": "good", "warned": "warned", "failed": "bad"}
    return Standing(kinds[counts.standing], counts.standing_words)


def headline_of(report: Report) -> tuple[str, str]:
    """The status as a word, and the rest of the sentence; a headline that begins with the status does not say it twice."""
    first, _, rest = report.headline.partition(" ")
    if first.strip(".,:").lower() == report.status:
        return first, rest
    return f"{report.status.capitalize()}.", report.headline


def failures_of(report: Report) -> list[tuple[PhaseReport, VerdictReport]]:
    """Every verdict that failed or waits for a person, in the order of the phases."""
    return [(phase, verdict) for phase in report.phases for verdict in phase.verdicts if not verdict.passes]


def passes_of(report: Report) -> list[tuple[PhaseReport, VerdictReport]]:
    """Every verdict that passed or that a person let pass, in the order of the phases."""
    return [(phase, verdict) for phase in report.phases for verdict in phase.verdicts if verdict.passes]


def batch_of(phase: PhaseReport) -> str:
    """The batch sizes one after the other, in sequences."""
    sizes = [str(size) for size, _ in groupby(size for _, size in phase.batch_sequences)]
    return " → ".join(sizes) or MISSING


def tiles_of(report: Report) -> list[Tile]:
    """Phases, tokens, parameters, held-out bits per byte and verdicts."""
    done = [phase for phase in report.phases if phase.state == "done"]
    verdicts = [verdict.counts for phase in report.phases for verdict in phase.verdicts]
    words = f"{verdicts_in_words(verdicts)}: {sum_counts(verdicts).shares}"
    return [
        Tile("phases trained", f"{len(done)} of {len(report.phases)}", f"to step {done[-1].stop_step:,}" if done else "none yet"),
        Tile("tokens trained on", count(sum(phase.tokens for phase in done)), f"{count(report.parameters)} parameters"),
        held_out_tile(report),
        Tile("verdicts passed", f"{count_passed(verdicts)} of {len(verdicts)}", words),
    ]


def held_out_tile(report: Report) -> Tile:
    """The last macro value, where it came from, and the baseline that is hardest to beat."""
    measured = [phase for phase in report.phases if phase.macro_bits_per_byte is not None]
    if not measured:
        return Tile("held-out bits per byte", MISSING, "not measured")
    first, last = measured[0], measured[-1]
    remarks = [f"{decimal(first.macro_bits_per_byte, places=2)} after {first.name}"] if first is not last else [f"after {last.name}"]
    if report.baselines:
        name = min(report.baselines, key=lambda name: report.baselines[name])
        remarks.append(f"{name} {decimal(report.baselines[name], places=2)}")
    return Tile("held-out bits per byte", decimal(last.macro_bits_per_byte, places=2), " · ".join(remarks))
