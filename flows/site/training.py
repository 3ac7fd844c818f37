"""How a phase trains: its numbers, its curves and its events, as the files say now."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from pydantic import TypeAdapter

from phasewise.tasks.report.charts import Figure, Line, curve, thinned
from phasewise.flows.site.metrics import Curves, points_of, recent
from phasewise.flows.site.shelf import PhaseFiles
from phasewise.flows.site.site import Site
from phasewise.tasks.training.time_breakdown import read_time_breakdown
from phasewise.trainer.base.wording import MISSING, about, count, decimal, plural, rate
from phasewise.trainer.config import Steps
from phasewise.trainer.passed_over import RollBack, roll_backs_in

SHOWN = (
    ("loss", "Loss", "nats a token"),
    ("learning_rate", "Learning rate", ""),
    ("grad_norm", "Gradient norm", "before clipping"),
    ("update_norm", "Update norm", ""),
    ("param_norm", "Weights' norm", ""),
    ("tokens_per_second", "Speed", "tokens/s"),
    ("max_violation", "Busiest expert above the mean", "share"),
)
KINDS_TO_LOOK_AT = {"stalled", "spike", "diverged", "rolled_back", "preempted"}


@dataclass(frozen=True)
class Tile:
    """A number with its name."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happened while the phase trained, or to its folder."""

    when: str
    kind: str
    step: str
    text: str

    @property
    def is_worrying(self) -> bool:
        """Whether somebody should look at it."""
        return self.kind.replace(" ", "_") in KINDS_TO_LOOK_AT


