"""`phasewise run`."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from flows.ancestors import phases_to_train
from flows.plan import check_as_written, check_mixtures, check_slices, check_sources, data_plan
from flows.recipes import load_target, split_target
from flows.recipes.recipe import Recipe, Scale
from flows.record import is_done, report_path
from flows.server import server_for
from flows.summary import run_summary
from flows.terminal import print_summary, shown_on_terminal
from tasks.home import Home
from tasks.progress import say


def run_recipe(target: str, scale: Scale, home: str | None, *, as_json: bool) -> dict[str, Any]:
    """Train what is not trained, show what came of it, and return it in the shape of `--json`.

    Raises:
        PhasewiseError: a phase was refused, or something stopped the run; what was reached is shown first.
    """
    recipe, phase = load_target(target, scale)
    phases = phases_to_train(recipe, phase)
    check_slices(recipe, phases)
    check_as_written(target, phases)
    check_mixtures(recipe, phases)
    place = Home.open(home, local_for="training")
    check_sources(recipe, place)
    what = f"`phasewise run {target}`"
    with place.held(what), shown_on_terminal():
        try:
            if is_done(recipe, phases, place):
                say(f"{target} at {scale} scale: everything is done already; nothing was run")
            else:
                with server_for(place, what):
                    from flows.train_recipe import train_recipe

                    train_recipe(split_target(target)[0], scale, str(place.root), phase.name if phase else None)
        finally:
            if not as_json and report_path(recipe, place).exists():
                print_outcome(recipe, place)
    return run_summary(recipe, place, data_plan(recipe, place))


def print_outcome(recipe: Recipe, home: Home) -> None:
    """The table, where the report is, and how to open the UI."""
    summary = run_summary(recipe, home, data_plan(recipe, home))
    console = Console()
    print_summary(console, summary)
    console.print(f"Report:     {summary['report']}", soft_wrap=True, highlight=False)
    console.print(f"Prefect UI: {_program()} up --home {home.root}", soft_wrap=True, highlight=False)


def _program() -> str:
    """How this program was called, so that the line can be copied."""
    return sys.argv[0] if Path(sys.argv[0]).name == "phasewise" else "phasewise"
