"""A recipe of five phases over text of its own, and a home in which its caches are prepared; nothing is trained."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from experiments.survival.runs import COMPONENTS, tiny_recipe
from phasewise.flows.cli.main import main
from phasewise.flows.cli.trace import Question, trace
from phasewise.flows.plan import build_run, data_plan
from phasewise.flows.recipes import at_scale
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.caches import encode_part, finish_cache
from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.tokenizer import train_tokenizer
from phasewise.tasks.home import Home
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import SPLITS
from tests.tasks.data.builds import write_documents

WORDS = ("river", "mountain", "garden", "window", "lantern", "harbour", "carpenter", "mirror", "orchard", "bridge", "letter", "engine")
VOCAB_SIZE = 300
OTHER_MIXTURE = {"medu_science_qa": 20.0, "flan": 80.0}


def prose(seed: int) -> str:
    draw = random.Random(seed)
    return f"Document {seed}: " + " ".join(draw.choice([*WORDS, "Žluťoučký", "kůň"]) for _ in range(draw.randint(1, 120))) + "."


def rate(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"kind": "constant", "start_step": start, "end_step": stop, "start": 1e-3, "end": 1e-3}]


def traced_recipe(sources: Path) -> Recipe:
    raw: dict[str, Any] = tiny_recipe().model_dump(mode="json")
    first, second = raw["phases"]
    second["mixture"] = [[0, COMPONENTS], [47, OTHER_MIXTURE]]
    third: dict[str, Any] = {
        **second, "name": "third",
        "start": {"parent": "ocelot", "step": 52, "fresh": [], "graft": [], "declares": ["order", "coverage", "batch", "learning_rate"]},
        "stop_step": 60, "learning_rate": rate(52, 60), "batch": [[0, 2], [40, 6], [52, 3], [56, 5]],
        "mixture": [[0, OTHER_MIXTURE], [55, COMPONENTS]],
        "order": {**second["order"], "first_step": 52, "seed": 9, "permutation": "feistel"},
    }  # fmt: skip
    branch: dict[str, Any] = {
        **second, "name": "side",
        "start": {"parent": "ocelot", "step": 45, "fresh": [], "graft": [], "declares": ["mixture", "learning_rate"]}, "stop_step": 50,
        "learning_rate": rate(45, 50), "mixture": [[0, {"flan": 100.0}]], "branch": True,
    }  # fmt: skip
    buffered: dict[str, Any] = {**third, "name": "buffered", "order": {**third["order"], "buffer_documents": 3}, "branch": True}
    mixed: dict[str, Any] = {**buffered, "name": "mixed", "order": {**buffered["order"], "buffer_over": "mixture"}}
    for phase in (second, third, branch, buffered, mixed):
        phase["order"] = dict(phase["order"]) | {"cut_blocks": True}
    second["checkpoints"] = {**second["checkpoints"], "at_steps": [45]}
    first["order"]["cut_blocks"] = True
    named = {name: Source(url=(sources / name).as_uri(), include=("**/*.jsonl",), format="jsonl") for name in COMPONENTS}
    raw["sources"] = {name: source.model_dump(mode="json") for name, source in named.items()}
    raw["tokenizer"] = {"name": None, "vocab_size": VOCAB_SIZE, "components": None}
    return Recipe.model_validate({**raw, "phases": [first, second, third, branch, buffered, mixed]})


def write_sources(folder: Path) -> None:
    for place, name in enumerate(sorted(COMPONENTS)):
        texts = [prose(1000 * place + number) for number in range(20 if name == "flan" else 90)]
        for part, chosen in (("one", texts[:50]), ("two", texts[50:])):
            copied = texts[:10] if (name, part) == ("flan", "two") else chosen
            path = folder / name / part / "text.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in copied), encoding="utf-8")


def prepare(recipe: Recipe, home: Home) -> DataPlan:
    plan = data_plan(recipe, home)
    for component in plan.components.values():
        evidence = component.near_copies if component.source.deduplicate == "near" else None
        write_documents(component.source, component.documents.folder, 1 << 13, evidence)
    texts = (split_texts(plan.components[name].documents.folder, "train") for name in plan.tokenizer_components)
    train_tokenizer(texts, VOCAB_SIZE, plan.tokenizer)
    for component in plan.components.values():
        documents = component.documents.folder
        parts = len(list(documents.glob("part-*.parquet")))
        for split in SPLITS:
            cache = component.cache(split)
            for number in range(parts):
                encode_part(documents, number, plan.tokenizer, {split: cache.folder})
            finish_cache(component.name, split, documents, plan.tokenizer, cache.key, cache.folder)
    return plan


def write_world(root: Path) -> tuple[Path, Home]:
    write_sources(root / "text")
    path = root / "traced.json"
    path.write_text(traced_recipe(root / "text").model_dump_json())
    home = Home.open(str(root / "home"))
    prepare(Recipe.model_validate_json(path.read_text()), home)
    return path, home


def run_of(recipe_file: Path, home: Home, phase: str) -> RunConfig:
    recipe = at_scale(Recipe.model_validate_json(recipe_file.read_text()), "proxy", str(recipe_file))
    plan = data_plan(recipe, home)
    return build_run(recipe, recipe.phase(phase), home, plan.folders("train"), needs_parent=False)


PHASES = {"kestrel": (0, 40), "ocelot": (40, 52), "third": (52, 60)}
Piece = tuple[Any, ...]


@dataclass(frozen=True)
class World:
    recipe: Path
    home: Home

    def ask(self, target: str = "", **question: Any) -> dict[str, Any]:
        return trace(f"{self.recipe}{target}", "proxy", str(self.home.root), Question(**question))

    def invoke(self, target: str, *arguments: str) -> tuple[int, str, str]:
        command_line = ["trace", f"{self.recipe}{target}", "--home", str(self.home.root), *arguments]
        result = CliRunner().invoke(main, command_line)
        return result.exit_code, result.stdout, result.stderr

    def documents(self, component: str, split: str = "train") -> dict[str, np.ndarray]:
        (folder,) = (self.home.root / "tokens" / component).glob(f"{split}-*")
        return {document.id: document.tokens for document in TokenCache.open(folder).documents()}


KEY = ("phase", "step", "row", "component", "document", "file", "offset", "tokens", "at", "epoch", "cache_row", "buffer_row")


def key(row: dict[str, Any]) -> Piece:
    return tuple(row[name] for name in KEY)
