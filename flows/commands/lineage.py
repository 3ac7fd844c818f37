"""`phasewise lineage`: the tree of phases, and what each hand-off changes and declares."""

from typing import Any

from rich.console import Console
from rich.tree import Tree

from flows.recipes import load_record, split_target
from flows.recipes.changes import changes_between, told
from flows.recipes.phase import HandOff
from flows.recipes.recipe import Recipe, Scale, scale_in_words


def describe(target: str, scale: Scale) -> dict[str, Any]:
    """Per phase its parent and its changes, each with before and after; an undeclared one would have been refused on loading."""
    recipe = load_record(split_target(target)[0], scale)
    return {"recipe": recipe.name, "scale": recipe.scale, "phases": [_describe(recipe, phase.name) for phase in recipe.phases]}


def print_description(description: dict[str, Any]) -> None:
    """The tree for people."""
    branches: dict[str | None, Tree] = {None: Tree(f"{description['recipe']} {scale_in_words(description['scale'])}")}
    for phase in description["phases"]:
        parent = branches[phase["parent"]]
        kind = ", ".join(word for word in ("branch", "abandoned") if phase[word])
        title = f"[bold]{phase['name']}[/bold]  {phase['start_step']:,} → {phase['stop_step']:,}{f'  ({kind})' if kind else ''}"
        branch = branches[phase["name"]] = parent.add(title)
        for change in phase["changes"]:
            branch.add(f"{change['what']}: {_told(change['before'], change['after'])}")
        for part in phase["fresh"]:
            branch.add(f"{part}: made anew")
        for graft in phase["graft"]:
            branch.add(f"{graft['part']}: from step {graft['step']:,} of {graft['phase']}")
    Console(highlight=False).print(branches[None])


def _describe(recipe: Recipe, name: str) -> dict[str, Any]:
    phase = recipe.phase(name)
    changes: list[dict[str, Any]] = []
    if isinstance(phase.start, HandOff):
        found = changes_between(recipe.phase(phase.start.parent), phase, drawn=recipe.drawn_before(phase))
        changes = [
            {"what": what, "before": _plain(before), "after": _plain(after), "declared": what in phase.start.declares}
            for what, (before, after) in found.items()
        ]
    return {
        "name": name,
        "parent": phase.parent,
        "start_step": phase.start_step,
        "stop_step": phase.stop_step,
        "branch": phase.branch,
        "abandoned": phase.abandoned,
        "from_step": phase.start_step,
        "fresh": list(phase.start.fresh) if isinstance(phase.start, HandOff) else [],
        "graft": [graft.model_dump(mode="json") for graft in phase.start.graft] if isinstance(phase.start, HandOff) else [],
        "declares": list(phase.start.declares) if isinstance(phase.start, HandOff) else [],
        "changes": changes,
    }


def _plain(value: object) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")  # pyright: ignore[reportAttributeAccessIssue]  # a pydantic model
    return list(value) if isinstance(value, tuple) else value


def _told(before: Any, after: Any) -> str:
    """Both values; of settings only those that differ."""
    if isinstance(before, dict) and isinstance(after, dict) and not (_is_mixture(before) or _is_mixture(after)):
        return " → ".join(told(before, after))
    return f"{_short(before)} → {_short(after)}"


def _is_mixture(value: dict[str, Any]) -> bool:
    return bool(value) and all(isinstance(share, float) for share in value.values()) and abs(sum(value.values()) - 100) < 1


def _short(value: Any) -> str:
    if isinstance(value, dict):
        if _is_mixture(value):
            largest = sorted(value.items(), key=lambda item: -item[1])[:3]
            return f"{len(value)} components ({', '.join(f'{name} {share:.1f} %' for name, share in largest)} …)"
        return ", ".join(f"{name} {_short(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list):
        return ", ".join(_short(part) for part in value)
    return "off" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
