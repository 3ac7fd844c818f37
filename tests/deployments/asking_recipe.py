"""A recipe of one phase whose data is drawn more often than its limit, which a person may let pass; on text of its own."""

import json
from pathlib import Path
from typing import Any

from phasewise.flows.recipes.recipe import Recipe
from tests.deployments.long_recipe import write_long_recipe

STOP_STEP = 6
EPOCHS = {"table": "mixture", "check": "expect_epochs_within_limit"}


def write_asking_recipe(folder: Path, name: str = "asking", **fields: Any) -> Path:
    """The recipe's file; its sources beside it."""
    raw = json.loads(write_long_recipe(folder).read_text())
    phase = raw["phases"][0]
    phase["stop_step"] = phase["learning_rate"][0]["end_step"] = STOP_STEP
    phase["checkpoints"]["every_steps"] = STOP_STEP
    phase["gates"]["data"]["max_epochs"] = 0.001
    recipe = Recipe.model_validate({**raw, "name": name, "approvable": [EPOCHS], **fields})
    path = folder / f"{name}.json"
    path.write_text(recipe.model_dump_json())
    return path
