"""`phasewise preflight`."""

from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table

from flows.recipes import load_target, load_written, split_target
from flows.stages import stages_of
from tasks.home import Home
from tasks.preflight.launcher import versions
from tasks.preflight.preflight import preflight_stage
from tasks.preflight.slices import find_slice
from tasks.progress import say

Report = dict[str, Any]
MIN_WIDTH = 120
"""A table that is read from a file, or scrolled, rather than cut."""


def preflight_target(target: str, slice_name: str | None, home: str | None, *, machine_code: bool = False) -> Report:
    """Every stage of the target at full scale, or as it is written where its sizes are its own, in the shape of `--json`.

    Raises:
        PhasewiseError: no such recipe or slice, no compiler, or the compiler failed.
    """
    written = load_written(split_target(target)[0])
    recipe, phase = load_target(target, "own" if written.scale == "own" else "full")
    phases = [phase] if phase else list(recipe.phases)
    stages = stages_of(phases, slice_name)
    for stage in stages:
        find_slice(stage.slice)
    if stages:
        versions()
    place, reports = Home.open(home), list[Report]()
    for stage in stages:
        say(f"preflight of {stage.words}")
        reports.append(preflight_stage(stage, place, machine_code=machine_code))
    away = {stage.phase for stage in stages}
    return {"recipe": recipe.name, "phases": reports, "local": [one.name for one in phases if one.name not in away]}


def print_preflight(report: Report) -> None:
    """A table, then what was changed to make each stage fit."""
    console = Console(highlight=False)
    console.width = max(console.width, MIN_WIDTH)
    if report["phases"]:
        console.print(_table(report["phases"]))
    for stage in report["phases"]:
        console.print(told(stage), soft_wrap=True, markup=False)
    if report["local"]:
        console.print(f"On this machine, nothing to compile: {', '.join(report['local'])}.", soft_wrap=True, markup=False)


def _table(stages: list[Report]) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in ("phase", "slice"):
        table.add_column(name, no_wrap=True)
    for name in HEADINGS:
        table.add_column(name, justify="right", no_wrap=True)
    for stage in stages:
        table.add_row(stage["phase"], stage["slice"], *cells(stage))
    return table


HEADINGS = ("batch", "GiB a chip", "FLOPs a step", "s a step", "bound by", "days", "chip-hours")


def cells(stage: Report) -> list[str]:
    """The figures of a stage, under `HEADINGS`."""
    memory = stage["gib_per_chip"]
    needs = "–" if memory["peak"] is None else f"{memory['peak']:.1f} of {memory['limit']:.2f}"
    if not stage["fits"]:
        return [f"{stage['batch_sequences']:,}", needs, "does not fit", "–", "–", "–", "–"]
    return [
        f"{stage['batch_sequences']:,}",
        needs,
        f"{stage['flops_per_step']:.2e}",
        f"{stage['step_seconds']:.2f}",
        stage["roofline_seconds"]["binds"],
        f"{stage['days']:,.1f}",
        f"{stage['chip_hours']:,}",
    ]


def told(stage: Report) -> str:
    """What a stage took to fit, or why it does not, in a line."""
    who = f"{stage['phase']} on {stage['slice']}, {stage['batch_sequences']:,} sequences"
    if not stage["fits"]:
        return f"{who}: {stage['reason']}"
    cost = 100 * stage["flops_recomputed"] / stage["flops_per_step"]
    text = f"{who}: {stage['plan']}; {cost:.0f} % more FLOPs than the model's"
    tried = "; ".join(f"{one['plan']}: {one['reason']}" for one in stage["tried"])
    return f"{text} ({tried})" if tried else text
