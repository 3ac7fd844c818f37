"""A recipe of one phase that trains for longer than any test waits, on text of its own."""

from pathlib import Path

from experiments.survival.runs import COMPONENTS, tiny_recipe
from phasewise.flows.recipes.recipe import Recipe
from tests.tasks.conftest import write_lines, write_prose

STOP_STEP = 1_000_000


def write_long_recipe(folder: Path) -> Path:
    """The recipe's file; its sources beside it. No checkpoint is due before the end: what is saved was saved at a stop."""
    for place, name in enumerate(COMPONENTS):
        write_lines(folder / "sources" / name / "part.jsonl", [write_prose(10_000 * place + number, 20) for number in range(150)])
    raw = tiny_recipe().model_dump(mode="json")
    phase = raw["phases"][0]
    phase["stop_step"] = phase["learning_rate"][0]["end_step"] = STOP_STEP
    phase["batch"] = [[0, 2]]
    phase["checkpoints"]["every_steps"] = STOP_STEP
    phase["gates"]["data"]["max_epochs"] = None
    source = {"include": ["*.jsonl"], "exclude": [], "format": "jsonl", "text_key": "text"}
    sources = {name: {**source, "url": (folder / "sources" / name).as_uri()} for name in COMPONENTS}
    recipe = Recipe.model_validate({**raw, "name": "long", "phases": [phase], "sources": sources})
    path = folder / "long.json"
    path.write_text(recipe.model_dump_json())
    return path
