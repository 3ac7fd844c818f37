"""`phasewise new` and `phasewise schema`."""

import json
from pathlib import Path
from typing import Any

from phasewise.flows.recipes import NAMES, default_scale, load_record, load_written
from phasewise.flows.recipes.inspect_source import inspect_folder
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.starter import name_for, starter, starter_from
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.base.wording import name_some


def write_new(file: str, origin: str | None, text: str) -> list[str]:
    """Write a recipe's file to start from, and what to say about it, line by line.

    Args:
        origin: the recipe whose main line it has, or, for a .json file, that it is a copy of.
        text: the folder of the text that it trains on.

    Raises:
        ConfigError: the file is there already, is neither .py nor .json, or its folder is missing; no such recipe.
    """
    path = Path(file)
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{file} is there already, and is not written over: give another name, or delete it.")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} to write {path.name} to.")
    if path.suffix == ".json":
        if origin is None:
            raise ConfigError(
                f"{path} would be data, a copy of a recipe: say of which one with --from, or give it a name that ends in .py."
            )
        recipe = load_record(origin, default_scale(load_written(origin)))
        data: dict[str, Any] = recipe.model_dump(mode="json")
        if recipe.name in NAMES:
            data["name"] = name_for(path)
        write_atomically(path, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())
        return [f"{path} is written, with every value. Next: phasewise show {path}"]
    if path.suffix != ".py":
        raise ConfigError(f"a new recipe is a .py file, or with --from a .json file; found {file}.")
    folder = Path(text)
    found = inspect_folder(folder)
    proxy = load_record(origin, default_scale(load_written(origin))) if origin else None
    written = starter_from(path, folder, found, proxy) if proxy else starter(path, folder, found)
    write_atomically(path, written.encode())
    lines = [f"{file} is written. Next: phasewise run {file}"]
    if not found.documents:
        lines.append(f"There is no text in {folder} yet: put some .txt files there, or change TEXT and the globs in {file}.")
    if found.left_out:
        taken = ", ".join(found.include)
        lines.append(f"It reads {taken}; files that end in {', '.join(found.left_out)} are left out.")
    if found.beside:
        beside = name_some(found.beside, 5)
        lines.append(
            f"It reads the field {found.text_key} of each line, and not {beside}. If a line is a conversation, give its layout: "
            "conversation=Conversation(…), as docs/how-to/recipe.md says."
        )
    return lines


def schema() -> dict[str, Any]:
    """The JSON schema of a recipe (draft 2020-12): what a .json file may hold."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}
