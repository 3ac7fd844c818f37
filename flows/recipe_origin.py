"""Which file a home's runs of a recipe come from: two recipes of one name would share their folders, and mix their runs."""

from pathlib import Path

from pydantic import ValidationError

from phasewise.flows.recipes import FILE
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import read_json, write_json


class RecipeOrigin(Frozen):
    """The file that a recipe was read from, on this machine, and what makes it another recipe: its phases, and where its own text is.

    All else may be edited, also in a copy: what it changes is trained again, and `run` says so.
    """

    file: str
    phases: tuple[str, ...]
    urls: dict[str, str]


def origin_of(name: str, written: Recipe, home: Home) -> RecipeOrigin | None:
    """The origin of a recipe in a file; None of one of this project, and of the copies that `phasewise up` keeps in its home."""
    file = FILE.fullmatch(name)
    if file is None or not home.is_local:
        return None
    path = Path(file["path"]).resolve()
    if path.is_relative_to(home.prefect):
        return None
    return RecipeOrigin(
        file=str(path) + (file["of_file"] or ""),
        phases=tuple(phase.name for phase in written.phases),
        urls={name: source.url for name, source in sorted(written.sources.items())},
    )


def check_name_free(origin: RecipeOrigin | None, recipe: Recipe, home: Home) -> None:
    """Refuse a recipe whose name another file of this home has. A file that is gone was moved.

    Raises:
        RecipeError: the home has runs from another file that is still there.
    """
    if origin is None:
        return
    try:
        found = RecipeOrigin.model_validate(read_json(_place(recipe, home)))
    except (OSError, ValueError, ValidationError):
        return
    is_same = (found.phases, found.urls) == (origin.phases, origin.urls)
    if is_same or _stem(found) == _stem(origin) or not _path(found).exists():
        return
    raise RecipeError(
        f"the name {recipe.name} is taken in the home {home.root}: its runs are of {found.file}, and {origin.file} is another recipe. Give "
        "it another `name`, or its own --home."
    )


def keep_origin(origin: RecipeOrigin | None, recipe: Recipe, home: Home) -> None:
    """Write which file the home's runs of a recipe come from."""
    if origin is not None:
        write_json(_place(recipe, home), origin.model_dump(mode="json"))


def _place(recipe: Recipe, home: Home) -> Path:
    return home.root / "recipes" / f"{recipe.run_name}.json"


def _path(origin: RecipeOrigin) -> Path:
    found = FILE.fullmatch(origin.file)
    return Path(found["path"] if found else origin.file)


def _stem(origin: RecipeOrigin) -> str:
    """A recipe as code and as data, side by side, is one recipe; two recipes of one file are two."""
    path = _path(origin)
    return f"{path.with_suffix('')}{origin.file[len(str(path)) :] if path.suffix == '.py' else ''}"
