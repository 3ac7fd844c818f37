"""One phase: judge its data, train it, judge how it trained, evaluate it, pass its gate."""

from typing import Any

from prefect.artifacts import create_table_artifact

from flows.ancestors import check_ancestors_hold, check_ancestors_passed
from flows.door import door, say_waiting, this_run
from flows.evaluate_checkpoint import evaluate_checkpoint
from flows.preflight import preflight
from flows.prepare_data import prepare_data
from flows.recipes.assignments import Settings
from flows.recipes.phase import Phase
from flows.recipes.recipe import Scale
from flows.record import read_record
from flows.replaced import check_replaced, find_replaced, say_replaced
from flows.resolved import Resolved, resolve_phase
from flows.summary import phase_summary, write_recipe_report
from flows.validate_data import raise_unless_passed, validate_data
from tasks.progress import say
from tasks.training.task import train
from tasks.validation.task import health_gate
from trainer.base.errors import TrainingDiverged, VerdictError
from validations.accepted import accepted_in

REFUSALS = (VerdictError, TrainingDiverged)
"""What ends a phase and its descendants, and nothing else."""


@door(name="train_phase", flow_run_name="train {recipe}/{phase} ({scale})")
def train_phase(
    recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None, retrain: bool = False, settings: Settings = ()
) -> None:
    """Train a phase whose parent is trained. What is done already is not done again.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file. Code is refused here: a Python file runs from the command line alone.
        phase: Name of one of its phases.
        scale: `proxy`, `full`, or `own` for a recipe that is run as it is written.
        home: Folder of everything; PHASEWISE_HOME if not given.
        settings: Changes of the recipe for a trial, each PHASE.FIELD=VALUE: what `--set` takes.
        retrain: It may be trained again though it is trained: its data or settings changed. Without it that is refused, except for less
            than ten minutes of training at proxy scale.
    """
    resolved, chosen = resolve_phase(recipe, phase, scale, home, local_for="training")
    resolved.check([chosen])
    resolved.home.make_ready()
    with resolved.home.held(this_run(), on_wait=say_waiting):
        check_ancestors_passed(resolved, chosen)
        preflight(resolved.name, phase, scale, home, resolved.settings)
        if not resolved.is_prepared:
            prepare_data(resolved.name, scale, home, resolved.settings)
        if read_record(resolved, chosen).state == "done":
            say(f"{phase}: done already")
            return
        check_ancestors_hold(resolved, chosen)
        if not retrain:
            replaced = find_replaced(resolved, [chosen])
            check_replaced(resolved, replaced, ())
            say_replaced(replaced)
        try:
            train_judged(resolved, chosen)
        except REFUSALS:
            write_recipe_report(resolved)
            raise
        write_recipe_report(resolved)


def train_judged(resolved: Resolved, phase: Phase) -> None:
    """Judge the data, train, judge the training, judge the model; the first verdict that fails ends it.

    Raises:
        VerdictError: a verdict fails.
        TrainingDiverged: the loss is no number any more; the verdict on the training says where.
    """
    recipe = resolved.recipe
    home = str(resolved.home.root)
    run = resolved.run(phase)
    accepts = accepted_in(phase.name, recipe.accepts)
    validate_data(resolved.name, phase.name, recipe.scale, home, resolved.settings)
    try:
        result = train(run)
    except TrainingDiverged:
        health_gate(run, phase.gates.health, resolved.home, accepts=accepts)
        raise
    say(f"{phase.name}: trained to step {result['stop_step']:,}, final loss {result['final_loss']:.3f}")
    raise_unless_passed(health_gate(run, phase.gates.health, resolved.home, accepts=accepts))
    evaluate_checkpoint(resolved.name, phase.name, recipe.scale, home, resolved.settings)
    summary: dict[str, Any] = phase_summary(read_record(resolved, phase))
    table = [{"what": what, "value": str(value)} for what, value in summary.items()]
    create_table_artifact(table, key=f"{recipe.name}-{phase.name}-summary", description=f"{recipe.run_name} {phase.name}")
