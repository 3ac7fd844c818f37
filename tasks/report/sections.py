"""Sections of a run's report: standings, tiles, mixtures, progress by component, benchmarks, comparison with the parent, routing."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from markupsafe import Markup

from phasewise.tasks.phase_state import State
from phasewise.tasks.report.charts import stacked_bar
from phasewise.tasks.report.contents import MeasuredReport, PhaseReport, RecordReport, Report, RoutingReport
from phasewise.trainer.base.wording import MISSING, count, decimal, signed
from phasewise.trainer.config import Component, MixtureShares
from phasewise.trainer.metrics import Row
from phasewise.validations.verdict import sum_counts, verdicts_in_words

PLACES = 3
MIN_BLOCK_PERCENT = 4.0
# Pastel versions of Paul Tol's colour-blind-safe "muted" set: dark text is readable on every one and on its shades.
HUES = ("#84abd6", "#e3cf86", "#7cc4b5", "#e09aa5", "#a9dbef", "#bfbf70", "#c99bc8", "#bd8aa3")
NEUTRAL = "#c6cdd4"
LOAD = re.compile(r"expert_load/(\d+)/(\d+)")


class Standing(NamedTuple):
    """The state of a phase. `kind` sets colour and mark."""

    kind: Literal["passed", "warned", "failed", "waiting"]
    word: str


def standing_of(phase: PhaseReport) -> Standing:
    """Return the standing of a phase: a failed verdict, the state, or the counts of its checks."""
    failed = " and ".join(verdict.name for verdict in phase.verdicts if not verdict.passes and verdict.ruling != "waits")
    if failed or phase.state == State.REFUSED:
        return Standing("failed", f"{failed} failed" if failed else "refused")
    if phase.state != State.DONE:
        return Standing("waiting" if phase.state == State.NOT_STARTED else "warned", phase.state)
    if decided := [verdict.name for verdict in phase.verdicts if verdict.ruling == "approved"]:
        return Standing("warned", f"{' and '.join(decided)} let pass by a person")
    counts = sum_counts(verdict.counts for verdict in phase.verdicts)
    return Standing(counts.standing, counts.standing_words) if phase.verdicts else Standing("waiting", "not judged")


class Tile(NamedTuple):
    """A figure with label and note."""

    label: str
    value: str
    note: str = ""


def tiles_of(report: Report) -> list[Tile]:
    """Summarize phases, tokens, parameters, held-out bits per byte and verdicts."""
    done = [phase for phase in report.phases if phase.state == State.DONE]
    verdicts = [verdict.counts for phase in report.phases for verdict in phase.verdicts]
    measured = [phase for phase in report.phases if phase.macro_bits_per_byte is not None]
    value, note = MISSING, "not measured"
    if measured:
        first, last = measured[0], measured[-1]
        value = decimal(last.macro_bits_per_byte, places=2)
        note = f"after {last.name}" if first is last else f"{decimal(first.macro_bits_per_byte, places=2)} after {first.name}"
        if report.baselines:
            name, best = min(report.baselines.items(), key=lambda one: one[1])
            note += f" · {name} {decimal(best, places=2)}"
    words = f"{verdicts_in_words(verdicts)}: {sum_counts(verdicts).shares}"
    return [
        Tile("phases trained", f"{len(done)} of {len(report.phases)}", f"to step {done[-1].stop_step:,}" if done else "none yet"),
        Tile("tokens trained on", count(sum(phase.tokens for phase in done)), f"{count(report.parameters)} parameters"),
        Tile("held-out bits per byte", value, note),
        Tile("verdicts passed", f"{sum(verdict.passes for verdict in verdicts)} of {len(verdicts)}", words),
    ]


class Segment(NamedTuple):
    """A component in a block."""

    name: Component
    label: str
    percent: float
    colour: str


class Block(NamedTuple):
    """A family of components, or the remaining components."""

    name: str
    percent: float
    segments: tuple[Segment, ...]


class Span(NamedTuple):
    """A bar for the mixture from `start_step` to `stop_step`. `shares` has every component."""

    phase: str
    state: str
    start_step: int
    stop_step: int
    blocks: tuple[Block, ...]
    shares: MixtureShares


def spans_of(report: Report) -> list[Span]:
    """Return a bar for every mixture. Components of a family share their name's first word and a hue. Small families are last."""
    every = [shares for phase in report.phases for _, shares in phase.mixture]
    by_word: dict[str, list[Component]] = defaultdict(list)
    for component in dict.fromkeys(name for shares in every for name in shares):
        by_word[re.split(r"[_\-/ .]", component, maxsplit=1)[0]].append(component)
    families = {name: word if word and len(names) > 1 else name for word, names in by_word.items() for name in names}
    peaks: dict[str, float] = defaultdict(float)
    for shares in every:
        for family in {families[name] for name in shares}:
            peaks[family] = max(peaks[family], sum(share for name, share in shares.items() if families[name] == family))
    colours: dict[Component, str] = {}
    for rank, family in enumerate(sorted(peaks, key=lambda family: (-peaks[family], family))):
        members = [name for name in families if families[name] == family]
        members.sort(key=lambda name: (-max(shares.get(name, 0.0) for shares in every), name))
        hue = HUES[rank] if rank < len(HUES) else NEUTRAL
        for place, name in enumerate(members):
            white = 0.62 * place / max(len(members) - 1, 1)
            channels = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
            colours[name] = "#" + "".join(f"{round(channel + (255 - channel) * white):02x}" for channel in channels)
    spans: list[Span] = []
    for phase in report.phases:
        stops = [start for start, _ in phase.mixture[1:]] + [phase.stop_step]
        for (start, shares), stop in zip(phase.mixture, stops, strict=False):
            names_of: dict[str, list[Component]] = defaultdict(list)
            for name, share in shares.items():
                if share > 0:
                    names_of[families[name]].append(name)
            sums = {family: sum(shares[name] for name in names) for family, names in names_of.items()}
            blocks: list[Block] = []
            for family in sorted(sums, key=lambda family: (-sums[family], family)):
                if sums[family] >= MIN_BLOCK_PERCENT:
                    names = sorted(names_of[family], key=lambda name: (-shares[name], name))
                    labels = [name.removeprefix(family).lstrip("_-/ .") or name for name in names]
                    segments = (Segment(name, label, shares[name], colours[name]) for name, label in zip(names, labels, strict=True))
                    blocks.append(Block(family if len(names) > 1 else names[0], sums[family], tuple(segments)))
            if small := [name for family, names in names_of.items() if sums[family] < MIN_BLOCK_PERCENT for name in names]:
                rest = sum(shares[name] for name in small)
                label, colour = (small[0], colours[small[0]]) if len(small) == 1 else (f"other ({len(small)})", NEUTRAL)
                blocks.append(Block(label, rest, (Segment(label, label, rest, colour),)))
            spans.append(Span(phase.name, phase.state, start, stop, tuple(blocks), shares))
    return spans


