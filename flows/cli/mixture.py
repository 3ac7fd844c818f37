"""`phasewise mixture` and its table."""

from pathlib import Path
from typing import Any, cast

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table, print_words, shown_on_terminal
from phasewise.flows.prefect.server import server_for
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import resolve, resolving_once
from phasewise.trainer.base.errors import ConfigError


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
