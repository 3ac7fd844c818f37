"""Recipes by name, or from a file. A wrong name is refused before the slow imports of recipes."""

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasewise.flows.recipes.python_file import checked_recipes, load_named, load_python
from phasewise.trainer.base.errors import ConfigError, RecipeError
from phasewise.trainer.base.wording import near

if TYPE_CHECKING:
    from phasewise.flows.recipes.phase import Phase
    from phasewise.flows.recipes.recipe import Recipe, Scale

MODULES = {
    "marin-8b": "marin.marin_8b",
    "marin-32b": "marin.marin_32b",
    "trinity-nano": "trinity.small",
    "trinity-mini": "trinity.small",
    "trinity-large": "trinity.large",
}
NAMES = tuple(MODULES)
FILE = re.compile(r"(?P<path>.*\.(?:py|json))(?P<of_file>:[^/]*)?(?:/(?P<phase>.*))?", re.DOTALL)
OTHER_FILES = (".yaml", ".yml", ".toml", ".jsonl", ".txt", ".md", ".ipynb")


def load_written(name: str) -> "Recipe":
    """A recipe with all branches, without scale and settings: by name, or from a file (`docs/how-to/recipe.md`)."""
    if name in MODULES:
        module = import_module(f"phasewise.flows.recipes.{MODULES[name]}")
        return getattr(module, name.upper().replace("-", "_"))
    file = FILE.fullmatch(name)
    if file is None or Path(file["path"]).is_dir():
        given = Path(name)
        if name and given.is_dir():
            files = sorted(str(one) for one in given.iterdir() if one.suffix in (".py", ".json"))
            there = f" Files in it are {', '.join(files)}." if files else ""
            raise ConfigError(f"{name} is a folder, and a recipe is a .py or a .json file.{there}")
        if (name and given.exists()) or name.endswith(OTHER_FILES):
            found = "" if given.exists() else ", and the file does not exist"
            raise ConfigError(
                f"{name} is not a recipe: a recipe is a .py or a .json file{found}. `phasewise new my_recipe.py` writes a first recipe."
            )
        if "/" in name or name.startswith("~"):
            raise ConfigError(f"no such file: {name}. A recipe is a .py or a .json file, or one of {', '.join(NAMES)}.")
        hint = near(name, NAMES)
        alike = f" {hint.capitalize()}" if hint.endswith("?") else ""
        raise ConfigError(f"no recipe is called {name!r}. Names are {', '.join(NAMES)}, or a .py or .json file.{alike}")
    path = Path(file["path"])
    wanted = file["of_file"][1:] if file["of_file"] else None
    if path.suffix == ".json" and wanted is not None:
        raise ConfigError(f"{name}: a .json file is one recipe without a name in the file: leave out {file['of_file']}.")
    known = checked_recipes.get({})
    if name not in known:
        known[name] = _complete(name, load_python(path, wanted) if path.suffix == ".py" else _from_json(path))
    return known[name]


def load_every(path: Path) -> "list[Recipe]":
    """All recipes of a file: one of JSON, and of Python each recipe with a name at the top level."""
    if path.suffix == ".json":
        return [_complete(str(path), _from_json(path))]
    named = load_named(path)
    if not named:
        load_python(path, None)  # it raises the error
    return [_complete(f"{path}:{name}", recipe) for name, recipe in {id(recipe): (name, recipe) for name, recipe in named.items()}.values()]


def _complete(name: str, recipe: "Recipe") -> "Recipe":
    """The recipe with the blocks that it does not state, or RecipeError if its name is one of this project."""
    from phasewise.flows.recipes.feasibility import phases_without_order, with_blocks

    if recipe.name in NAMES:
        raise RecipeError(
            f"{name} calls its recipe {recipe.name}, which is a recipe of this project: both would use the same folders. Change `name`."
        )
    return with_blocks(recipe, phases_without_order(recipe))


def default_scale(written: "Recipe") -> "Scale":
    """The scale without `--scale`: `own` for a recipe of this scale, else `proxy`."""
    return "own" if written.scale == "own" else "proxy"


