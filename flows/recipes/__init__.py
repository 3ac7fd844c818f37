"""The recipes by name, or from a file."""

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from phasewise.flows.recipes.assignments import assigned, settings_in_force
from phasewise.flows.recipes.feasibility import check_feasible, check_mixtures
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.problems import near, problems
from phasewise.flows.recipes.python_file import load_named, load_python
from phasewise.flows.recipes.recipe import BETWEEN, Recipe, Scale
from phasewise.flows.recipes.scales import STEPS, steps, to_proxy, to_scale
from phasewise.trainer.base.errors import ConfigError, RecipeError
from phasewise.trainer.base.storage import parse_json

NAMES = ("marin-8b", "marin-32b", "trinity-nano", "trinity-mini", "trinity-large")
FILE = re.compile(r"(?P<path>.*\.(?:py|json))(?P<of_file>:[^/]*)?(?:/(?P<phase>.*))?", re.DOTALL)
OTHER_FILES = (".yaml", ".yml", ".toml", ".jsonl", ".txt", ".md", ".ipynb")


def load_written(name: str) -> Recipe:
    """A recipe with all its branches as it is written: by its name, or from a file (`docs/how-to/recipe.md` says how to write one).

    Raises:
        ConfigError: no such recipe.
        RecipeError: the file is no recipe; the message names the field, or the line.
    """
    file = FILE.fullmatch(name)
    if file is None:
        return _by_name(name)
    path = Path(file["path"])
    wanted = file["of_file"][1:] if file["of_file"] else None
    if path.is_dir():
        raise _no_recipe(name)
    if path.suffix == ".json" and wanted is not None:
        raise ConfigError(f"{name}: a .json file is one recipe, and has no names within it: leave out {file['of_file']}.")
    return _own(name, load_python(path, wanted) if path.suffix == ".py" else _from_json(path))


def load_every(path: Path) -> list[Recipe]:
    """The recipes of a file: of JSON one, of Python each that has a name at its top level.

    Raises:
        ConfigError: there is no such file.
        RecipeError: the file is no recipe, has none, or is code where none is allowed.
    """
    if path.suffix == ".json":
        return [_own(str(path), _from_json(path))]
    named = load_named(path)
    if not named:
        load_python(path, None)  # it says why
    return [_own(f"{path}:{name}", recipe) for name, recipe in {id(recipe): (name, recipe) for name, recipe in named.items()}.values()]


def _own(name: str, recipe: Recipe) -> Recipe:
    if recipe.name in NAMES:
        raise RecipeError(
            f"{name} calls its recipe {recipe.name}, and that is a recipe of this project: they would share their folders. Give it another "
            "`name`."
        )
    return recipe


def default_scale(written: Recipe) -> Scale:
    """The scale that a recipe is run at where none is asked for: its own sizes if it has some, else proxy scale."""
    return "own" if written.scale == "own" else "proxy"


def scale_of(target: str, scale: Scale | None) -> Scale:
    """The scale that is asked for, else the default one of `RECIPE[/PHASE]`.

    Raises:
        ConfigError: as `load_written`.
    """
    return scale or default_scale(load_written(split_target(target)[0]))


def at_scale(written: Recipe, scale: Scale, name: str) -> Recipe:
    """A recipe at a scale; `name` is what it was asked for by.

    Raises:
        RecipeError: it has no such scale.
    """
    if written.scale == scale:
        return written
    if written.scale == "own":
        raise RecipeError(f"{name} has sizes of its own and is run as it is written: it has no {scale} scale. Leave out --scale.")
    if scale in BETWEEN:
        if written.scale != "full":
            raise RecipeError(f"{name} is written at {written.scale} scale: it has no {scale} scale, which is computed from the full one.")
        try:
            return to_scale(written, scale)
        except ValidationError as error:
            raise RecipeError(f"{name} has no {scale} scale: {problems(error)}") from None
    if scale != "proxy":
        raise RecipeError(f"{name} is written at {written.scale} scale: it has no {scale} scale.")
    if short := [phase for phase in written.phases if steps(phase.stop_step) <= steps(phase.start_step)]:
        first = short[0]
        raise RecipeError(
            f"{name} has no proxy scale: that has one step for {STEPS:,}, and phase {first.name} is {first.stop_step - first.start_step:,} "
            'steps long. Write it with scale="own" to run it as it is.'
        )
    try:
        return to_proxy(written)
    except ValidationError as error:
        raise RecipeError(f"{name} has no proxy scale: {problems(error)}") from None


