"""The sections of a run's report: standings, tiles, mixtures, progress by component, benchmarks, figures beside the parent's, routing."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from phasewise.tasks.report.contents import MeasuredReport, PhaseReport, Points, RecordReport, Report, RoutingReport
from phasewise.trainer.base.wording import MISSING, count, decimal, signed
from phasewise.trainer.config import Component, MixtureShares
from phasewise.trainer.metrics import Row
from phasewise.validations.outcomes import MARKS, CheckCounts, count_passed, sum_counts, verdicts_in_words

Direction = Literal["better", "worse", "unclear"]
Kind = Literal["passed", "warned", "failed", "waiting"]
PLACES = 3
MIN_BLOCK_PERCENT = 4.0
# Pastel versions of Paul Tol's colour-blind-safe "muted" set: dark text is readable on every one and on its shades.
HUES = ("#84abd6", "#e3cf86", "#7cc4b5", "#e09aa5", "#a9dbef", "#bfbf70", "#c99bc8", "#bd8aa3")
NEUTRAL = "#c6cdd4"
LOAD = re.compile(r"expert_load/(\d+)/(\d+)")


class Standing(NamedTuple):
    """The state of a phase or a verdict. `kind` decides colour and mark."""

    kind: Kind
    word: str

    @property
    def mark(self) -> str:
        """The sign beside the word."""
        return MISSING if self.kind == "waiting" else MARKS[self.kind]


class Tile(NamedTuple):
    """One figure with its name and a note."""

    label: str
    value: str
    note: str = ""


def standing_of(phase: PhaseReport) -> Standing:
    """A failed verdict is named first, then the state; a phase without a verdict does not pass."""
    failed = " and ".join(verdict.name for verdict in phase.verdicts if not verdict.passes and not verdict.waits)
    if failed or phase.state == "refused":
        return Standing("failed", f"{failed} failed" if failed else "refused")
    if phase.state != "done":
        return Standing("waiting" if phase.state == "not reached" else "warned", phase.state)
    if decided := [verdict.name for verdict in phase.verdicts if verdict.ruling == "approved"]:
        return Standing("warned", f"{' and '.join(decided)} let pass by a person")
    return standing_of_counts(phase.counts) if phase.verdicts else Standing("waiting", "not judged")


def standing_of_counts(counts: CheckCounts) -> Standing:
    """The state of a verdict, or of several together."""
    return Standing(counts.standing, counts.standing_words)


def headline_of(report: Report) -> tuple[str, str]:
    """The status as a word, and the rest of the sentence; a headline that begins with the status does not repeat it."""
    first, _, rest = report.headline.partition(" ")
    is_said = first.strip(".,:").lower() == report.status
    return (first, rest) if is_said else (f"{report.status.capitalize()}.", report.headline)


def batch_of(phase: PhaseReport) -> str:
    """The batch sizes one after the other, in sequences."""
    return " → ".join(str(size) for size, _ in groupby(size for _, size in phase.batch_sequences)) or MISSING


def tiles_of(report: Report) -> list[Tile]:
    """Phases, tokens, parameters, held-out bits per byte and verdicts."""
    done = [phase for phase in report.phases if phase.state == "done"]
    verdicts = [verdict.counts for phase in report.phases for verdict in phase.verdicts]
    measured = [phase for phase in report.phases if phase.macro_bits_per_byte is not None]
    held_out = Tile("held-out bits per byte", MISSING, "not measured")
    if measured:
        first, last = measured[0], measured[-1]
        note = f"{decimal(first.macro_bits_per_byte, places=2)} after {first.name}" if first is not last else f"after {last.name}"
        if report.baselines:
            name = min(report.baselines, key=lambda name: report.baselines[name])
            note += f" · {name} {decimal(report.baselines[name], places=2)}"
        held_out = Tile("held-out bits per byte", decimal(last.macro_bits_per_byte, places=2), note)
    return [
        Tile("phases trained", f"{len(done)} of {len(report.phases)}", f"to step {done[-1].stop_step:,}" if done else "none yet"),
        Tile("tokens trained on", count(sum(phase.tokens for phase in done)), f"{count(report.parameters)} parameters"),
        held_out,
        Tile(
            "verdicts passed",
            f"{count_passed(verdicts)} of {len(verdicts)}",
            f"{verdicts_in_words(verdicts)}: {sum_counts(verdicts).shares}",
        ),
    ]


class Segment(NamedTuple):
    """One component within a block of a mixture."""

    name: Component
    label: str
    percent: float
    colour: str


class Block(NamedTuple):
    """A family of components, or the rest. `percent` is the sum of its segments."""

    name: str
    percent: float
    segments: tuple[Segment, ...]


class Span(NamedTuple):
    """One bar: the mixture in force from `start_step` on. `shares` has every component."""

    phase: str
    state: str
    start_step: int
    stop_step: int
    blocks: tuple[Block, ...]
    shares: MixtureShares


def spans_of(report: Report) -> list[Span]:
    """Every span of every phase that has a mixture. A component has the same colour in every bar."""
    every = [shares for phase in report.phases for _, shares in phase.mixture]
    families = families_of({name for shares in every for name in shares})
    # Component → colour. The families that are largest anywhere get the hues, their members its shades
    peaks: dict[str, float] = defaultdict(float)
    for shares in every:
        for family in {families[name] for name in shares}:
            peaks[family] = max(peaks[family], sum(share for name, share in shares.items() if families[name] == family))
    ranked = sorted(peaks, key=lambda family: (-peaks[family], family))
    hues = dict(zip(ranked, HUES, strict=False))
    colours: dict[Component, str] = {}
    for family in ranked:
        members = [name for name in families if families[name] == family]
        members.sort(key=lambda name: (-max(shares.get(name, 0.0) for shares in every), name))
        hue = hues.get(family, NEUTRAL)
        for place, name in enumerate(members):
            white = 0.62 * place / max(len(members) - 1, 1)
            channels = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
            colours[name] = "#" + "".join(f"{round(channel + (255 - channel) * white):02x}" for channel in channels)
    spans: list[Span] = []
    for phase in report.phases:
        stops = [start for start, _ in phase.mixture[1:]] + [phase.stop_step]
        for (start, shares), stop in zip(phase.mixture, stops, strict=False):
            spans.append(Span(phase.name, phase.state, start, stop, _blocks(shares, families, colours), shares))
    return spans


def families_of(components: set[Component]) -> dict[Component, str]:
    """Component → family: the first word of the name if others share it, else the name itself."""
    by_word: dict[str, list[Component]] = defaultdict(list)
    for component in components:
        by_word[re.split(r"[_\-/ .]", component, maxsplit=1)[0]].append(component)
    return {name: word if word and len(names) > 1 else name for word, names in by_word.items() for name in names}


def legend_of(spans: list[Span]) -> dict[str, str]:
    """Block → its first colour, each once, the rest last."""
    blocks = {block.name: block.segments[0].colour for span in spans for block in span.blocks}
    named = {name: colour for name, colour in blocks.items() if not name.startswith("other (")}
    return named | ({"other": NEUTRAL} if len(named) < len(blocks) else {})


def _blocks(shares: MixtureShares, families: dict[Component, str], colours: dict[Component, str]) -> tuple[Block, ...]:
    """The bar of one span: families in order of size, small families together as the last block."""
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
        blocks.append(Block(family if len(names) > 1 else names[0], sums[family], segments))
    if small := [name for family in sums if family not in large for name in members[family]]:
        rest = sum(shares[name] for name in small)
        label, colour = (small[0], colours[small[0]]) if len(small) == 1 else (f"other ({len(small)})", NEUTRAL)
        blocks.append(Block(label, rest, (Segment(label, label, rest, colour),)))
    return tuple(blocks)


class Cell(NamedTuple):
    """A component after a phase. `change` is bits per byte against the parent; `strength` in [-1, 1] is negative if better."""

    value: float | None
    change: float | None
    strength: float
    trained_on: bool


class HeatRow(NamedTuple):
    """A component (or the macro mean), one cell a phase."""

    name: str
    cells: tuple[Cell, ...]


def component_rows(phases: Sequence[PhaseReport]) -> list[HeatRow]:
    """One row a component, grouped by the phase in which it improved most, so that improvements form a staircase."""
    names = {name for phase in phases for name in phase.bits_per_byte}
    values = {name: {phase.name: phase.bits_per_byte.get(name) for phase in phases} for name in names}
    changes = {name: _changes(phases, values[name]) for name in names}
    scale = _scale(change for of_name in changes.values() for change in of_name)
    rows = [_heat_row(phases, name, values[name], changes[name], scale) for name in names]

    def staircase(row: HeatRow) -> tuple[int, float, str]:
        known = [(cell.change, place) for place, cell in enumerate(row.cells) if cell.change is not None]
        change, place = min(known, default=(0.0, len(row.cells)))
        return place, change, row.name

    return sorted(rows, key=staircase)


def macro_row(phases: Sequence[PhaseReport], over: tuple[Component, ...] = ()) -> HeatRow:
    """The macro mean over components, coloured on its own scale. Means over other components than the parent's have no change.

    Args:
        over: the components of all means; empty if each is over its phase's own.
    """
    values = {phase.name: phase.macro_bits_per_byte for phase in phases}
    measured = {phase.name: over or frozenset(phase.bits_per_byte) for phase in phases}
    alike = [measured.get(phase.parent or "") == measured[phase.name] for phase in phases]
    changes = [change if same else None for change, same in zip(_changes(phases, values), alike, strict=True)]
    return _heat_row(phases, "macro", values, changes, _scale(changes))


def _heat_row(
    phases: Sequence[PhaseReport], name: str, values: Mapping[str, float | None], changes: Sequence[float | None], scale: float
) -> HeatRow:
    cells: list[Cell] = []
    for phase, change in zip(phases, changes, strict=True):
        strength = max(-1.0, min(1.0, change / scale)) if change is not None and scale else 0.0
        trained_on = any(shares.get(name, 0.0) > 0 for _, shares in phase.mixture)
        cells.append(Cell(values[phase.name], change, strength, trained_on))
    return HeatRow(name, tuple(cells))


def _changes(phases: Sequence[PhaseReport], values: Mapping[str, float | None]) -> list[float | None]:
    """Value minus the parent's value; None if either is missing."""
    pairs = [(values[phase.name], values.get(phase.parent) if phase.parent else None) for phase in phases]
    return [
        value - before if value is not None and before is not None and math.isfinite(value) and math.isfinite(before) else None
        for value, before in pairs
    ]


