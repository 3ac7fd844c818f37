"""A recipe from a Python file, which is run for it.

Code runs only where somebody named the file on the command line: within `allow_code`, which no flow of Prefect's UI or of a worker is.
"""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from phasewise.flows.recipes.problems import problems
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, RecipeError

_loaded: ContextVar[dict[Path, dict[str, Recipe]] | None] = ContextVar("loaded", default=None)


@contextmanager
def allow_code() -> Iterator[None]:
    """Within it a recipe may be a Python file, and each file is run once. One within another changes nothing."""
    if _loaded.get() is not None:
        yield
        return
    before = _loaded.set({})
    try:
        yield
    finally:
        _loaded.reset(before)


def load_python(path: Path, wanted: str | None) -> Recipe:
    """The recipe of a file: the module-level one of the name `wanted`, else the only one.

    Raises:
        ConfigError: there is no such file, or the file has no such recipe, none, or several.
        RecipeError: the file must not be run here, or running it fails.
    """
    found = load_named(path)
    names = ", ".join(f"{path}:{name}" for name in found)
    if wanted is not None:
        if wanted not in found:
            raise ConfigError(
                f"{path} has no recipe called {wanted!r} at its top level; " + (f"it has {names}." if found else "it has none.")
            )
        return found[wanted]
    if not found:
        raise RecipeError(f"{path} has no recipe: at its top level one value must be a `Recipe`, such as RECIPE = Recipe(name=…, …).")
    if len({id(recipe) for recipe in found.values()}) > 1:
        raise ConfigError(f"{path} has {len(found)} recipes: name one of {names}.")
    return next(iter(found.values()))


def load_named(path: Path) -> dict[str, Recipe]:
    """Every recipe at the top level of a file, by the name that it has there. One may have several names.

    Raises:
        ConfigError: there is no such file.
        RecipeError: the file must not be run here, or running it fails.
    """
    loaded = _loaded.get()
    if loaded is None:
        raise RecipeError(
            f"{path} is code, and code runs only where `phasewise` is given the file on the command line. Here name a recipe or a .json "
            f"file: `phasewise new {path.stem}.json --from {path}` writes one."
        )
    place = path.resolve()
    if place not in loaded:
        module = ModuleType(f"recipe_file_{path.stem}")
        module.__file__ = str(path)
        try:
            code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
            with _importing_beside(path.resolve().parent, module), contextlib.redirect_stdout(sys.stderr):
                exec(code, vars(module))
        except FileNotFoundError as error:
            raise _no_file(path, error) from None
        except (Exception, SystemExit) as error:
            raise _refusal(path, error) from None
        loaded[place] = _recipes_of(module)
    return loaded[place]


def _recipes_of(module: ModuleType) -> dict[str, Recipe]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Recipe)}


@contextmanager
def _importing_beside(folder: Path, module: ModuleType) -> Iterator[None]:
    before, writes_none = set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.modules[module.__name__] = module
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_none
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if name == module.__name__ or _lies_in(sys.modules[name], folder):
                del sys.modules[name]
        sys.path_importer_cache.pop(str(folder), None)


def _lies_in(module: Any, folder: Path) -> bool:
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return file is not None and Path(file).is_relative_to(folder) and "site-packages" not in Path(file).parts


def _no_file(path: Path, error: FileNotFoundError) -> PhasewiseError:
    return ConfigError(f"no such file: {path}") if error.filename == str(path) and not path.exists() else _refusal(path, error)


def _refusal(path: Path, error: BaseException) -> RecipeError:
    if isinstance(error, SyntaxError) and error.filename in (str(path), None):
        line = f", line {error.lineno}" if error.lineno else ""
        return RecipeError(f"{path}{line}: this is not Python: {error.msg}.")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path}, line {lines[-1]}" if lines else str(path)
    if isinstance(error, ValidationError):
        return RecipeError(f"{where}: {error.title} is refused: {problems(error)}")
    if isinstance(error, PhasewiseError):
        return RecipeError(f"{where}: {error}")
    if isinstance(error, OSError) and not lines:
        return RecipeError(f"{path} cannot be read: {error.strerror}.")
    said = " ".join(str(error).split())
    return RecipeError(f"{where}: {type(error).__name__}{f': {said}' if said else ''}. Running the file must give a `Recipe`.")