class Cell(NamedTuple):
    """Bits per byte of a component after a phase. `change` is relative to the parent. A negative `strength` in [-1, 1] is better."""

    value: float | None
    change: float | None
    strength: float
    trained_on: bool


class HeatRow(NamedTuple):
    """A component or the macro mean, with a cell for each phase."""

    name: str
    cells: tuple[Cell, ...]


def component_rows(phases: Sequence[PhaseReport]) -> list[HeatRow]:
    """Return a row for each component, sorted by the phase of its largest improvement, so that improvements form a staircase."""
    names = {name for phase in phases for name in phase.bits_per_byte}
    rows = _heat_rows(phases, {name: {phase.name: phase.bits_per_byte.get(name) for phase in phases} for name in names})
    keyed: list[tuple[int, float, str, HeatRow]] = []
    for row in rows:
        known = [(cell.change, place) for place, cell in enumerate(row.cells) if cell.change is not None]
        change, place = min(known, default=(0.0, len(row.cells)))
        keyed.append((place, change, row.name, row))
    return [row for *_, row in sorted(keyed, key=lambda one: one[:3])]


def macro_row(phases: Sequence[PhaseReport], over: tuple[Component, ...] = ()) -> HeatRow:
    """Return the macro mean over the components `over`, by default over each phase's. Only equal components give a change."""
    measured = {phase.name: over or frozenset(phase.bits_per_byte) for phase in phases}
    alike = {phase.name for phase in phases if measured.get(phase.parent or "") == measured[phase.name]}
    [row] = _heat_rows(phases, {"macro": {phase.name: phase.macro_bits_per_byte for phase in phases}}, alike)
    return row


def _heat_rows(
    phases: Sequence[PhaseReport], values: Mapping[str, Mapping[str, float | None]], comparable: set[str] | None = None
) -> list[HeatRow]:
    changes: dict[tuple[str, str], float] = {}
    for name, of_name in values.items():
        for phase in phases if comparable is None else [phase for phase in phases if phase.name in comparable]:
            value, before = of_name[phase.name], of_name.get(phase.parent or "")
            if value is not None and before is not None and math.isfinite(value - before):
                changes[name, phase.name] = value - before
    sizes = sorted(map(abs, changes.values()))
    scale = sizes[math.ceil(0.95 * len(sizes)) - 1] if sizes else 0.0  # robust to an outlier
    rows: list[HeatRow] = []
    for name, of_name in values.items():
        cells: list[Cell] = []
        for phase in phases:
            change = changes.get((name, phase.name))
            strength = max(-1.0, min(1.0, change / scale)) if change is not None and scale else 0.0
            trained_on = any(shares.get(name, 0.0) > 0 for _, shares in phase.mixture)
            cells.append(Cell(of_name[phase.name], change, strength, trained_on))
        rows.append(HeatRow(name, tuple(cells)))
    return rows


