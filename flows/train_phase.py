"""One phase: judge its data, train it, judge how it trained, evaluate it, pass its gate."""

from typing import Any

from prefect.artifacts import create_table_artifact

from flows.ancestors import check_ancestors_hold, check_ancestors_passed
from flows.door import door, say_waiting, this_run
from flows.evaluate_checkpoint import evaluate_checkpoint
from flows.plan import build_run, check_as_written, check_mixtures, check_slices, data_plan
from flows.preflight import preflight
from flows.prepare_data import prepare_data
from flows.recipes import load_recipe, name_with
from flows.recipes.phase import Phase
from flows.recipes.recipe import Recipe, Scale
from flows.record import read_record
from flows.summary import phase_summary, write_recipe_report
from flows.validate_data import raise_unless_passed, validate_data
from tasks.data.plan import DataPlan
from tasks.home import Home
from tasks.progress import say
from tasks.training.task import train
from tasks.validation.task import judge_health
from trainer.errors import TrainingDiverged, VerdictError
from validations.accepted import accepted_in

REFUSALS = (VerdictError, TrainingDiverged)
"""What ends a phase and its descendants, and nothing else."""


@door(name="train_phase", flow_run_name="train {recipe}/{phase} ({scale})")
def train_phase(recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None) -> None:
    """Train a phase whose parent is trained. What is done already is not done again.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file.
        phase: Name of one of its phases.
        scale: `proxy` or `full`.
        home: Folder of everything; PHASEWISE_HOME if not given.
    """
    name = name_with(recipe, phase, scale)
    wanted, place = load_recipe(name, scale), Home.open(home, local_for="training")
    chosen = wanted.phase(phase)
    check_slices(wanted, [chosen])
    check_as_written(name, [chosen])
    check_mixtures(wanted, [chosen])
    with place.held(this_run(), on_wait=say_waiting):
        check_ancestors_passed(name, wanted, chosen, place)
        preflight(name, phase, scale, home)
        prepare_data(name, scale, home)
        plan = data_plan(wanted, place)
        if read_record(wanted, chosen, place, plan).state == "done":
            say(f"{phase}: done already")
            return
        check_ancestors_hold(name, wanted, chosen, place, plan)
        try:
            train_judged(name, wanted, chosen, place, plan)
        except REFUSALS:
            write_recipe_report(wanted, place, plan)
            raise
        write_recipe_report(wanted, place, plan)


def train_judged(name: str, recipe: Recipe, phase: Phase, home: Home, plan: DataPlan) -> None:
    """Judge the data, train, judge the training, judge the model; the first verdict that fails ends it.

    Raises:
        VerdictError: a verdict fails.
        TrainingDiverged: the loss is no number any more; the verdict on the training says where.
    """
    run = build_run(recipe, phase, home, plan.folders("train"), held_out=plan.folders("held_out"))
    accepts = accepted_in(phase.name, recipe.accepts)
    validate_data(name, phase.name, recipe.scale, str(home.root))
    try:
        result = train(run)
    except TrainingDiverged:
        judge_health(run, phase.gates.health, home, accepts=accepts)
        raise
    say(f"{phase.name}: trained to step {result['stop_step']:,}, final loss {result['final_loss']:.3f}")
    raise_unless_passed(judge_health(run, phase.gates.health, home, accepts=accepts))
    evaluate_checkpoint(name, phase.name, recipe.scale, str(home.root))
    summary: dict[str, Any] = phase_summary(read_record(recipe, phase, home, plan))
    table = [{"what": what, "value": str(value)} for what, value in summary.items()]
    create_table_artifact(table, key=f"{recipe.name}-{phase.name}-summary", description=f"{recipe.run_name} {phase.name}")
