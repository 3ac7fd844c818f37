"""`phasewise show`: a recipe as a table, a phase as a page, and what the record says of either."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from phasewise.flows.recipes import load_record, split_target
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.show.cost import describe_takes, print_takes
from phasewise.flows.show.describe import describe
from phasewise.flows.show.difference import describe_difference, print_difference
from phasewise.flows.show.pages import (
    describe_component,
    print_accepted,
    print_component,
    print_notes,
    print_page,
    print_results,
    print_sources,
    print_step,
    print_table,
    title_of,
)
from phasewise.tasks.home import Home

__all__ = ["ShowOptions", "describe", "describe_asked", "print_description"]


@dataclass(frozen=True)
class ShowOptions:
    """What is asked of a recipe or a phase; at most one of these.

    Attributes:
        step: what is in force after so many updates.
        branches: the table has the branches, too.
        notes: where the record's code and its reports differ.
        diff: two phases that are compared.
        component: a component that is asked about.
        results: what the record reported.
        sources: where each value comes from.
        on_slice: the slice that days are estimated for; with the table of phases.
    """

    step: int | None = None
    branches: bool = False
    notes: bool = False
    diff: tuple[str, str] | None = None
    component: str | None = None
    results: bool = False
    sources: bool = False
    on_slice: str | None = None


def describe_asked(
    target: str, scale: Scale, asked: ShowOptions, home: str | None
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], None]]:
    """The answer as data, and what prints it for people.

    Raises:
        ConfigError: as `flows.show.describing.describe`.
    """
    if asked.diff:
        return describe_difference(target, scale, asked.diff), print_difference
    if asked.component:
        return describe_component(target, scale, asked.component), print_component
    description = describe(target, scale, asked.step, home=home)
    if asked.step is None and split_target(target)[1] is None:
        description["takes"] = describe_takes(load_record(split_target(target)[0], scale), asked.on_slice, Home.at(home, reads_only=True))
    if asked.results:
        return description, print_results
    if asked.sources:
        return description, print_sources
    if asked.notes:
        named = split_target(target)[1] is not None
        return description, lambda found: print_all_notes(found, branches=named or asked.branches)
    page = split_target(target)[1] is not None
    return description, lambda found: print_description(found, page=page, branches=asked.branches)


def print_description(description: dict[str, Any], *, page: bool = True, branches: bool = False) -> None:
    """For people: what is in force at a step, or the page of each phase, or with `page` false the table of phases."""
    console = Console(highlight=False)
    if "step" not in description and not page:
        print_table(description, console, branches=branches)
        if "takes" in description:
            print_takes(description["takes"], console)
        return
    console.print(title_of(description), markup=False)
    if "step" in description:
        console.print(f"after {description['step']:,} updates")
    else:
        print_accepted(console, description["accepts"])
    for phase in description["phases"]:
        if "step" in description:
            print_step(phase, console)
        else:
            print_page(phase, description["tokenizer"], console)


def print_all_notes(description: dict[str, Any], *, branches: bool) -> None:
    """For people: the discrepancies and notes of the main line, or with `branches` of every phase, and the accepted warnings."""
    console = Console(highlight=False)
    console.print(title_of(description), markup=False)
    print_accepted(console, description["accepts"])
    for phase in description["phases"]:
        if branches or not phase["branch"]:
            print_notes(phase, console)
