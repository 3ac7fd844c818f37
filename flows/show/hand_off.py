"""What a hand-off changes, as data and in words."""

from typing import Any

from phasewise.flows.recipes.changes import both_in_words
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe


def describe_changes(recipe: Recipe, phase: Phase) -> list[dict[str, Any]]:
    """What the hand-off to the phase changes, each with before and after. An undeclared one was refused when the recipe was loaded."""
    if not isinstance(phase.start, HandOff):
        return []
    found = recipe.changes_of(phase)
    return [
        {"what": what, "before": _plain(before), "after": _plain(after), "declared": what in phase.start.declares}
        for what, (before, after) in found.items()
    ]


def change_in_words(before: Any, after: Any) -> str:
    """Both values. Of settings, only those that differ."""
    if isinstance(before, dict) and isinstance(after, dict) and not (_is_mixture(before) or _is_mixture(after)):
        return " → ".join(both_in_words(before, after))
    return f"{_short(before)} → {_short(after)}"


def _plain(value: object) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")  # pyright: ignore[reportAttributeAccessIssue]  # a pydantic model
    return list(value) if isinstance(value, tuple) else value


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
