"""`phasewise try`, `figures` and `mixture`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table, print_words, shown_on_terminal
from phasewise.flows.experiments.arms import plan_experiment
from phasewise.flows.experiments.result import PLACES, words_of
from phasewise.flows.prefect.server import server_for
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve, resolving_once
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.wording import decimal, near


@resolving_once()
def try_target(target: str, scale: Scale, home: str | None, arms: Sequence[str], seeds: int, control: str | None) -> dict[str, Any]:
    """Train the unfinished runs of an experiment, and return the result in the shape of `--json`."""
    with shown_on_terminal():
        experiment = plan_experiment(target, scale, home, arms, seeds, control)
        resolved, purpose = experiment.resolved, f"`phasewise try {target}`"
        resolved.home.make_ready()
        with resolved.held(purpose), server_for(resolved.home, purpose):
            from phasewise.flows.try_phase import try_phase

            given = (resolved.recipe_name, experiment.phase.name, tuple(arms), seeds, control)
            return try_phase(*given, scale, str(resolved.home.root), resolved.settings)


def run_figures(names: Sequence[str], home: str | None) -> list[dict[str, Any]]:
    """Run the named figures, by default every figure, and return the results. Finished runs are reused."""
    from phasewise.flows.experiments.figures import declared_figures, run_figure

    known = declared_figures()
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"no figure is called {unknown[0]!r}, {near(unknown[0], list(known))}")
    figures = [known[name] for name in names or known]
    with shown_on_terminal(), resolving_once():
        opened = Home.open(home)
        with opened.held("`phasewise figures`"), server_for(opened, "`phasewise figures`"):
            return [run_figure(figure, opened) for figure in figures]


def print_figures(results: Sequence[dict[str, Any]]) -> None:
    """Print a line for each figure."""
    for result in results:
        print_words(Console(highlight=False), f"{result['name'].removeprefix('figure-')}: {result['headline']}")


def print_experiment(result: dict[str, Any]) -> None:
    """Print the table of differences, and the notes."""
    console = Console(highlight=False)
    title = f"{result['recipe']} · {result['scale']} · {result['phase']}"
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, title=title, title_justify="left")
    for name in ("arm", "measure", "control", "arm − control (95 % interval)", "p, adjusted", "detectable", "shown"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("arm", "measure", "shown") else "right")
    for row in result["differences"]:
        control, *tests = (decimal(row[name], places=PLACES) for name in ("control", "adjusted_p_value", "smallest_detectable"))
        table.add_row(row["arm"], row["measure"], control, words_of(row), *tests, "yes" if row["is_shown"] else "no")
    print_table(console, table)
    for line in (result["headline"], *result["notes"], f"Page: {result['report']}"):
        print_words(console, line)


@resolving_once()
def search_target(named: str, scale: Scale, home: str | None, *, out: str | None, **options: Any) -> dict[str, Any]:
    """Search the mixture of RECIPE/PHASE, and return the prediction in the shape of `--json`."""
    with shown_on_terminal():
        resolved, phase = resolve(named, scale, home)
        if phase is None:
            raise ConfigError(f"mixture: expected a phase, found {named}. Name {named}/PHASE.")
        if out and (Path(out).suffix != ".json" or Path(out).exists()):
            raise ConfigError(f"--out: expected a new .json file, found {out}. Name another file.")
        resolved.check([phase])
        resolved.home.make_ready()
        with server_for(resolved.home, f"`phasewise mixture {named}`"):
            from phasewise.flows.search_mixture import search_mixture

            given = (resolved.recipe_name, phase.name, scale, str(resolved.home.root))
            return cast(dict[str, Any], search_mixture(*given, **options, out=out, settings=resolved.settings))


def print_mixture(found: dict[str, Any]) -> None:
    """Print the mixture, its predicted gain, and the trainings that checked it."""
    console, block = Console(), found["block"]
    title = f"{found['recipe']} · {found['scale']} · {found['phase']}, {found['proxies']} proxies of {found['steps']:,} steps"
    shown = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, title=title, title_justify="left")
    for name in ("component", "natural %", "found %", "at most %", "tokens"):
        shown.add_column(name, justify="left" if name == "component" else "right", no_wrap=True)
    for one in found["components"]:
        percents = [f"{100 * one[name] / block:.2f}" for name in ("natural", "best", "most")]
        shown.add_row(one["name"], *percents, f"{one['tokens']:,}")
    print_table(console, shown)
    gain = found["predicted"]
    print_words(
        console,
        f"Predicted gain: {gain['mean']:.4f} nats per token, 80 % interval {gain['low']:.4f} to {gain['high']:.4f}. Rank correlation on "
        f"proxies that the law was not fitted on: {gain['rank_correlation']:.3f}.",
    )
    for one in found["measured"]:
        words = f"natural {one['natural']:.4f}, best proxy {one['swarm_best']:.4f}, found {one['best']:.4f}"
        print_words(console, f"Measured with seed {one['seed']}: {words}.")
    print_words(console, f"Recipe: {found['file']}")
