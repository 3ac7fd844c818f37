"""Recipes from Python files. The code of a file runs only within `allow_code`: commands allow it, flows in workers don't."""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from phasewise.trainer.base.errors import ConfigError, PhasewiseError, RecipeError

if TYPE_CHECKING:
    from phasewise.flows.recipes.recipe import Recipe

_loaded: ContextVar["dict[Path, dict[str, Recipe]] | None"] = ContextVar("loaded", default=None)
checked_recipes: ContextVar["dict[str, Recipe]"] = ContextVar("checked recipes")  # complete recipes of files by name, in a command or flow


@contextmanager
def allow_code() -> Iterator[None]:
    """Allow Python files as recipes. Each file runs once, also in nested contexts, and each recipe of a file is checked once."""
    if _loaded.get() is not None:
        yield
        return
    before, checked_before = _loaded.set({}), checked_recipes.set({})
    try:
        yield
    finally:
        _loaded.reset(before)
        checked_recipes.reset(checked_before)


def load_python(path: Path, wanted: str | None) -> "Recipe":
    """The recipe with a name at the top level of a file. Without a name, the only recipe of the file."""
    found = load_named(path)
    names = ", ".join(f"{path}:{name}" for name in found)
    if wanted is not None:
        if wanted not in found:
            others = f"The file has {names}." if found else "The file has no recipe."
            raise ConfigError(f"{path} has no recipe called {wanted!r} at its top level. {others}")
        return found[wanted]
    if not found:
        raise RecipeError(f"{path} has no recipe: at its top level one value must be a `Recipe`, such as RECIPE = Recipe(name=…, …).")
    if len({id(recipe) for recipe in found.values()}) > 1:
        raise ConfigError(f"{path} has {len(found)} recipes: name one of {names}.")
    return next(iter(found.values()))


def load_named(path: Path) -> "dict[str, Recipe]":
    """Name → recipe, for all names at the top level of a file."""
    import_module("phasewise.flows.recipes.words")  # libraries before the file's folder is searched, which may have a `numbers.py`
    from phasewise.flows.recipes.recipe import Recipe

    loaded = _loaded.get()
    if loaded is None:
        raise RecipeError(
            f"{path} is code, and code runs only if `phasewise` gets the file on the command line. Here name a recipe or a .json file. "
            f"`phasewise new {path.stem}.json --from {path}` writes one."
        )
    place = path.resolve()
    if place not in loaded:
        module = ModuleType(f"recipe_file_{path.stem}")
        module.__file__ = str(path)
        folder, before, writes_none = place.parent, set(sys.modules), sys.dont_write_bytecode
        sys.path.insert(0, str(folder))
        sys.modules[module.__name__] = module
        sys.dont_write_bytecode = True
        try:
            code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
            with contextlib.redirect_stdout(sys.stderr):
                exec(code, vars(module))
        except FileNotFoundError as error:
            if error.filename == str(path) and not path.exists():
                raise ConfigError(f"no such file: {path}") from None
            raise _failure(path, error) from None
        except (Exception, SystemExit) as error:
            raise _failure(path, error) from None
        finally:
            sys.dont_write_bytecode = writes_none
            sys.path.remove(str(folder))
            for name in set(sys.modules) - before:
                imported: Any = sys.modules[name]
                file = getattr(imported, "__file__", None) or next(iter(getattr(imported, "__path__", ())), None)
                is_neighbour = file is not None and Path(file).is_relative_to(folder) and "site-packages" not in Path(file).parts
                if name == module.__name__ or is_neighbour:
                    del sys.modules[name]
            sys.path_importer_cache.pop(str(folder), None)
        loaded[place] = {name: value for name, value in vars(module).items() if isinstance(value, Recipe)}
    return loaded[place]


def _failure(path: Path, error: BaseException) -> RecipeError:
    from pydantic import ValidationError

    from phasewise.flows.recipes.assignments import problems

    if isinstance(error, SyntaxError) and error.filename in (str(path), None):
        line = f", line {error.lineno}" if error.lineno else ""
        return RecipeError(f"{path}{line}: this is not Python: {error.msg}.")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"{path}, line {lines[-1]}" if lines else str(path)
    if isinstance(error, ValidationError):
        return RecipeError(f"{where}: {error.title} is invalid: {problems(error)}")
    if isinstance(error, PhasewiseError):
        return RecipeError(f"{where}: {error}")
    if isinstance(error, OSError) and not lines:
        return RecipeError(f"{path} cannot be read: {error.strerror}.")
    message = " ".join(str(error).split())
    return RecipeError(f"{where}: {type(error).__name__}{f': {message}' if message else ''}. Running the file must give a `Recipe`.")
