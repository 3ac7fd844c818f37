"""Recipes for the server of the tests, on text of their own: one that trains for long, a short one, and two that ask a person."""

import random
from pathlib import Path
from typing import Any

from experiments.survival.runs import COMPONENTS, tiny_recipe
from phasewise.flows.recipes.recipe import Recipe
from tests.tasks.conftest import write_lines, write_prose

LONG_STEPS, ASKING_STEPS, SPIKING_STEPS = 1_000_000, 6, 40
NOISE_FROM, NOISE_TO = 20, 22  # the steps between which the spiking recipe trains on noise
EPOCHS = {"table": "mixture", "check": "expect_epochs_within_limit"}


def write_long_recipe(folder: Path) -> Path:
    """No checkpoint is due before the end: what is saved was saved at a stop."""
    return _write(folder, "long", _one_phase(folder, LONG_STEPS, LONG_STEPS))


def write_short_recipe(folder: Path) -> Path:
    raw = tiny_recipe().model_dump(mode="json")
    for phase in raw["phases"]:
        phase["gates"]["data"]["max_epochs"] = None
    return _write(folder, "short", {**raw, "sources": _sources(folder)})


def write_asking_recipe(folder: Path, name: str) -> Path:
    raw = _one_phase(folder, ASKING_STEPS, ASKING_STEPS)
    raw["phases"][0]["gates"]["data"]["max_epochs"] = 0.001
    return _write(folder, name, {**raw, "approvable": [EPOCHS]})


def write_spiking_recipe(folder: Path) -> Path:
    raw = _one_phase(folder, SPIKING_STEPS, 10)
    rng = random.Random(7)
    noise = folder / "sources" / "noise"
    write_lines(noise / "part.jsonl", ["".join(rng.choice("qxzjkvwy0123456789#@") for _ in range(600)) for _ in range(150)])
    raw["sources"]["flan"]["url"] = noise.as_uri()
    phase = raw["phases"][0]
    phase["learning_rate"] = [{"kind": "constant", "start_step": 0, "end_step": SPIKING_STEPS, "start": 0.01, "end": 0.01}]
    phase["order"]["block_sequences"] = 4
    prose = {"medu_science_qa": 50.0, "dolmino_stackexchange": 50.0}
    phase["mixture"] = [[0, prose], [NOISE_FROM, {"flan": 100.0}], [NOISE_TO, prose]]
    max_loss = {"window": 10, "min_samples": 5, "sigmas": 3.0}
    steps_more = NOISE_TO - NOISE_FROM - 1
    phase["recovery"] = {"action": "ask", "max_loss": max_loss, "checkpoints_back": 1, "steps_more": steps_more, "max_times": 1}
    return _write(folder, "spiking", raw)


def _one_phase(folder: Path, stop_step: int, every_steps: int) -> dict[str, Any]:
    raw = tiny_recipe().model_dump(mode="json")
    phase = raw["phases"][0]
    phase["stop_step"] = phase["learning_rate"][0]["end_step"] = stop_step
    phase["batch"] = [[0, 2]]
    phase["checkpoints"]["every_steps"] = every_steps
    phase["gates"]["data"]["max_epochs"] = None
    return {**raw, "phases": [phase], "sources": _sources(folder)}


def _sources(folder: Path) -> dict[str, dict[str, Any]]:
    for place, name in enumerate(COMPONENTS):
        write_lines(folder / "sources" / name / "part.jsonl", [write_prose(10_000 * place + number, 20) for number in range(150)])
    source = {"include": ["*.jsonl"], "exclude": [], "format": "jsonl", "text_key": "text"}
    return {name: {**source, "url": (folder / "sources" / name).as_uri()} for name in COMPONENTS}


def _write(folder: Path, name: str, raw: dict[str, Any]) -> Path:
    path = folder / f"{name}.json"
    path.write_text(Recipe.model_validate({**raw, "name": name}).model_dump_json())
    return path