def scale_of(target: str, scale: "Scale | None") -> "Scale":
    """The given scale, or the default scale of `RECIPE[/PHASE]`. Raises ConfigError for an unknown recipe."""
    return scale or default_scale(load_written(split_target(target)[0]))


def at_scale(written: "Recipe", scale: "Scale", name: str) -> "Recipe":
    """A recipe at a scale. `name` is the name on the command line."""
    from pydantic import ValidationError

    from phasewise.flows.recipes.assignments import problems
    from phasewise.flows.recipes.recipe import BETWEEN
    from phasewise.flows.recipes.scales import STEPS, steps, to_proxy, to_scale

    if written.scale == scale:
        return written
    if written.scale == "own":
        raise RecipeError(f"{name} has sizes of its author (scale own): it has no {scale} scale. Leave out --scale.")
    if scale in BETWEEN:
        if written.scale != "full":
            raise RecipeError(f"{name} is written at {written.scale} scale: it has no {scale} scale, which is computed from the full one.")
    elif scale != "proxy":
        raise RecipeError(f"{name} is written at {written.scale} scale: it has no {scale} scale.")
    elif short := [phase for phase in written.phases if steps(phase.stop_step) <= steps(phase.start_step)]:
        first = short[0]
        raise RecipeError(
            f"{name} has no proxy scale: that has one step for {STEPS:,}, and phase {first.name} is {first.stop_step - first.start_step:,} "
            'steps long. Set scale="own" to train the written sizes.'
        )
    try:
        return to_scale(written, scale) if scale in BETWEEN else to_proxy(written)
    except ValidationError as error:
        raise RecipeError(f"{name} has no {scale} scale: {problems(error)}") from None


def load_record(name: str, scale: "Scale", wanted: str | None = None) -> "Recipe":
    """A recipe with all branches at a scale, with settings. The main line and the branch to the phase `wanted` are checked."""
    written = load_written(name)
    from phasewise.flows.recipes.assignments import assigned, forked, settings_in_force
    from phasewise.flows.recipes.feasibility import check_feasible, check_mixtures

    recipe = assigned(at_scale(written, scale, name))
    if name not in NAMES or settings_in_force():
        chosen = recipe.with_branch(wanted)
        if written.scale == "full":
            full = forked(written).with_branch(wanted)
            check_mixtures(full, full.phases)
        check_feasible(chosen, chosen.phases)
    return recipe


def load_target(target: str, scale: "Scale") -> "tuple[Recipe, Phase | None]":
    """The main line and the named branch of `RECIPE[/PHASE]`, and the phase. Raises as `load_record`."""
    name, phase = split_target(target)
    recipe = load_record(name, scale, phase).with_branch(phase)
    return recipe, recipe.phase(phase) if phase else None


def load_recipe(name: str, scale: "Scale") -> "Recipe":
    """The recipe of `load_target`."""
    return load_target(name, scale)[0]


def split_target(target: str) -> tuple[str, str | None]:
    """Recipe and phase of `RECIPE[/PHASE]`. A path may contain slashes, and `FILE.py:NAME` is a recipe of a file."""
    if file := FILE.fullmatch(target):
        return file["path"] + (file["of_file"] or ""), (file["phase"] or "").strip("/") or None
    recipe, _, phase = target.partition("/")
    looks_like_a_path = recipe in ("", ".", "..") or recipe.startswith("~") or target.endswith(OTHER_FILES)
    if recipe not in NAMES and (looks_like_a_path or Path(target).exists() or Path(recipe).exists()):
        return target, None
    return recipe, phase or None


def _from_json(path: Path) -> "Recipe":
    from pydantic import ValidationError

    from phasewise.flows.recipes.assignments import problems
    from phasewise.flows.recipes.recipe import Recipe
    from phasewise.trainer.base.storage import parse_json

    raw: Any = None
    try:
        raw = parse_json(path.read_bytes())
        return Recipe.model_validate(raw)
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except ValidationError as error:
        raise RecipeError(f"{path} is not a recipe: {problems(error, raw)}") from None
    except ValueError as error:
        raise RecipeError(f"{path} is not JSON: {error}.") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from None
