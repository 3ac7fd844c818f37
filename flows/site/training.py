"""Numbers, curves and events of a phase's training."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from pydantic import TypeAdapter

from phasewise.flows.site.metrics import Curves
from phasewise.flows.site.outcome import topics_of
from phasewise.flows.site.shelf import PhaseFiles, known
from phasewise.flows.site.site import ShownState, Site
from phasewise.flows.trace.causes import MIN_STD, WINDOW
from phasewise.tasks.phase_state import State
from phasewise.tasks.report.charts import MAX_INTERVALS, Figure, Line, curve, means, thinned
from phasewise.tasks.report.sections import Tile
from phasewise.tasks.training.time_breakdown import read_attempts, read_open_attempt, read_time_breakdown
from phasewise.trainer.base.run_folder import SUPERSEDED, RunFolder
from phasewise.trainer.base.wording import MISSING, about, count, decimal, moment, plural, rate
from phasewise.trainer.config import Steps
from phasewise.trainer.skipped_steps import RollBack, roll_backs_in

SHOWN = (
    ("loss", "Loss", "nats a token"),
    ("learning_rate", "Learning rate", ""),
    ("grad_norm", "Gradient norm", "before clipping"),
    ("update_norm", "Update norm", ""),
    ("param_norm", "Weights' norm", ""),
    ("tokens_per_second", "Speed", "tokens/s"),
    ("max_violation", "Busiest expert above the mean", "share"),
)
MAX_SPIKES, MIN_SPIKE = 3, 5.0
WORRYING = {"stalled", "spike", "diverged", "rolled_back", "preempted"}


class Event(NamedTuple):
    """An event of the training or of its folder."""

    when: str
    kind: str
    step: str
    text: str
    is_worrying: bool = False


@dataclass(frozen=True)
class Training:
    """Numbers and curves of a training. `share`: percentage of finished steps, or None if unknown."""

    tiles: tuple[Tile, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    share: float | None
    step: int
    loss: float | None
    spikes: tuple[tuple[int, float], ...] = ()  # step and score, the largest first


def training_of(site: Site, files: PhaseFiles, state: ShownState) -> Training | None:
    """Return None before the first step."""
    curves = site.metrics.read(RunFolder(files.folder).metrics, seconds=site.reads_within)
    if curves is None or not len(curves.steps):
        return None
    now = time.time()
    is_alive, step = state.word == State.TRAINING, int(curves.last.get("step", curves.steps[-1]))
    figures: list[Figure | None] = []
    for column, title, unit in SHOWN:
        lines = [line_of("training" if column == "loss" else title.lower(), [(curves, 0)], column)]
        if column == "loss" and (measured := curves.points("eval_loss")):
            lines.append(Line("held-out", [measured[:: max(1, len(measured) // 120)]], 1, is_dots=True))
        figures.append(curve(title, lines, unit=unit) if lines[0].parts else None)
    start, stop = files.start_step, files.stop_step
    share = None
    if start is not None and stop and stop > start:
        share = round(max(0.0, min(100.0, 100 * (step - start) / (stop - start))), 1)
    return Training(
        tiles=tuple(_tiles(files, curves, step, is_alive=is_alive, now=now)),
        figures=tuple(figure for figure in figures if figure),
        notes=tuple(_notes(curves)),
        share=share,
        step=step,
        loss=curves.last.get("loss"),
        spikes=spikes_of(curves),
    )


def spikes_of(curves: Curves) -> tuple[tuple[int, float], ...]:
    """Return step and score of the losses farthest above the `WINDOW` losses before, in standard deviations, at least `MIN_SPIKE`."""
    points = np.array(curves.points("loss"))
    if len(points) <= WINDOW or not curves.is_whole:
        return ()
    losses = points[:, 1]
    sums, squares = (np.cumsum(np.concatenate([[0.0], values])) for values in (losses - losses[-1], (losses - losses[-1]) ** 2))
    means = (sums[WINDOW:-1] - sums[: -WINDOW - 1]) / WINDOW
    stds = np.sqrt(np.maximum((squares[WINDOW:-1] - squares[: -WINDOW - 1]) / WINDOW - means**2, MIN_STD**2))
    scores = (losses[WINDOW:] - losses[-1] - means) / stds
    return tuple(
        (int(points[WINDOW + place, 0]), float(scores[place])) for place in np.argsort(-scores)[:MAX_SPIKES] if scores[place] >= MIN_SPIKE
    )


def roll_backs_of(files: PhaseFiles) -> list[RollBack]:
    """Return the skipped windows of data. A damaged list gives none, and appears among the damaged files."""
    if not files.passed_over:
        return []
    try:
        return roll_backs_in(files.passed_over, TypeAdapter(Steps[int]).validate_python(files.run.get("batch")))
    except (KeyError, TypeError, ValueError):
        return []


def events_of(files: PhaseFiles) -> list[Event]:
    """Return the events of the run, last first."""
    events: list[Event] = []
    for one in files.events:
        step = one.get("step")
        shown = f"{step:,}" if isinstance(step, int) and not isinstance(step, bool) else MISSING
        kind = str(one.get("kind", "event")).replace("_", " ")
        events.append(Event(str(one.get("time", MISSING)), kind, shown, str(one.get("text", "")), kind.replace(" ", "_") in WORRYING))
    events.sort(key=lambda event: event.when, reverse=True)
    return events


class Attempt(NamedTuple):
    """An attempt at the current or an earlier training of a phase. `changes`: topics of the settings that differ from the current ones."""

    training: str
    began: str
    steps: str
    duration: str
    ended: str
    loss: str
    changes: str


def history_of(site: Site, files: PhaseFiles) -> list[Attempt]:
    """Return the attempts at the phase, of the current training and of earlier ones with other data or settings, last first."""
    rows: list[tuple[float, Attempt]] = []
    for name in (files.folder.name, *files.superseded):
        folder = RunFolder(files.folder.with_name(name))
        run, result = known(site.shelf.files.json(folder.run_file)), known(site.shelf.files.json(folder.result))
        is_now, now = name == files.folder.name, read_open_attempt(folder.path)
        topics = [] if is_now or not (run and files.run) else topics_of([files.run, run])[0]
        every = [*read_attempts(folder.path), *([now] if now else [])]
        for place, attempt in enumerate(every):
            is_last = attempt is every[-1]
            live = is_now and files.work.is_live and attempt is now
            ended = "running" if live else "lost" if not attempt.is_whole else "trained" if is_last and result else "stopped"
            shown = Attempt(
                training="current" if is_now else name.partition(SUPERSEDED)[2],
                began=moment(datetime.fromtimestamp(attempt.started_at, UTC).isoformat()) if attempt.started_at else MISSING,
                steps=f"{attempt.from_step:,} → {attempt.to_step:,}",
                duration=about(attempt.wall_seconds).removeprefix("about "),
                ended=ended,
                loss=decimal(result.get("final_loss"), places=3) if is_last else MISSING,
                changes=", ".join(topic.name for topic in topics) if place == 0 else "",
            )
            rows.append((attempt.started_at, shown))
        if not every and not is_now:
            rows.append((0.0, Attempt(name.partition(SUPERSEDED)[2], MISSING, MISSING, MISSING, "archived", MISSING, MISSING)))
    return [row for _, row in sorted(rows, key=lambda one: -one[0])]


def curves_of(site: Site, groups: Sequence[Sequence[PhaseFiles]]) -> list[Figure]:
    """Return figures with a line for each group, aligned at the first steps. Phases of a group differ only in their seeds."""
    is_same_recipe = len({files.address[:2] for group in groups for files in group}) == 1
    read: list[tuple[str, list[tuple[Curves, int]]]] = []
    for group in groups:
        found = [(site.metrics.read(RunFolder(files.folder).metrics, seconds=site.reads_within), files.start_step or 0) for files in group]
        name = group[0].address.phase if is_same_recipe else str(group[0].address)
        read.append((f"{name} × {len(group)} seeds" if len(group) > 1 else name, [(curves, start) for curves, start in found if curves]))
    notes = " ".join(dict.fromkeys(note for _, runs in read for curves, _ in runs for note in _notes(curves)))
    figures: list[Figure | None] = []
    for column, title, unit in SHOWN:
        lines = [line_of(name, runs, column, place) for place, (name, runs) in enumerate(read) if runs]
        figures.append(curve(title, lines, unit=unit, note=notes if column == "loss" else ""))
    return [figure for figure in figures if figure]


def line_of(name: str, runs: Sequence[tuple[Curves, int]], column: str, place: int = 0) -> Line:
    """Return the curve of a run, or the mean of several runs at their common steps with their range. Each run has its first step."""
    steps, values = runs[0][0].steps - runs[0][1], runs[0][0].columns[column]
    spread: list[tuple[float, float, float]] = []
    if len(runs) > 1:
        by_step = [dict(zip((curves.steps - start).tolist(), curves.columns[column].tolist(), strict=True)) for curves, start in runs]
        steps = np.array(sorted(set(by_step[0]).intersection(*by_step[1:])), dtype=float)
        every = np.array([[values[step] for step in steps.tolist()] for values in by_step])
        values = every.mean(axis=0)
        low, high = (means(steps, edge) for edge in (every.min(axis=0), every.max(axis=0)))
        spread = [(step, least, greatest) for (step, least), (_, greatest) in zip(low, high, strict=True)]
    to_smooth = None if column == "learning_rate" else means(steps, values) if len(steps) > MAX_INTERVALS else ()
    return Line(name, thinned(steps, values), place, means=to_smooth, spread=spread)


def _tiles(files: PhaseFiles, curves: Curves, step: int, *, is_alive: bool, now: float) -> list[Tile]:
    def value(name: str) -> str:
        if name not in curves.last:
            return MISSING
        found = curves.last[name]
        return "not finite" if found is None or not math.isfinite(found) else f"{found:.4g}"

    stop, seconds, speed = files.stop_step, curves.recent("step_seconds"), curves.recent("tokens_per_second")
    measured = curves.points("eval_loss")
    tiles = [Tile("step", f"{step:,}", f"of {stop:,}" if stop else "")]
    if curves.is_whole:
        tiles.append(Tile("tokens", count(int(np.nansum(curves.columns["tokens"]))), "of this phase"))
    tiles += [
        Tile("loss", value("loss"), "nats a token"),
        Tile("held-out loss", decimal(measured[-1][1], places=4), f"at step {measured[-1][0]:,.0f}")
        if measured
        else Tile("held-out loss", MISSING),
        Tile("learning rate", rate(curves.last.get("learning_rate")) if "learning_rate" in curves.last else MISSING),
        Tile("gradient norm", value("grad_norm"), "before clipping"),
        Tile("weights' norm", value("param_norm")),
        Tile("speed", MISSING if speed is None else count(round(speed)), "tokens/s, median of 50"),
    ]
    if stop and seconds and is_alive and stop > step:
        tiles.append(Tile("time left", about((stop - step) * seconds), "at the pace of the last 50 steps"))
    if not files.result:
        ago = MISSING
        if files.last_sign is not None:
            age = max(0.0, now - files.last_sign)
            ago = f"{about(age)} ago" if age < 48 * 3600 else f"{datetime.fromtimestamp(files.last_sign, UTC):%Y-%m-%d}"
            ago = "now" if age < 3 else ago
        tiles.append(Tile("last sign of life", ago, "" if is_alive else "not active"))
    elif spent := read_time_breakdown(files.folder):
        tiles.append(Tile("time", about(spent.wall_seconds)))
    return tiles


def _notes(curves: Curves) -> list[str]:
    notes: list[str] = []
    if not curves.is_whole:
        rows = f"{len(curves.steps):,} rows of a longer file"
        notes.append(f"Drawn from {rows}, so a spike between two of them is missed. The rest is being read.")
    if curves.not_finite:
        notes.append(f"{plural(curves.not_finite, 'update')} had a loss or a norm that is not finite: the curve has a gap there.")
    if curves.unreadable:
        verb = "is" if curves.unreadable == 1 else "are"
        notes.append(f"{plural(curves.unreadable, 'line')} of metrics.jsonl could not be parsed and {verb} left out.")
    return notes