def load_record(name: str, scale: Scale, wanted: str | None = None) -> Recipe:
    """A recipe with all its branches at a scale, with what `--set` changes, to be read.

    The main line must be feasible, and the branch that leads to the phase `wanted`. A recipe of this project is read as the record has it.

    Raises:
        ConfigError, DataError: as `load_written`, `at_scale`, `assigned` and `check_feasible`.
    """
    written = load_written(name)
    recipe = assigned(at_scale(written, scale, name))
    if name not in NAMES or settings_in_force():
        chosen = recipe.with_branch(wanted)
        if written.scale == "full":
            full = written.with_branch(wanted)
            check_mixtures(full, full.phases)
        check_feasible(chosen, chosen.phases)
    return recipe


def load_recipe(name: str, scale: Scale) -> Recipe:
    """What is trained: the main line, and of `RECIPE/PHASE` also the branch that leads to the phase.

    Raises:
        ConfigError: as `load_record`, or there is no such phase.
    """
    return load_target(name, scale)[0]


def split_target(target: str) -> tuple[str, str | None]:
    """`RECIPE[/PHASE]` in its two parts; a path to a file may have slashes of its own, and `FILE.py:NAME` is a recipe of the file."""
    if file := FILE.fullmatch(target):
        return file["path"] + (file["of_file"] or ""), (file["phase"] or "").strip("/") or None
    recipe, _, phase = target.partition("/")
    if recipe not in NAMES and _is_path(target, recipe):
        return target, None
    return recipe, phase or None


def load_target(target: str, scale: Scale) -> tuple[Recipe, Phase | None]:
    """The recipe of `RECIPE[/PHASE]` as `load_recipe` gives it, and the phase if one is named."""
    name, phase = split_target(target)
    recipe = load_record(name, scale, phase).with_branch(phase)
    return recipe, recipe.phase(phase) if phase else None


def _is_path(target: str, first: str) -> bool:
    return (
        first in ("", ".", "..") or first.startswith("~") or target.endswith(OTHER_FILES) or Path(target).exists() or Path(first).exists()
    )


def _by_name(name: str) -> Recipe:
    match name:
        case "marin-8b":
            from phasewise.flows.recipes.marin.marin_8b import MARIN_8B

            return MARIN_8B
        case "marin-32b":
            from phasewise.flows.recipes.marin.marin_32b import MARIN_32B

            return MARIN_32B
        case "trinity-nano":
            from phasewise.flows.recipes.trinity.small import TRINITY_NANO

            return TRINITY_NANO
        case "trinity-mini":
            from phasewise.flows.recipes.trinity.small import TRINITY_MINI

            return TRINITY_MINI
        case "trinity-large":
            from phasewise.flows.recipes.trinity.large import TRINITY_LARGE

            return TRINITY_LARGE
        case _:
            raise _no_recipe(name)


def _no_recipe(name: str) -> ConfigError:
    path = Path(name)
    if name and path.is_dir():
        files = sorted(str(file) for file in path.iterdir() if file.suffix in (".py", ".json"))
        there = f" In it are {', '.join(files)}." if files else ""
        return ConfigError(f"{name} is a folder, and a recipe is a .py or a .json file.{there}")
    if (name and path.exists()) or name.endswith(OTHER_FILES):
        found = "" if path.exists() else ", and there is no such file"
        return ConfigError(
            f"{name} is no recipe: a recipe is a .py or a .json file{found}. `phasewise new my_recipe.py` writes one to start from."
        )
    if "/" in name or name.startswith("~"):
        return ConfigError(f"no such file: {name}. A recipe is a .py or a .json file, or one of {', '.join(NAMES)}.")
    hint = near(name, NAMES)
    alike = f" {hint.capitalize()}" if hint.endswith("?") else ""
    return ConfigError(f"no recipe is called {name!r}; there are {', '.join(NAMES)}, and any recipe in a .py or .json file.{alike}")


def _from_json(path: Path) -> Recipe:
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