class Mark(NamedTuple):
    """A benchmark after a phase, at a position from 0 to 100. `low` and `high` are one standard error away."""

    phase: str
    value: float
    stderr: float | None
    position: float | None
    low: float = 0.0
    high: float = 0.0


class Gauge(NamedTuple):
    """A metric over the phases, on a scale from `bottom` to `top`."""

    benchmark: str
    metric: str
    baseline: float | None
    baseline_position: float | None
    bottom: float
    top: float
    marks: tuple[Mark, ...]


def gauges_of(report: Report) -> list[Gauge]:
    """Return a gauge for each benchmark and metric in order of appearance, from zero to above the largest value."""
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
        marks: list[Mark] = []
        for phase, value, stderr, _ in measured:
            if math.isfinite(value):
                error = stderr if stderr is not None and math.isfinite(stderr) else 0.0
                places = np.interp([value, value - error, value + error], (bottom, top), (0, 100)).tolist()
                marks.append(Mark(phase, value, stderr, *places))
            else:
                marks.append(Mark(phase, value, None, None))
        has_place = baseline is not None and math.isfinite(baseline)
        place = float(np.interp(baseline or 0.0, (bottom, top), (0, 100))) if has_place else None
        gauges.append(Gauge(benchmark, metric, baseline, place, bottom, top, tuple(marks)))
    return gauges


class TimeUse(NamedTuple):
    """The wall time of a phase as a bar, and as rows: number in the bar, bucket, seconds, percent. The last row is the total."""

    bar: Markup
    rows: tuple[tuple[str, str, str, str], ...]


def time_use(phase: str, seconds: Mapping[str, float]) -> TimeUse | None:
    """Draw the seconds of a phase by bucket, in the order of the buckets. Return None without any time."""
    spent = [(name, value) for name, value in seconds.items() if value > 0]
    if not spent:
        return None
    total = sum(value for _, value in spent)
    colours = dict(zip(seconds, (*HUES, *HUES), strict=False)) | dict.fromkeys(("idle", "queue"), NEUTRAL)
    rows = [(str(number), name, value) for number, (name, value) in enumerate(spent, start=1)]
    return TimeUse(
        stacked_bar(f"Wall time of {phase}", [(name, value, colours[name]) for name, value in spent]),
        tuple((number, name, f"{value:,.1f}", f"{100 * value / total:.1f}") for number, name, value in [*rows, ("", "total", total)]),
    )


class MeasuredRow(NamedTuple):
    """A formatted figure. `direction` is unclear without an interval, or if the interval contains zero."""

    what: str
    value: str
    parent: str
    difference: str
    interval: str
    smallest_effect: str
    floor: str
    direction: Literal["better", "worse", "unclear"]
    not_compared: str


class MeasuredPhase(NamedTuple):
    """Measured figures of a phase, and its published figures."""

    phase: PhaseReport
    rows: tuple[MeasuredRow, ...]
    reported: tuple[RecordReport, ...]


def measured_phases(report: Report) -> list[MeasuredPhase]:
    """Return the phases with measured figures, or with published scores or losses."""
    found: list[MeasuredPhase] = []
    for phase in report.phases:
        rows = tuple(row_of(one, report.baselines) for one in phase.measured)
        found.append(MeasuredPhase(phase, rows, tuple(one for one in phase.reported if one.is_measure)))
    return [one for one in found if one.rows or one.reported]


def row_of(measured: MeasuredReport, baselines: Mapping[str, float]) -> MeasuredRow:
    """Format a figure. The floor of bits per byte is the best of the n-gram `baselines`."""
    floor, direction, interval = decimal(measured.floor, places=PLACES), "unclear", MISSING
    if baselines and not measured.higher_is_better:
        name, best = min(baselines.items(), key=lambda one: one[1])
        floor = f"{decimal(best, places=PLACES)} ({name})"
    if measured.interval is not None:
        low, high = measured.interval
        interval = f"{_signed(low)} to {_signed(high)}"
        if not low <= 0 <= high:
            direction = "better" if (low > 0) == measured.higher_is_better else "worse"
    return MeasuredRow(
        what=measured.what,
        value=decimal(measured.value, places=PLACES) + (f" ± {decimal(measured.stderr, places=PLACES)}" if measured.stderr else ""),
        parent=decimal(measured.parent, places=PLACES), difference=_signed(measured.difference), interval=interval,
        smallest_effect=decimal(measured.smallest_effect, places=PLACES), floor=floor, direction=direction,
        not_compared=measured.not_compared,
    )  # fmt: skip