def _scale(changes: Iterator[float | None] | Sequence[float | None]) -> float:
    """The change that gets the full colour: nearly the largest, so that one outlier does not pale the rest."""
    sizes = sorted(abs(change) for change in changes if change is not None)
    return sizes[math.ceil(0.95 * len(sizes)) - 1] if sizes else 0.0


class Mark(NamedTuple):
    """A benchmark after a phase, at a place from 0 to 100. Without a standard error `low` and `high` are the value's place."""

    phase: str
    value: float
    stderr: float | None
    position: float | None
    low: float = 0.0
    high: float = 0.0


class Gauge(NamedTuple):
    """One benchmark's metric over the phases, on a scale from `bottom` to `top`."""

    benchmark: str
    metric: str
    baseline: float | None
    baseline_position: float | None
    bottom: float
    top: float
    marks: tuple[Mark, ...]


def gauges_of(report: Report) -> list[Gauge]:
    """One gauge a benchmark and metric, in the order of first appearance, from zero to a little past the largest value."""
    results: dict[tuple[str, str], list[tuple[str, float, float | None, float | None]]] = {}
    for phase in report.phases:
        for one in phase.benchmarks:
            results.setdefault((one.benchmark, one.metric), []).append((phase.name, one.value, one.stderr, one.baseline))
    gauges: list[Gauge] = []
    for (benchmark, metric), measured in results.items():
        baseline = measured[-1][3]
        edges = [value + sign * (stderr or 0) for _, value, stderr, _ in measured for sign in (-1, 1)]
        finite = [value for value in [*edges, baseline] if value is not None and math.isfinite(value)]
        bottom, largest = min([0.0, *finite]), max([0.0, *finite])
        top = largest + 0.15 * (largest - bottom) or 1.0
        top = min(top, 1.0) if 0 < largest <= 1 else top

        def position(value: float, bottom: float = bottom, top: float = top) -> float:
            return max(0.0, min(100.0, 100 * (value - bottom) / (top - bottom)))

        marks: list[Mark] = []
        for phase, value, stderr, _ in measured:
            error = stderr if stderr is not None and math.isfinite(stderr) else 0.0
            if math.isfinite(value):
                marks.append(Mark(phase, value, stderr, position(value), position(value - error), position(value + error)))
            else:
                marks.append(Mark(phase, value, None, None))
        at = position(baseline) if baseline is not None and math.isfinite(baseline) else None
        gauges.append(Gauge(benchmark, metric, baseline, at, bottom, top, tuple(marks)))
    return gauges


