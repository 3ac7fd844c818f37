"""Causes of planted faults, ranked by `phasewise why`: `python -m experiments.studies.causes`.

Ten kinds of garbage documents are planted among the files of this repository, five in a training of a small model, until 20 have trained.
Each must be in the first row, as its first document, at the step that trains on most of its tokens and on no other plant. Ten faults of
one layer are planted in checkpoints: scaled, random or missing weights, or lost moments of the optimizer. The replay of the first step
after the fault must name the layer. `docs/how-to/why.md` has the figures.
"""

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from experiments.survival.runs import tiny_recipe
from phasewise.flows.plan import build_run, data_plan
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.trace.causes import explain
from phasewise.flows.trace.document_search import find_by_file
from phasewise.flows.trace.trace_context import open_traced
from phasewise.flows.trace.trace_query import Trained, trains_at
from phasewise.tasks.data.caches import encode_part, finish_cache
from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.tokenizer import train_tokenizer
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.files import remove_checkpoint, saved_steps
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.data.manifest import SPLITS
from phasewise.trainer.loop import train
from phasewise.trainer.step import TrainState
from tests.tasks.data.builds import write_documents

STEPS, EVERY, BATCH, LENGTH, VOCABULARY = 300, 20, 16, 128, 1000
PLANTS, PER_RUN, FAULTS, MAX_CHARACTERS = 20, 5, 10, 2500
COMPONENTS = {"medu_science_qa": ("docs", "**/*.md"), "dolmino_stackexchange": ("trainer", "**/*.py"), "flan": ("tests", "**/*.py")}
OTHER = ("příliš", "žluťoučký", "kůň", "úpěl", "ďábelské", "ódy", "a", "nesl", "břemeno")
BROKEN = tuple(word.encode().decode("latin-1") for word in ("äö", "über", "Größe", "für", "schön", "naïve", "café", "„Wort“"))
GARBAGE: dict[str, Callable[[random.Random], str]] = {
    "random bytes": lambda draw: "".join(chr(draw.randrange(0x21, 0x250)) for _ in range(500)),
    "random letters": lambda draw: "".join(draw.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(900)),
    "one token": lambda draw: f"{draw.choice(['the', 'and', 'return', 'x'])} " * 900,
    "another language": lambda draw: " ".join(draw.choice(OTHER) for _ in range(150)),
    "mojibake": lambda draw: " ".join(draw.choice(BROKEN) for _ in range(150)),
    "base64": lambda draw: "".join(draw.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") for _ in range(900)),
    "digits": lambda draw: "".join(draw.choice("0123456789") for _ in range(900)),
    "line noise": lambda draw: "".join(chr(draw.randrange(0x21, 0x7F)) for _ in range(900)),
    "upper case": lambda draw: " ".join(draw.sample(Path("CHANGELOG.md").read_text().upper().split(), 300)),
    "repeated line": lambda draw: f"{draw.random()} click here to subscribe\n" * 80,
}  # fmt: skip


def prepared(folder: Path, seed: int, plants: dict[str, str]) -> tuple[Path, Home, RunConfig]:
    """A recipe of one phase over this repository's files and the plants, with its caches and its run."""
    raw: dict[str, Any] = tiny_recipe().model_dump(mode="json")
    phase = raw["phases"][0]
    rate = {"kind": "constant", "start_step": 0, "end_step": STEPS, "start": 3e-3, "end": 3e-3}
    phase |= {"stop_step": STEPS, "batch": [[0, BATCH]], "learning_rate": [rate]}
    phase["model"] |= {
        "num_layers": 4,
        "d_model": 64,
        "d_ff": 128,
        "num_query_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "seq_len": LENGTH,
    }
    phase["checkpoints"] |= {"every_steps": EVERY, "keep_all": True}
    phase["order"]["seed"], phase["start"]["seed"] = seed, seed
    raw |= {"phases": [phase], "tokenizer": {"name": None, "vocab_size": VOCABULARY, "components": None}, "sources": {}}
    draw = random.Random(seed)
    for place, (name, (room, pattern)) in enumerate(COMPONENTS.items()):
        files = {str(path): path.read_text() for path in sorted(Path(room).glob(pattern)) if path.stat().st_size > 500}
        documents = list(files.items()) + [one for number, one in enumerate(plants.items()) if number % len(COMPONENTS) == place]
        draw.shuffle(documents)
        for path, text in documents:
            target = folder / "text" / name / f"{path.replace('/', '-')}.jsonl"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps({"text": text[:MAX_CHARACTERS]}) + "\n")
        raw["sources"][name] = Source(url=(folder / "text" / name).as_uri(), include=("*.jsonl",), format="jsonl").model_dump(mode="json")
    recipe, home = Recipe.model_validate(raw), Home.open(str(folder / "home"))
    (folder / "recipe.json").write_text(recipe.model_dump_json())
    plan = data_plan(recipe, home)
    for component in plan.components.values():
        write_documents(component.source, component.documents.folder, 1 << 20, None)
    planted = {text[:MAX_CHARACTERS] for text in plants.values()}
    texts = (split_texts(one.documents.folder, "train") for one in plan.components.values())
    train_tokenizer(([text for text in of_component if text not in planted] for of_component in texts), VOCABULARY, plan.tokenizer)
    for name, component in plan.components.items():
        for split in SPLITS:
            cache, documents = component.cache(split), component.documents.folder
            for number in range(len(list(documents.glob("part-*.parquet")))):
                encode_part(documents, number, plan.tokenizer, {split: cache.folder})
            finish_cache(name, split, documents, plan.tokenizer, cache.key, cache.folder)
    run = build_run(recipe, recipe.phases[0], home, plan.folders("train")).but(instrumentation={"layer_norms_every": 1})
    write_sealed(RunFolder(run.output).run_file, run.model_dump(mode="json"))
    return folder / "recipe.json", home, run


