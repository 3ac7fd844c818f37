"""`phasewise run`."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from phasewise.flows.cli.terminal import print_summary, shown_on_terminal
from phasewise.flows.prefect.server import server_for
from phasewise.flows.recipes.recipe import Scale, scale_in_words
from phasewise.flows.resolved import resolve, resolving_once
from phasewise.flows.status.recipe_status import is_done, report_path
from phasewise.flows.status.retraining import check_named, check_replaced, extend_phases, find_replaced, phases_to_train
from phasewise.flows.status.summary import run_summary
from phasewise.tasks.progress import say
from phasewise.validations.expectations.judging import load_library


@resolving_once()
def run_recipe(
    target: str, scale: Scale, home: str | None, *, retrain: tuple[str, ...] = (), extend: tuple[str, ...] = (), as_json: bool
) -> dict[str, Any]:
    """Train the unfinished phases, and print and return a summary. `retrain`, `extend`: names of trained phases."""
    with shown_on_terminal():
        resolved, phase = resolve(target, scale, home)
        phases = phases_to_train(resolved.recipe, phase)
        check_named(retrain, phases, "--retrain")
        check_named(extend, phases, "--extend")
        resolved.check(phases)
        resolved.home.make_ready()
        purpose = f"`phasewise run {target}`"
        with resolved.held(purpose, queues=phases):
            try:
                if is_done(resolved, phases):
                    say(f"{target} {scale_in_words(scale)}: everything is done already; nothing was run")
                else:
                    if resolved.is_prepared:
                        extend_phases(resolved, extend)
                        check_replaced(resolved, find_replaced(resolved, phases), retrain)
                    loads = (partial(import_module, "phasewise.flows.train_recipe"), load_library)  # for seconds
                    with server_for(resolved.home, purpose, meanwhile=loads):
                        from phasewise.flows.train_recipe import train_recipe

                        given = (resolved.recipe_name, scale, str(resolved.home.root), phase.name if phase else None)
                        train_recipe(*given, retrain, resolved.settings, extend)
            finally:
                if not as_json and report_path(resolved).exists():
                    summary = run_summary(resolved)
                    console = Console()
                    print_summary(console, summary)
                    program = sys.argv[0] if Path(sys.argv[0]).name == "phasewise" else "phasewise"
                    console.print(f"Report:     {summary['report']}", soft_wrap=True, highlight=False)
                    console.print(f"Prefect UI: {program} up --home {resolved.home.root}", soft_wrap=True, highlight=False)
    return run_summary(resolved)
