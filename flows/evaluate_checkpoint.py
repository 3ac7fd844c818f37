"""A phase's last checkpoint → benchmarks and bits per byte → verdict of the gate."""

from typing import Any

from flows.door import door
from flows.plan import build_run, data_plan
from flows.recipes import load_recipe, name_with
from flows.recipes.recipe import Recipe, Scale
from flows.validate_data import raise_unless_passed
from tasks.evaluation.task import evaluate
from tasks.home import Home
from tasks.training.launcher import finished_result
from tasks.validation.task import judge_model
from trainer.errors import TrainingError
from trainer.storage import read_json
from validations.accepted import accepted_in


@door(name="evaluate_checkpoint", flow_run_name="evaluate {recipe}/{phase} ({scale})")
def evaluate_checkpoint(recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None) -> None:
    """Evaluate the checkpoint at a phase's end and judge it against its parent. Fails where the gate does.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file.
        phase: Name of one of its phases, trained.
        scale: `proxy` or `full`.
        home: Folder of everything; PHASEWISE_HOME if not given.
    """
    wanted, place = load_recipe(name_with(recipe, phase, scale), scale), Home.open(home)
    chosen, plan = wanted.phase(phase), data_plan(wanted, place)
    run = build_run(wanted, chosen, place, plan.folders("train"), held_out=plan.folders("held_out"))
    result = finished_result(run)
    if result is None:
        raise TrainingError(f"phase {phase} of {recipe} is not trained on the data as it is now: train it first.")
    evaluation = evaluate(run, result, plan, chosen.evaluation.held_out_tokens)
    path = place.verdict(wanted.run_name, phase, "model")
    parent = parent_evaluation(wanted, chosen.parent, place)
    accepts = accepted_in(phase, wanted.accepts)
    raise_unless_passed(judge_model(run, evaluation, parent, chosen.gates.model, path, accepts=accepts))


def parent_evaluation(recipe: Recipe, parent: str | None, home: Home) -> dict[str, Any] | None:
    """What was measured at the end of the parent; None for the first phase."""
    return read_json(home.run(recipe.run_name, parent) / "evaluation.json") if parent else None