def garbage_ranks(folder: Path, seed: int) -> tuple[list[tuple[str, bool]], tuple[Path, Home, RunConfig]]:
    """Each kind and whether its document is first, and the training. Prints a line for each plant."""
    draw = random.Random(seed)
    kinds = ([*GARBAGE] * 2)[PER_RUN * (seed % 2) :][:PER_RUN]  # some are held out, or drawn early
    plants = {f"planted-{number}": GARBAGE[kind](draw) for number, kind in enumerate(kinds)}
    path, home, run = prepared(folder, seed, plants)
    train(run)
    traced = open_traced(f"{path}/{run.phase}", "proxy", str(home.root), only_phase=True)
    found: list[tuple[str, bool]] = []
    trained: dict[int, list[Trained]] = {}
    for number in range(len(kinds)):
        (asked,) = find_by_file(traced, f"planted-{number}.jsonl").found
        trained[number] = [one for _, one in trains_at(traced, asked.component, [asked.asked])] if asked.split == "train" else []
    for number, kind in enumerate(kinds):
        others = {one.step for other, of_other in trained.items() for one in of_other if other != number}
        late = [one for one in trained[number] if one.step > STEPS // 3 and one.step not in others]
        if late:
            step = max(late, key=lambda one: one.tokens).step
            answer = explain(traced, step)
            rows = [row["documents"][0]["file"] for row in answer["rows"]]
            rank = rows.index(f"planted-{number}.jsonl") + 1 if f"planted-{number}.jsonl" in rows else None
            found.append((kind, rank == 1))
            print(f"seed {seed}, {kind}: step {step}, rank {rank}, first {answer['rows'][0]['score']:+.1f} {rows[0]}", flush=True)
    return found, (path, home, run)


def damaged(state: TrainState, layer: int, kind: str) -> TrainState:
    """The state with a fault in one layer."""
    if kind == "lost moments":
        optimizer: Any = state.optimizer
        blocks = jax.tree.map(lambda leaf: leaf.at[layer].multiply(1e-4), optimizer.nu["blocks"])
        return state._replace(optimizer=optimizer._replace(nu={**optimizer.nu, "blocks": blocks}))
    faults: dict[str, Callable[[jax.Array], jax.Array]] = {
        "scaled": lambda leaf: 3.0 * leaf,
        "noise": lambda leaf: leaf + 0.15 * jax.random.normal(jax.random.key(layer), leaf.shape),
        "zeroed": lambda leaf: 0.0 * leaf,
    }
    blocks = jax.tree.map(lambda leaf: leaf.at[layer].set(faults[kind](leaf[layer])), state.params["blocks"])
    return state._replace(params={**state.params, "blocks": blocks})


def layer_named(path: Path, home: Home, run: RunConfig, fault: tuple[int, str, int]) -> tuple[bool, bool]:
    """Whether the replay names the layer, and whether its norms are first. Prints a line."""
    layer, kind, step = fault
    folder, sound = RunFolder(run.output).path, home.root / "sound"
    if not sound.exists():
        shutil.copytree(folder, sound)
    shutil.rmtree(folder)
    shutil.copytree(sound, folder)
    contract = Loader(run).contract()
    with Checkpoints(RunFolder(run.output).checkpoints, run) as checkpoints:
        state = damaged(checkpoints.restore(step, contract), layer, kind)
        for later in [one for one in saved_steps(checkpoints.folder) if one >= step]:
            remove_checkpoint(checkpoints.folder / str(later))
        checkpoints.save(step, state, contract)
    train(run)
    traced = open_traced(f"{path}/{run.phase}", "proxy", str(home.root), only_phase=True)
    found = explain(traced, step + (2 if kind == "lost moments" else 1), replays=True)
    named, norms = found["replay"]["named"], found["layers"][0]["name"] if found["layers"] else None
    print(f"layer {layer} {kind} at {step}: {found['kind']} {found['score']:+.1f}, replay {named}, norms {norms}", flush=True)
    return named == f"layer {layer}", str(norms).endswith(f"/{layer}")


def main() -> None:
    ranks: list[tuple[str, bool]] = []
    last: tuple[Path, Home, RunConfig] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(8):
            if len(ranks) < PLANTS:
                found, last = garbage_ranks(Path(folder) / str(seed), seed)
                ranks += found
        assert last is not None
        kinds = ("scaled", "noise", "zeroed", "lost moments")
        faults = [(number % 4, kinds[number % len(kinds) - number // 4], STEPS - EVERY * (2 + number % 3)) for number in range(FAULTS)]
        layers = [layer_named(*last, fault) for fault in faults]
    print(f"planted documents first: {sum(is_first for _, is_first in ranks[:PLANTS])} of {len(ranks[:PLANTS])}")
    print(f"layers named by the replay: {sum(one for one, _ in layers)} of {FAULTS}, first by their norms: {sum(one for _, one in layers)}")


if __name__ == "__main__":
    main()
