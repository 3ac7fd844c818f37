"""`phasewise new`."""

import json
from pathlib import Path
from typing import Any

from phasewise.flows.recipes import NAMES, default_scale, load_record, load_written
from phasewise.flows.recipes.starter import inspect_folder, name_for, starter, starter_from
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.base.wording import name_some


def write_new(file: str, origin: str | None, text: str) -> list[str]:
    """Write a new recipe, from the main line of `origin` (.json: a full copy), and return lines for the terminal."""
    path = Path(file)
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{file} exists already and is not overwritten: give another name, or delete it.")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} to write {path.name} to.")
    if path.suffix not in (".py", ".json"):
        raise ConfigError(f"a new recipe is a .py file, or with --from a .json file, found {file}.")
    if path.suffix == ".json" and origin is None:
        raise ConfigError(f"{path}: a .json file is a copy of a recipe. Name the recipe with --from, or name a .py file.")
    original = load_record(origin, default_scale(load_written(origin))) if origin else None
    if path.suffix == ".json" and original:
        data: dict[str, Any] = original.model_dump(mode="json")
        if original.name in NAMES:
            data["name"] = name_for(path)
        write_atomically(path, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode())
        return [f"{path} is written, with every value. Next: phasewise show {path}"]
    folder = Path(text)
    found = inspect_folder(folder)
    written = starter_from(path, folder, found, original) if original else starter(path, folder, found)
    write_atomically(path, written.encode())
    lines = [f"{file} is written. Next: phasewise run {file}"]
    if not found.documents:
        lines.append(f"There is no text in {folder} yet: put some .txt files there, or change TEXT and the globs in {file}.")
    if found.left_out:
        lines.append(f"It reads {', '.join(found.include)}; files that end in {', '.join(found.left_out)} are left out.")
    if found.beside:
        lines.append(
            f"It reads the field {found.text_key} of each line, and not {name_some(found.beside, 5)}. If a line is a conversation, give "
            "its layout: conversation=Conversation(…), as docs/how-to/recipe.md says."
        )
    return lines
