"""A recipe of two phases that each train in a moment, on text of its own."""

from pathlib import Path

from experiments.survival.runs import COMPONENTS, tiny_recipe
from phasewise.flows.recipes.recipe import Recipe
from tests.tasks.conftest import write_lines, write_prose


def write_short_recipe(folder: Path) -> Path:
    """The recipe's file; its sources beside it."""
    for place, name in enumerate(COMPONENTS):
        write_lines(folder / "sources" / name / "part.jsonl", [write_prose(10_000 * place + number, 20) for number in range(150)])
    source = {"include": ["*.jsonl"], "exclude": [], "format": "jsonl", "text_key": "text"}
    sources = {name: {**source, "url": (folder / "sources" / name).as_uri()} for name in COMPONENTS}
    raw = tiny_recipe().model_dump(mode="json")
    for phase in raw["phases"]:
        phase["gates"]["data"]["max_epochs"] = None
    path = folder / "short.json"
    path.write_text(Recipe.model_validate({**raw, "name": "short", "sources": sources}).model_dump_json())
    return path
