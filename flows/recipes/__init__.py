"""The recipes by name, or from a file."""

from pathlib import Path

from pydantic import ValidationError

from flows.recipes.phase import Phase
from flows.recipes.proxy import to_proxy
from flows.recipes.recipe import Recipe, Scale
from trainer.base.errors import ConfigError
from trainer.base.storage import read_json

NAMES = ("marin-8b", "marin-32b")


def load_written(name: str) -> Recipe:
    """A recipe with all its branches as it is written, by its name or from a JSON file (`docs/recipes.md` says how to write one).

    Raises:
        ConfigError: no such recipe, or the file is not one; the message names the field.
    """
    return _from_file(Path(name)) if name.endswith(".json") else _by_name(name)


def at_scale(written: Recipe, scale: Scale, name: str) -> Recipe:
    """A recipe at a scale; `name` is what it was asked for by.

    Raises:
        ConfigError: it has no such scale.
    """
    if written.scale == scale:
        return written
    if scale == "full":
        raise ConfigError(f"{name} is written at proxy scale: it has no full scale.")
    try:
        return to_proxy(written)
    except ValidationError as error:
        raise ConfigError(f"{name} has no proxy scale: {_problems(error)}.") from None


def load_record(name: str, scale: Scale) -> Recipe:
    """A recipe with all its branches at a scale.

    Raises:
        ConfigError: as `load_written` and `at_scale`.
    """
    return at_scale(load_written(name), scale, name)


def load_recipe(name: str, scale: Scale) -> Recipe:
    """What is trained: the main line, and of `RECIPE/PHASE` also the branch that leads to the phase.

    Raises:
        ConfigError: as `load_record`, or there is no such phase.
    """
    return load_target(name, scale)[0]


def split_target(target: str) -> tuple[str, str | None]:
    """`RECIPE[/PHASE]` in its two parts; a path to a JSON file may have slashes of its own."""
    head, separator, tail = target.rpartition(".json")
    if separator:
        return head + separator, tail.strip("/") or None
    recipe, _, phase = target.partition("/")
    return recipe, phase or None


def load_target(target: str, scale: Scale) -> tuple[Recipe, Phase | None]:
    """The recipe of `RECIPE[/PHASE]` as `load_recipe` gives it, and the phase if one is named."""
    name, phase = split_target(target)
    recipe = load_record(name, scale).with_branch(phase)
    return recipe, recipe.phase(phase) if phase else None


def _by_name(name: str) -> Recipe:
    match name:
        case "marin-8b":
            from flows.recipes.marin_8b import MARIN_8B

            return MARIN_8B
        case "marin-32b":
            from flows.recipes.marin_32b import MARIN_32B

            return MARIN_32B
        case _:
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
