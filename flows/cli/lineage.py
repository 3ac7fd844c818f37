"""`phasewise lineage`: the tree of phases, and the changes and declarations of each hand-off."""

from typing import Any

from rich.console import Console
from rich.tree import Tree

from phasewise.flows.recipes import load_record, split_target
from phasewise.flows.recipes.phase import HandOff, Pretrained
from phasewise.flows.recipes.recipe import Scale, scale_in_words
from phasewise.flows.show.describe import change_in_words, describe_changes


def describe(target: str, scale: Scale) -> dict[str, Any]:
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


def print_description(description: dict[str, Any]) -> None:
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
