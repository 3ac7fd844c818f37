"""Recipes of one's own for the deployments: read once from a folder, in the terminal, and kept as JSON for the flows.

A Python file is code. `phasewise up --recipes FOLDER` runs the files of the folder, because the person at the terminal named it; no flow
ever runs one: it reads the JSON that came of it.
"""

from pathlib import Path

from phasewise.deployments.declared import Source
from phasewise.flows.recipes import load_every
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, RecipeError
from phasewise.trainer.base.storage import write_atomically

SUFFIXES = (".py", ".json")


def read_folder(folder: Path, home: Home) -> list[Source]:
    """The recipes of every `.py` and `.json` file in the folder, except those whose name begins with `_` or a dot.

    They are written as JSON under the home, as they are now: what changes in the folder counts at the next start.

    Raises:
        ConfigError: it is no folder, or has no recipe.
        RecipeError: a file is no recipe, or two recipes have one name.
    """
    if not folder.is_dir():
        raise ConfigError(f"--recipes needs a folder of recipes, found {folder}, which is none.")
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.name[0] not in "_.")
    if not files:
        raise ConfigError(f"--recipes needs a folder with .py or .json files, found none in {folder}. `phasewise new` writes one.")
    found: dict[str, Path] = {}
    sources: list[Source] = []
    for file in files:
        for recipe in load_every(file):
            if other := found.get(recipe.name):
                raise RecipeError(
                    f"{file} and {other} both call a recipe {recipe.name}: they would share their folders. Give one another name."
                )
            found[recipe.name] = file
            kept = home.prefect / "recipes" / f"{recipe.name}.json"
            write_atomically(kept, (_placed(recipe).model_dump_json(indent=2) + "\n").encode())
            sources.append(Source(str(kept), recipe))
    return sources


def _placed(recipe: Recipe) -> Recipe:
    """With absolute paths of text: flows run in another folder than the terminal."""
    sources = {
        name: source if "://" in source.url else source.but(url=str(Path(source.url).expanduser().resolve()))
        for name, source in recipe.sources.items()
    }
    return recipe.but(sources=sources)