class MeasuredRow(NamedTuple):
    """One figure in words; `direction` is unclear if the interval has zero in it, or is missing."""

    what: str
    value: str
    parent: str
    difference: str
    interval: str
    smallest_effect: str
    floor: str
    direction: Direction
    not_compared: str


class MeasuredPhase(NamedTuple):
    """A phase's figures, and the record's of its own run."""

    phase: PhaseReport
    rows: tuple[MeasuredRow, ...]
    reported: tuple[RecordReport, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the record's figures are printed."""
        return tuple(dict.fromkeys(one.source for one in self.reported))


def measured_phases(report: Report) -> list[MeasuredPhase]:
    """The phases that were measured, or of which the record reported a score or a loss."""
    found: list[MeasuredPhase] = []
    for phase in report.phases:
        rows = tuple(row_of(one, report.baselines) for one in phase.measured)
        found.append(MeasuredPhase(phase, rows, tuple(one for one in phase.reported if one.is_measure)))
    return [one for one in found if one.rows or one.reported]


def row_of(measured: MeasuredReport, baselines: Mapping[str, float]) -> MeasuredRow:
    """The figure in words. The floor of bits per byte is the best of the simple models `baselines`."""
    low, high = measured.interval or (None, None)
    floor, direction = decimal(measured.floor, places=PLACES), "unclear"
    if baselines and not measured.higher_is_better:
        name = min(baselines, key=lambda name: baselines[name])
        floor = f"{decimal(baselines[name], places=PLACES)} ({name})"
    if low is not None and high is not None and not low <= 0 <= high:
        direction = "better" if (low > 0) == measured.higher_is_better else "worse"
    return MeasuredRow(
        what=measured.what,
        value=decimal(measured.value, places=PLACES) + (f" ± {decimal(measured.stderr, places=PLACES)}" if measured.stderr else ""),
        parent=decimal(measured.parent, places=PLACES),
        difference=_signed(measured.difference),
        interval=MISSING if low is None else f"{_signed(low)} to {_signed(high)}",
        smallest_effect=decimal(measured.smallest_effect, places=PLACES),
        floor=floor,
        direction=direction,
        not_compared=measured.not_compared,
    )


def _signed(value: float | None) -> str:
    if value is None:
        return MISSING
    return signed(value, places=PLACES) if math.isfinite(value) else "not finite"


@dataclass(frozen=True)
class Gap:
    """The distance of a phase to its parent: by component (or benchmark), of those that both have."""

    phase: str
    changes: tuple[tuple[str, float], ...]

    @property
    def mean(self) -> float:
        """Each counts the same."""
        return sum(change for _, change in self.changes) / len(self.changes)


def component_gaps(report: Report) -> list[Gap]:
    """Bits per byte of each component minus the parent's; a phase without a measured parent has none."""
    measured = {phase.name: phase.bits_per_byte for phase in report.phases}
    gaps: list[Gap] = []
    for phase in report.phases:
        before = measured.get(phase.parent or "", {})
        changes = ((name, phase.bits_per_byte[name] - before[name]) for name in sorted(phase.bits_per_byte.keys() & before.keys()))
        gaps.append(Gap(phase.name, tuple(one for one in changes if math.isfinite(one[1]))))
    return [gap for gap in gaps if gap.changes]


def benchmark_gaps(report: Report) -> list[Gap]:
    """Each benchmark's value minus the parent's, if the gate compared them."""
    gaps: list[Gap] = []
    for phase in report.phases:
        changes = [(one.what, one.difference) for one in phase.measured if one.higher_is_better and one.difference is not None]
        gaps.append(Gap(phase.name, tuple(one for one in changes if math.isfinite(one[1]))))
    return [gap for gap in gaps if gap.changes]


def report_markdown(report: Report, path: str, docs: str) -> str:
    """The page in the Prefect UI: the headline, a row a phase, the measured figures, and where to read on."""
    judged = [verdict.counts for phase in report.phases for verdict in phase.verdicts]
    lines = [f"**{report.headline}**", "", f"{verdicts_in_words(judged)}: {sum_counts(judged).shares}.", ""]
    lines += _table(
        ("phase", "state", "final loss", "bits per byte", "verdict", "checks"),
        [
            (
                phase.name,
                phase.state,
                decimal(phase.final_loss, places=3),
                decimal(phase.macro_bits_per_byte, places=3),
                standing_of(phase).word,
                phase.counts.shares if phase.verdicts else MISSING,
            )
            for phase in report.phases
        ],
    )
    phases = measured_phases(report)
    if rows := [(one.phase.name, *row[:7]) for one in phases for row in one.rows]:
        lines += ["", "## Measured", ""]
        lines += _table(("phase", "what", "value", "parent", "difference", "95 % interval", "smallest effect", "floor"), rows)
        measured = [phase for phase in report.phases if phase.macro_bits_per_byte is not None]
        across = [
            ("macro bits per byte", *(decimal(phase.macro_bits_per_byte, places=PLACES) for phase in measured)),
            ("of the moving average", *(decimal(phase.ema_macro_bits_per_byte, places=PLACES) for phase in measured)),
        ]
        for name, gaps in (("components' mean gap to the parent", component_gaps(report)), ("benchmarks'", benchmark_gaps(report))):
            means = {gap.phase: _signed(gap.mean) for gap in gaps}
            across.append((name, *(means.get(phase.name, MISSING) for phase in measured)))
        lines += ["", *_table(("", *(phase.name for phase in measured)), across)]
        if reported := [(one.phase.name, row.what, row.value, row.source) for one in phases for row in one.reported]:
            lines += ["", f"## Reported by the record{'' if report.scale == 'full' else ', at full scale: not to be compared'}", ""]
            lines += _table(("phase", "what", "reported", "where"), reported)
    if report.unused:
        lines += ["", "Accepted by the recipe, and not found: " + "; ".join(report.unused) + "."]
    return "\n".join([*lines, "", f"Report: `{path}`. Data Docs: `{docs}`."])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (head, ["---"] * len(head), *rows)]


