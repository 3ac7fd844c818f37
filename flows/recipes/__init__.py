"""The recipes by name, or from a file."""

from pathlib import Path

from pydantic import ValidationError

from flows.recipes.proxy import to_proxy
from flows.recipes.recipe import Phase, Recipe, Scale
from trainer.errors import ConfigError
from trainer.storage import read_json

NAMES = ("marin-8b",)


def load_recipe(name: str, scale: Scale) -> Recipe:
    """A recipe by its name, or from a JSON file (`docs/recipes.md` says how to write one), at a scale.

    Raises:
        ConfigError: no such recipe, or the file is not one; the message names the field.
    """
    full = _from_file(Path(name)) if name.endswith(".json") else _by_name(name)
    if full.scale == scale:
        return full
    if scale == "full":
        raise ConfigError(f"{name} is written at proxy scale: it has no full scale.")
    try:
        return to_proxy(full)
    except ValidationError as error:
        raise ConfigError(f"{name} has no proxy scale: {_problems(error)}.") from None


def split_target(target: str) -> tuple[str, str | None]:
    """`RECIPE[/PHASE]` in its two parts; a path to a JSON file may have slashes of its own."""
    head, separator, tail = target.rpartition(".json")
    if separator:
        return head + separator, tail.strip("/") or None
    recipe, _, phase = target.partition("/")
    return recipe, phase or None


def load_target(target: str, scale: Scale) -> tuple[Recipe, Phase | None]:
    """The recipe of `RECIPE[/PHASE]`, and the phase if one is named."""
    name, phase = split_target(target)
    recipe = load_recipe(name, scale)
    return recipe, recipe.phase(phase) if phase else None


def _by_name(name: str) -> Recipe:
    if name == "marin-8b":
        from flows.recipes.marin_8b import MARIN_8B

        return MARIN_8B
    raise ConfigError(f"no recipe is called {name!r}; there are {', '.join(NAMES)}, and any recipe in a .json file.")


def _from_file(path: Path) -> Recipe:
    try:
        return Recipe.model_validate(read_json(path))
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except ValidationError as error:
        raise ConfigError(f"{path} is not a recipe: {_problems(error)}.") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None


def _problems(error: ValidationError) -> str:
    """The first three, each with its field."""
    problems = [f"{'.'.join(map(str, item['loc'])) or 'recipe'}: {item['msg'].removeprefix('Value error, ')}" for item in error.errors()]
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more
