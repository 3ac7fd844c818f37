"""What `--set PHASE.FIELD=VALUE` changes in a recipe, for a trial: checked like the recipe itself; `*.FIELD` is that of every phase.

The flows hand it on as the parameter `settings`. Within one of them, or a command, it is in force for every recipe that is loaded.
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

_in_force: ContextVar[tuple[str, ...]] = ContextVar("settings", default=())


@contextmanager
def setting(settings: Sequence[str]) -> Iterator[None]:
    """Within it each recipe is loaded with these settings."""
    before = _in_force.set(tuple(settings))
    try:
        yield
    finally:
        _in_force.reset(before)


def settings_in_force() -> tuple[str, ...]:
    """What `setting` says here."""
    return _in_force.get()


def assigned(recipe: Recipe) -> Recipe:
    """The recipe, at the scale it is run at, with the settings that are in force; itself where there are none.

    Raises:
        ConfigError: a setting is not `PHASE.FIELD=VALUE`, or names what is not there.
        RecipeError: the recipe is refused with them.
    """
    settings = settings_in_force()
    if not settings:
        return recipe
    raw = recipe.model_dump(mode="json")
    for one in settings:
        _assign(raw, one)
    stops = {phase["name"]: phase["stop_step"] for phase in raw["phases"]}
    for phase in raw["phases"]:
        start = phase["start"]
        stop = stops.get(start.get("parent"))
        if isinstance(stop, int) and isinstance(start["step"], int) and start["step"] > stop != recipe.phase(start["parent"]).stop_step:
            raise RecipeError(
                f"{' '.join(f'--set {one}' for one in settings)}: phase {phase['name']} starts from step {start['step']} of "
                f"{start['parent']}, which would stop at step {stop}. Set {phase['name']}.start.step too, and its learning rate."
            )
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        given = " ".join(f"--set {one}" for one in settings)
        raise RecipeError(f"{recipe.name} is refused with {given}: {problems(error, raw)}") from None


def _assign(raw: Raw, setting: str) -> None:
    path, equals, text = setting.partition("=")
    head, *parts = path.strip().split(".")
    if not equals or not parts or not all(parts):
        raise ConfigError(f"--set takes PHASE.FIELD=VALUE or {OF_RECIPE}.FIELD=VALUE, found {setting!r}.")
    if head == EVERY_PHASE:
        for phase in raw["phases"]:
            _assign(raw, f"{phase['name']}.{'.'.join(parts)}={text}")
        if parts == ["slice"]:
            for phase in raw["phases"]:
                start = phase["start"]
                if "declares" in start:
                    start["declares"] = [name for name in start["declares"] if name != "slice"]
        return
    holder: Any = raw
    if head != OF_RECIPE:
        found = {phase["name"]: phase for phase in raw["phases"]}
        if head not in found:
            raise RecipeError(f"--set {setting}: {raw['name']} has no phase {head!r}; {near(head, [*found, OF_RECIPE])}")
        holder = found[head]
    elif parts[0] in NOT_SET:
        raise ConfigError(f"--set {setting}: {parts[0]} cannot be set so; {NOT_SET[parts[0]]}.")
    for number, part in enumerate(parts[:-1]):
        holder = holder[_key(holder, part, ".".join([head, *parts[:number]]), setting)]
    key = _key(holder, parts[-1], ".".join([head, *parts[:-1]]), setting)
    holder[key] = _value(text.strip(), setting)


def _key(holder: Any, part: str, place: str, setting: str) -> str | int:
    if isinstance(holder, dict) and part in holder:
        return part
    if isinstance(holder, list) and part.isdigit() and int(part) < len(holder):
        return int(part)
    if isinstance(holder, dict):
        raise RecipeError(f"--set {setting}: {place} has no field {part!r}; {near(part, list(holder))}")
    if isinstance(holder, list):
        raise RecipeError(f"--set {setting}: {place} is a list of {len(holder)}: take a number from 0 on, or set {place} as a whole.")
    raise RecipeError(f"--set {setting}: {place} is {json.dumps(holder)}, and has no fields: set {place} as a whole.")


def _value(text: str, setting: str) -> Any:
    try:
        return parse_json(text) if text else text
    except json.JSONDecodeError:
        return text
    except ValueError as error:
        raise RecipeError(f"--set {setting[:120]}: {error}.") from None
