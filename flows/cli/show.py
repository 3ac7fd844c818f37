"""`phasewise show`: a recipe as a table, a phase as a page, and published results and notes on both."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from phasewise.flows.recipes import load_record, split_target
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.show import pages
from phasewise.flows.show.describe import describe
from phasewise.flows.show.difference import describe_difference, print_difference
from phasewise.tasks.home import Home

Printer = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class ShowOptions:
    """The options of the command line. At most one of them is set, except `branches` and `on_slice`."""

    step: int | None = None
    branches: bool = False
    notes: bool = False
    diff: tuple[str, str] | None = None
    component: str | None = None
    results: bool = False
    sources: bool = False
    on_slice: str | None = None


def describe_asked(target: str, scale: Scale, options: ShowOptions, home: str | None) -> tuple[dict[str, Any], Printer]:
    """Return the answer in the shape of `--json`, and its printer."""
    if options.diff:
        return describe_difference(target, scale, options.diff), print_difference
    if options.component:
        return pages.describe_component(target, scale, options.component), pages.print_component
    name, phase = split_target(target)
    description = describe(target, scale, options.step, home=home)
    if options.step is None and phase is None:
        from phasewise.flows.show.cost import describe_takes

        description["takes"] = describe_takes(load_record(name, scale), options.on_slice, Home.at(home, reads_only=True))
    if options.results:
        return description, pages.print_results
    if options.sources:
        return description, pages.print_sources
    if options.notes:
        return description, lambda found: print_description(found, branches=phase is not None or options.branches, notes=True)
    return description, lambda found: print_description(found, page=phase is not None, branches=options.branches)


def print_description(description: dict[str, Any], *, page: bool = True, branches: bool = False, notes: bool = False) -> None:
    """Print the values at a step, a page or only the notes per phase, or without `page` a table of the phases."""
    console = Console(highlight=False)
    if "step" not in description and not page:
        pages.print_table(description, console, branches=branches)
        if "takes" in description:
            from phasewise.flows.show.cost import print_takes

            print_takes(description["takes"], console)
        return
    console.print(pages.title_of(description), markup=False)
    if notes:
        pages.print_accepted(console, description["accepts"])
        for phase in description["phases"]:
            if branches or not phase["branch"]:
                pages.print_notes(phase, console)
        return
    if "step" in description:
        console.print(f"after {description['step']:,} updates")
        for phase in description["phases"]:
            pages.print_step(phase, console)
        return
    pages.print_accepted(console, description["accepts"])
    for phase in description["phases"]:
        kinds = ", ".join(word for word in ("branch", "abandoned") if phase[word])
        console.print(f"\n{phase['name']}{f' ({kinds})' if kinds else ''}", style="bold", markup=False)
        verdict = {"": f"{phase['verdict']['state']} {phase['verdict']['why']}".strip()}
        for name, values in {**pages.groups_of(phase, description["tokenizer"]), "last verdict of this home": verdict}.items():
            pages.print_values(console, name, values)
