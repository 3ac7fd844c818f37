"""`phasewise show` and `phasewise lineage`: a recipe as a table or a tree, a phase as a page, published results and notes on both."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.tree import Tree

from phasewise.flows.recipes import load_record, split_target
from phasewise.flows.recipes.phase import HandOff, Pretrained
from phasewise.flows.recipes.recipe import Scale, scale_in_words
from phasewise.flows.show import pages
from phasewise.flows.show.describe import change_in_words, describe, describe_changes, describe_takes, print_takes
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
            print_takes(description["takes"], console)
        return
    console.print(pages.title_of(description), markup=False)
    if notes:
        pages.print_accepted(console, description["accepts"])
        for phase in [one for one in description["phases"] if branches or not one["branch"]]:
            for found in sorted(phase["discrepancies"], key=lambda one: pages.SEVERITIES.index(one["severity"])):
                values = {name: found[name] for name in ("code", "retrospective", "place")}
                pages.print_values(console, f"{phase['name']}, {found['field']}: differs, {found['severity']}", values)
            for note in phase["notes"]:
                values = {"note": note["text"], "place": note["place"]}
                pages.print_values(console, f"{phase['name']}, {note['field']}: not stated in the reports", values)
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


def describe_lineage(target: str, scale: Scale) -> dict[str, Any]:
    """Return the parent and the changes of each phase. For `RECIPE/PHASE`, of the phase and its ancestors."""
    name, chosen = split_target(target)
    recipe = load_record(name, scale, chosen)
    phases: list[dict[str, Any]] = []
    for phase in (*recipe.ancestors(recipe.phase(chosen)), recipe.phase(chosen)) if chosen else recipe.phases:
        start = phase.start if isinstance(phase.start, HandOff) else None
        phases.append(
            {
                **{name: getattr(phase, name) for name in ("name", "parent", "start_step", "stop_step", "branch", "abandoned")},
                "from_step": phase.start_step,
                "fresh": list(start.fresh) if start else [],
                "graft": [graft.model_dump(mode="json") for graft in start.graft] if start else [],
                "declares": list(start.declares) if start else [],
                "changes": describe_changes(recipe, phase),
                "pretrained": phase.start.model_dump(mode="json") if isinstance(phase.start, Pretrained) else None,
            }
        )
    return {"recipe": recipe.name, "scale": recipe.scale, "phases": phases}


def print_lineage(description: dict[str, Any]) -> None:
    """Print the tree of phases."""
    branches: dict[str | None, Tree] = {None: Tree(f"{description['recipe']} {scale_in_words(description['scale'])}")}
    for phase in description["phases"]:
        kind = ", ".join(word for word in ("branch", "abandoned") if phase[word])
        title = f"[bold]{phase['name']}[/bold]  {phase['start_step']:,} → {phase['stop_step']:,}{f'  ({kind})' if kind else ''}"
        branch = branches[phase["name"]] = branches[phase["parent"]].add(title)
        if phase["pretrained"]:
            branch.add(f"weights of {phase['pretrained']['pretrained']}, the rest fresh")
        for change in phase["changes"]:
            branch.add(f"{change['what']}: {change_in_words(change['before'], change['after'])}")
        for part in phase["fresh"]:
            branch.add(f"{part}: fresh")
        for graft in phase["graft"]:
            branch.add(f"{graft['part']}: from step {graft['step']:,} of {graft['phase']}")
    Console(highlight=False).print(branches[None])