def _signed(value: float | None) -> str:
    return signed(value, places=PLACES) if value is not None and math.isfinite(value) else decimal(value, places=PLACES)


class Gap(NamedTuple):
    """The differences of a phase from its parent by shared component or benchmark, and their unweighted mean."""

    phase: str
    changes: tuple[tuple[str, float], ...]
    mean: float


def gaps_of(changes: Mapping[str, Iterable[tuple[str, float]]]) -> list[Gap]:
    """Return the gap of each phase with finite changes."""
    finite = {phase: tuple(one for one in of_phase if math.isfinite(one[1])) for phase, of_phase in changes.items()}
    return [Gap(phase, found, sum(change for _, change in found) / len(found)) for phase, found in finite.items() if found]


def parent_gaps(report: Report) -> tuple[list[Gap], list[Gap]]:
    """Return the gaps of bits per byte by component, and the gaps of the benchmarks that the gate compared."""
    measured = {phase.name: phase.bits_per_byte for phase in report.phases}
    components: dict[str, list[tuple[str, float]]] = {}
    benchmarks: dict[str, list[tuple[str, float]]] = {}
    for phase in report.phases:
        bits, before = phase.bits_per_byte, measured.get(phase.parent or "", {})
        components[phase.name] = [(name, bits[name] - before[name]) for name in sorted(bits.keys() & before.keys())]
        compared = [one for one in phase.measured if one.higher_is_better]
        benchmarks[phase.name] = [(one.what, one.difference) for one in compared if one.difference is not None]
    return gaps_of(components), gaps_of(benchmarks)


def report_markdown(report: Report, path: str, docs: str) -> str:
    """Render the summary in the Prefect UI: headline, a row for each phase, measured figures, and paths of the full report."""
    judged = [verdict.counts for phase in report.phases for verdict in phase.verdicts]
    lines = [f"**{report.headline}**", "", f"{verdicts_in_words(judged)}: {sum_counts(judged).shares}.", ""]
    rows: list[Sequence[str]] = []
    for phase in report.phases:
        loss, macro = (decimal(value, places=PLACES) for value in (phase.final_loss, phase.macro_bits_per_byte))
        shares = sum_counts(verdict.counts for verdict in phase.verdicts).shares if phase.verdicts else MISSING
        rows.append((phase.name, phase.state, loss, macro, standing_of(phase).word, shares))
    lines += _table(("phase", "state", "final loss", "bits per byte", "verdict", "checks"), rows)
    phases = measured_phases(report)
    if figures := [(one.phase.name, *row[:7]) for one in phases for row in one.rows]:
        lines += ["", "## Measured", ""]
        lines += _table(("phase", "what", "value", "parent", "difference", "95 % interval", "smallest effect", "floor"), figures)
        measured = [phase for phase in report.phases if phase.macro_bits_per_byte is not None]
        across = [
            ("macro bits per byte", *(decimal(phase.macro_bits_per_byte, places=PLACES) for phase in measured)),
            ("of the moving average", *(decimal(phase.ema_macro_bits_per_byte, places=PLACES) for phase in measured)),
        ]
        for name, gaps in zip(("components' mean gap to the parent", "benchmarks'"), parent_gaps(report), strict=True):
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
    """Summarize routing metrics of a phase with the last recorded load, or return None for a dense model."""
    if not any("max_violation" in row for row in rows):
        return None
    points = {
        name: tuple((row["step"], row[name]) for row in rows if row.get(name) is not None)
        for name in ("max_violation", "dead_experts", "router_entropy")
    }
    last = next((row for row in reversed(rows) if any(LOAD.fullmatch(name) for name in row)), None)
    by_layer: dict[int, dict[int, float]] = defaultdict(dict)
    for name, value in (last or {}).items():
        if (match := LOAD.fullmatch(name)) and value is not None:
            by_layer[int(match[1])][int(match[2])] = value
    loads = {layer: tuple(of_layer[expert] * len(of_layer) for expert in sorted(of_layer)) for layer, of_layer in sorted(by_layer.items())}
    step = None if last is None else last["step"]
    return RoutingReport(**points, limit=max_violation, layers=tuple(loads), loads=tuple(loads.values()), loads_step=step)


def busiest_in_words(routing: RoutingReport) -> str:
    """Describe the most loaded expert and the number of idle experts."""
    every = [(load, layer, expert) for layer, loads in zip(routing.layers, routing.loads, strict=True) for expert, load in enumerate(loads)]
    load, layer, expert = max(every, key=lambda one: one[0])
    dead = sum(load == 0 for load, _, _ in every)
    said = f"expert {expert} of layer {layer} has {decimal(load, places=2)} times the mean"
    return f"{said}; {dead:,} of {len(every):,} experts have nothing" if dead else said