def routing_of(rows: Sequence[Row], max_violation: float | None) -> RoutingReport | None:
    """The routers in the rows of a phase; None for a dense model. The load is that of the last row that has it.

    Args:
        max_violation: the phase's limit.
    """
    if not any("max_violation" in row for row in rows):
        return None

    def points(name: str) -> Points:
        return tuple((row["step"], row[name]) for row in rows if row.get(name) is not None)

    last = next((row for row in reversed(rows) if any(LOAD.fullmatch(name) for name in row)), None)
    by_layer: dict[int, dict[int, float]] = defaultdict(dict)
    for name, value in (last or {}).items():
        if (match := LOAD.fullmatch(name)) and value is not None:
            by_layer[int(match[1])][int(match[2])] = value
    loads = {layer: tuple(of_layer[expert] * len(of_layer) for expert in sorted(of_layer)) for layer, of_layer in sorted(by_layer.items())}
    return RoutingReport(
        max_violation=points("max_violation"),
        dead_experts=points("dead_experts"),
        router_entropy=points("router_entropy"),
        limit=max_violation,
        layers=tuple(loads),
        loads=tuple(loads.values()),
        loads_step=None if last is None else last["step"],
    )


def busiest_in_words(routing: RoutingReport) -> str:
    """The most loaded expert, and how many experts have no token."""
    every = [(load, layer, expert) for layer, loads in zip(routing.layers, routing.loads, strict=True) for expert, load in enumerate(loads)]
    load, layer, expert = max(every, key=lambda one: one[0])
    dead = sum(load == 0 for load, _, _ in every)
    said = f"expert {expert} of layer {layer} has {decimal(load, places=2)} times the mean"
    return f"{said}; {dead:,} of {len(every):,} experts have nothing" if dead else said
