"""A recipe of one phase whose loss jumps: for a few steps it is fed text of another kind. Its recovery asks a person."""

import json
import random
from pathlib import Path
from typing import Any

from phasewise.flows.recipes.recipe import Recipe
from tests.deployments.long_recipe import write_long_recipe
from tests.tasks.conftest import write_lines

STOP_STEP, NOISE_FROM, NOISE_TO, EVERY = 40, 20, 22, 10
NOISE = "flan"
"""The component whose text is noise."""
RECOVERY = {
    "action": "ask",
    "max_loss": {"window": 10, "min_samples": 5, "sigmas": 3.0},
    "checkpoints_back": 1,
    "steps_more": NOISE_TO - NOISE_FROM - 1,
    "max_times": 1,
}


def write_spiking_recipe(folder: Path, name: str = "spiking", **fields: Any) -> Path:
    """The recipe's file; its sources beside it."""
    raw = json.loads(write_long_recipe(folder).read_text())
    rng = random.Random(7)
    noise = ["".join(rng.choice("qxzjkvwy0123456789#@") for _ in range(600)) for _ in range(150)]
    write_lines(folder / "sources" / f"{name}-noise" / "part.jsonl", noise)
    raw["sources"][NOISE]["url"] = (folder / "sources" / f"{name}-noise").as_uri()
    phase = raw["phases"][0]
    phase["stop_step"] = STOP_STEP
    phase["learning_rate"] = [{"kind": "constant", "start_step": 0, "end_step": STOP_STEP, "start": 0.01, "end": 0.01}]
    phase["checkpoints"]["every_steps"] = EVERY
    phase["order"]["block_sequences"] = 4
    prose = {"medu_science_qa": 50.0, "dolmino_stackexchange": 50.0}
    phase["mixture"] = [[0, prose], [NOISE_FROM, {NOISE: 100.0}], [NOISE_TO, prose]]
    phase["recovery"] = RECOVERY
    recipe = Recipe.model_validate({**raw, "name": name, **fields})
    path = folder / f"{name}.json"
    path.write_text(recipe.model_dump_json())
    return path
