"""A small real home: two phases trained, judged and evaluated on text of its own, without Prefect. It takes about a minute."""

import json
import random
from pathlib import Path
from typing import Any

from experiments.survival.runs import COMPONENTS
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved, resolve
from phasewise.flows.status.verdict_inputs import decided_by, hand_off_facts
from phasewise.tasks.evaluation.checkpoint import evaluate_phase
from phasewise.tasks.evaluation.made_benchmarks import write_missing_benchmarks
from phasewise.tasks.evaluation.phase_evaluation import request_evaluation
from phasewise.tasks.home import Home
from phasewise.tasks.training.attempts import launch_trainer
from phasewise.tasks.validation.judge import judge_phase_data, judge_phase_health
from phasewise.trainer.base.identity import read_sealed
from phasewise.validations.evidence.caches import hand_off_evidence
from phasewise.validations.verdict import judge_gate, write_verdict
from tests.flows.trace.world import prepare, traced_recipe

PHASES = ("kestrel", "ocelot")
HELD_OUT_TOKENS = 200


def card_recipe(sources: Path) -> Recipe:
    """Two phases: the second one has another mixture from step 47 on, and all of its checkpoints are kept."""
    raw: dict[str, Any] = json.loads(traced_recipe(sources).model_dump_json())
    raw["phases"] = raw["phases"][:2]
    for phase in raw["phases"]:
        phase["evaluation"] |= {"held_out_tokens": HELD_OUT_TOKENS, "loss_every_steps": None, "benchmarks": ["next_word"]}
        phase["checkpoints"] |= {"every_steps": 4, "keep_all": True}
        phase["gates"]["data"] |= {"max_share_error_points": 50.0, "max_epochs": 1000}
        phase["gates"]["data"]["leakage"]["max_items"] = 1000  # the text is made of few phrases
    return Recipe.model_validate(raw)


PHRASES = (
    "the river runs below the old bridge", "a letter came from the far harbour", "the carpenter mended the window",
    "rain fell on the garden", "the lantern burned in the mirror", "she walked through the orchard at noon",
    "an engine stood on the mountain road",
)  # fmt: skip


def prose(seed: int) -> str:
    draw = random.Random(seed)
    return f"Note {seed}: " + ". ".join(draw.choice(PHRASES) for _ in range(draw.randint(8, 16))) + "."


def write_world(root: Path) -> tuple[Path, Home]:
    home = Home.open(str(root / "home"))
    for place, name in enumerate(sorted(COMPONENTS)):
        path = home.sources / name / "text.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [prose(1000 * place + number) for number in range(150)]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    path = root / "carded.json"
    path.write_text(card_recipe(home.sources).model_dump_json())
    prepare(Recipe.model_validate_json(path.read_text()), home)
    resolved, _ = resolve(str(path), "proxy", str(home.root))
    write_missing_benchmarks(resolved.plan)
    for name in PHASES:
        train(resolved, resolved.recipe.phase(name))
    return path, home


def train(resolved: Resolved, phase: Phase) -> None:
    """What a flow does with a phase, in order: judge its data, train, judge its training, evaluate, judge its model."""
    recipe, home, plan = resolved.recipe, resolved.home, resolved.plan
    run = resolved.run(phase)
    facts = hand_off_facts(recipe, phase, run)
    hand_off = hand_off_evidence(facts[0], facts[1])
    rests_on = decided_by(resolved, phase, run)
    assert judge_phase_data(run, plan, phase.gates.data, home, hand_off=hand_off, decided_by=rests_on, accepts=recipe.accepts).passes
    result = launch_trainer(run, lambda _: None)
    evaluation = evaluate_phase(request_evaluation(run, result, plan, phase.evaluation.measured))
    if phase.parent is None:
        return  # nothing of a parent's later verdicts is in a card
    judge_phase_health(run, phase.gates.health, home, accepts=recipe.accepts)
    parent = read_sealed(home.run(recipe.run_name, phase.parent) / "evaluation.json")
    path = home.verdict(recipe.run_name, phase.name, "model")
    subject = f"{recipe.name}/{recipe.scale}/{phase.name} model"
    verdict = judge_gate(subject, evaluation, parent_evaluation=parent, limits=phase.gates.model, folder=path.with_suffix(""))
    write_verdict(path, verdict)
