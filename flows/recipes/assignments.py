"""Changes of a recipe for a trial, from `--set PHASE.FIELD=VALUE`. `*.FIELD` changes every phase.

Flows take the changes as their parameter `settings`. Within a flow or a command they apply to every loaded recipe.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic import ValidationError

from phasewise.flows.recipes.problems import near, problems
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.base.errors import ConfigError, RecipeError
from phasewise.trainer.base.storage import parse_json

OF_RECIPE, EVERY_PHASE = "recipe", "*"
NOT_SET = {"phases": "name a phase: PHASE.FIELD=VALUE", "scale": "use --scale"}
Raw = dict[str, Any]
Settings = tuple[str, ...]

_in_force: ContextVar[Settings] = ContextVar("settings", default=())


@contextmanager
def setting(settings: Sequence[str]) -> Iterator[None]:
    """Apply settings to each recipe that is loaded within the context."""
    before = _in_force.set(tuple(settings))
    try:
        yield
    finally:
        _in_force.reset(before)


def settings_in_force() -> Settings:
    """The settings of the current context."""
    return _in_force.get()


def assigned(recipe: Recipe) -> Recipe:
    """The recipe with the current settings, validated again."""
    settings = settings_in_force()
    if not settings:
        return recipe
    given = " ".join(f"--set {one}" for one in settings)
    raw = recipe.model_dump(mode="json")
    for one in settings:
        _assign(raw, one)
    stops = {phase["name"]: phase["stop_step"] for phase in raw["phases"]}
    for phase in raw["phases"]:
        start = phase["start"]
        stop = stops.get(start.get("parent"))
        if isinstance(stop, int) and isinstance(start["step"], int) and start["step"] > stop != recipe.phase(start["parent"]).stop_step:
            raise RecipeError(
                f"{given}: phase {phase['name']} starts from step {start['step']} of {start['parent']}, which would stop at step {stop}. "
                f"Set {phase['name']}.start.step and its learning rate as well."
            )
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        raise RecipeError(f"{recipe.name} is invalid with {given}: {problems(error, raw)}") from None


def _assign(raw: Raw, setting: str) -> None:
    path, equals, text = setting.partition("=")
    head, *parts = path.strip().split(".")
    if not equals or not parts or not all(parts):
        raise ConfigError(f"--set takes PHASE.FIELD=VALUE or {OF_RECIPE}.FIELD=VALUE, found {setting!r}.")
    phases = {phase["name"]: phase for phase in raw["phases"]}
    if head == EVERY_PHASE:
        for name, phase in phases.items():
            _assign(raw, f"{name}.{'.'.join(parts)}={text}")
            if parts == ["slice"] and "declares" in phase["start"]:
                phase["start"]["declares"] = [name for name in phase["start"]["declares"] if name != "slice"]
        return
    if head == OF_RECIPE and parts[0] in NOT_SET:
        raise ConfigError(f"--set {setting}: {parts[0]} cannot be set this way. Instead, {NOT_SET[parts[0]]}.")
    if head != OF_RECIPE and head not in phases:
        raise RecipeError(f"--set {setting}: {raw['name']} has no phase {head!r}, {near(head, [*phases, OF_RECIPE])}")
    holder: Any = raw if head == OF_RECIPE else phases[head]
    for number, part in enumerate(parts[:-1]):
        holder = holder[_key(holder, part, ".".join([head, *parts[:number]]), setting)]
    key = _key(holder, parts[-1], ".".join([head, *parts[:-1]]), setting)
    try:
        holder[key] = parse_json(text.strip()) if text.strip() else ""
    except json.JSONDecodeError:
        holder[key] = text.strip()
    except ValueError as error:
        raise RecipeError(f"--set {setting[:120]}: {error}.") from None


def _key(holder: Any, part: str, place: str, setting: str) -> str | int:
    if isinstance(holder, dict):
        if part not in holder:
            raise RecipeError(f"--set {setting}: {place} has no field {part!r}, {near(part, list(holder))}")
        return part
    if isinstance(holder, list):
        if not (part.isdigit() and int(part) < len(holder)):
            raise RecipeError(f"--set {setting}: {place} is a list of {len(holder)}: take a number from 0 on, or set {place} as a whole.")
        return int(part)
    raise RecipeError(f"--set {setting}: {place} is {json.dumps(holder)}, and has no fields: set {place} as a whole.")
