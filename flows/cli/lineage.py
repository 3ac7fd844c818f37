"""`phasewise lineage`: the tree of phases, and what each hand-off changes and declares."""

from typing import Any

from rich.console import Console
from rich.tree import Tree

from phasewise.flows.recipes import load_record, split_target
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe, Scale, scale_in_words
from phasewise.flows.show.describe import change_in_words, describe_changes


def describe(target: str, scale: Scale) -> dict[str, Any]:
    """Per phase its parent and its changes. Of `RECIPE/PHASE`, the phase and all that it rests on.

    Raises:
        ConfigError: no such recipe or phase.
    """
    name, chosen = split_target(target)
    recipe = load_record(name, scale, chosen)
    phases = (*recipe.ancestors(recipe.phase(chosen)), recipe.phase(chosen)) if chosen else recipe.phases
    return {"recipe": recipe.name, "scale": recipe.scale, "phases": [_describe(recipe, phase) for phase in phases]}


def print_description(description: dict[str, Any]) -> None:
    """The tree for people."""
    branches: dict[str | None, Tree] = {None: Tree(f"{description['recipe']} {scale_in_words(description['scale'])}")}
    for phase in description["phases"]:
        parent = branches[phase["parent"]]
        kind = ", ".join(word for word in ("branch", "abandoned") if phase[word])
        title = f"[bold]{phase['name']}[/bold]  {phase['start_step']:,} → {phase['stop_step']:,}{f'  ({kind})' if kind else ''}"
        branch = branches[phase["name"]] = parent.add(title)
        for change in phase["changes"]:
            branch.add(f"{change['what']}: {change_in_words(change['before'], change['after'])}")
        for part in phase["fresh"]:
            branch.add(f"{part}: fresh")
        for graft in phase["graft"]:
            branch.add(f"{graft['part']}: from step {graft['step']:,} of {graft['phase']}")
    Console(highlight=False).print(branches[None])


def _describe(recipe: Recipe, phase: Phase) -> dict[str, Any]:
    start = phase.start if isinstance(phase.start, HandOff) else None
    return {
        "name": phase.name,
        "parent": phase.parent,
        "start_step": phase.start_step,
        "stop_step": phase.stop_step,
        "branch": phase.branch,
        "abandoned": phase.abandoned,
        "from_step": phase.start_step,
        "fresh": list(start.fresh) if start else [],
        "graft": [graft.model_dump(mode="json") for graft in start.graft] if start else [],
        "declares": list(start.declares) if start else [],
        "changes": describe_changes(recipe, phase),
    }