@dataclass(frozen=True)
class Training:
    """What is shown of a phase's training.

    Attributes:
        share: of its steps that are done, in percent; None where that is not known.
        notes: what a reader must know of the curves.
    """

    tiles: tuple[Tile, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    share: float | None
    is_alive: bool
    step: int | None
    loss: float | None


def training_of(site: Site, files: PhaseFiles) -> Training | None:
    """None where the phase has not trained a step."""
    curves = site.metrics.read(files.metrics, seconds=site.reads_within)
    if curves is None or not len(curves.steps):
        return None
    now = time.time()
    is_alive = files.is_alive(now)
    step = int(curves.last.get("step", curves.steps[-1]))
    return Training(
        tiles=tuple(_tiles(files, curves, step, is_alive=is_alive, now=now)),
        figures=tuple(figure for figure in (_figure(curves, *shown) for shown in SHOWN) if figure),
        notes=tuple(_notes(curves)),
        share=_share(files, step),
        is_alive=is_alive,
        step=step,
        loss=curves.last.get("loss"),
    )


def roll_backs_of(files: PhaseFiles) -> list[RollBack]:
    """The windows of data that were passed over; a list that does not read is among what is damaged."""
    if not files.passed_over:
        return []
    try:
        return roll_backs_in(files.passed_over, TypeAdapter(Steps[int]).validate_python(files.run.get("batch")))
    except (KeyError, TypeError, ValueError):
        return []


def events_of(files: PhaseFiles) -> list[Event]:
    """What its run wrote down, the last first, and the folders that were set aside."""
    written = [
        Event(
            str(one.get("time", MISSING)), str(one.get("kind", "event")).replace("_", " "), _step(one.get("step")), str(one.get("text", ""))
        )
        for one in files.events
    ]
    written.sort(key=lambda event: event.when, reverse=True)
    aside = [
        Event(_changed(files, name), "superseded", MISSING, f"what was trained before had other data or settings; it is kept in {name}")
        for name in files.superseded
    ]
    return written + aside


def pair_of_curves(site: Site, left: PhaseFiles, right: PhaseFiles) -> list[Figure]:
    """The curves of two phases over each other, from the first step of each."""
    read = [site.metrics.read(one.metrics, seconds=site.reads_within) for one in (left, right)]
    names = _two_names(left, right)
    figures: list[Figure | None] = []
    for column, title, unit in SHOWN:
        lines: list[Line] = []
        for place, (curves, files) in enumerate(zip(read, (left, right), strict=True)):
            if curves is not None and curves.has(column):
                lines.append(Line(names[place], thinned(curves.steps - (files.start_step or 0), curves.column(column)), place))
        note = " ".join(note for curves in read if curves is not None for note in _notes(curves)) if column == "loss" else ""
        figures.append(curve(title, lines, unit=unit, note=note))
    return [figure for figure in figures if figure]


def _two_names(left: PhaseFiles, right: PhaseFiles) -> tuple[str, str]:
    same = left.address[:2] == right.address[:2]
    return (left.address.phase, right.address.phase) if same else (str(left.address), str(right.address))


def _tiles(files: PhaseFiles, curves: Curves, step: int, *, is_alive: bool, now: float) -> Sequence[Tile]:
    stop = files.stop_step
    seconds = recent(curves, "step_seconds")
    left = about((stop - step) * seconds) if stop and seconds and is_alive and stop > step else MISSING
    last = curves.last
    measured = points_of(curves, "eval_loss")
    tiles = [
        Tile("step", f"{step:,}", f"of {stop:,}" if stop else ""),
        Tile("loss", _value(last, "loss"), "nats a token"),
        Tile(
            "held-out loss",
            decimal(measured[-1][1], places=4) if measured else MISSING,
            f"at step {measured[-1][0]:,.0f}" if measured else "",
        ),
        Tile("learning rate", rate(last.get("learning_rate")) if "learning_rate" in last else MISSING),
        Tile("gradient norm", _value(last, "grad_norm"), "before clipping"),
        Tile("weights' norm", _value(last, "param_norm")),
        Tile("speed", _speed(recent(curves, "tokens_per_second")), "tokens/s, median of 50"),
    ]
    if left != MISSING:
        tiles.append(Tile("time left", left, "at the pace of the last 50 steps"))
    if not files.result:
        tiles.append(Tile("last sign of life", _ago(files.last_sign, now), "" if is_alive else "not at work"))
    if files.result and (spent := read_time_breakdown(files.folder)):
        tiles.append(Tile("time", about(spent.wall_seconds)))
    if curves.is_whole:
        tiles.insert(1, Tile("tokens", count(int(_sum(curves, "tokens"))), "of this phase"))
    return tiles


def _notes(curves: Curves) -> list[str]:
    notes: list[str] = []
    if not curves.is_whole:
        notes.append(
            f"Drawn from {len(curves.steps):,} rows of a longer file, and a spike between two of them is missed; the rest is being read."
        )
    if curves.not_finite:
        notes.append(f"{plural(curves.not_finite, 'update')} had a loss or a norm that is no finite number: the curve has a gap there.")
    if curves.unreadable:
        notes.append(
            f"{plural(curves.unreadable, 'line')} of metrics.jsonl did not read and {'is' if curves.unreadable == 1 else 'are'} left out."
        )
    return notes


def _figure(curves: Curves, column: str, title: str, unit: str) -> Figure | None:
    if not curves.has(column):
        return None
    lines = [Line("training" if column == "loss" else title.lower(), thinned(curves.steps, curves.column(column)))]
    if column == "loss" and (measured := points_of(curves, "eval_loss")):
        lines.append(Line("held-out", [measured[:: max(1, len(measured) // 120)]], 1, is_dots=True))
    return curve(title, lines, unit=unit)


def _share(files: PhaseFiles, step: int) -> float | None:
    start, stop = files.start_step, files.stop_step
    if start is None or not stop or stop <= start:
        return None
    return round(max(0.0, min(100.0, 100 * (step - start) / (stop - start))), 1)


def _value(row: dict[str, float | None], name: str) -> str:
    if name not in row:
        return MISSING
    value = row[name]
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _speed(value: float | None) -> str:
    return MISSING if value is None else count(round(value))


def _sum(curves: Curves, name: str) -> float:
    return float(np.nansum(curves.column(name)))


def _ago(then: float | None, now: float) -> str:
    if then is None:
        return MISSING
    seconds = max(0.0, now - then)
    if seconds < 3:
        return "now"
    return f"{about(seconds)} ago" if seconds < 48 * 3600 else f"{datetime.fromtimestamp(then, UTC):%Y-%m-%d}"


def _step(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else MISSING


def _changed(files: PhaseFiles, name: str) -> str:
    try:
        changed = files.folder.with_name(name).stat().st_mtime
    except OSError:
        return MISSING
    return datetime.fromtimestamp(changed, UTC).isoformat(timespec="seconds")
