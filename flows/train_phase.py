"""One phase: judge its data, train it, judge how it trained, evaluate it, pass its gate."""

from typing import Any

from prefect.artifacts import create_table_artifact

from phasewise.flows.ancestors import check_ancestors_hold, check_ancestors_passed, check_verdicts
from phasewise.flows.asking import asking_people, take_answers
from phasewise.flows.declared import check_needles
from phasewise.flows.door import door, say_waiting, this_run
from phasewise.flows.evaluate_checkpoint import evaluate_checkpoint
from phasewise.flows.execution import runs_on_slices
from phasewise.flows.preflight import preflight
from phasewise.flows.prepare_data import prepare_data
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.record import read_record
from phasewise.flows.replaced import check_replaced, find_replaced, say_replaced
from phasewise.flows.resolved import Resolved, resolve_phase
from phasewise.flows.rulings import approving_command, raise_unless_let_pass
from phasewise.flows.summary import phase_summary, refresh_report, write_recipe_report
from phasewise.flows.validate_data import validate_data
from phasewise.flows.waiting import or_wait, wake_others
from phasewise.tasks.progress import say
from phasewise.tasks.training.task import train
from phasewise.tasks.validation.task import ask_about_training, health_gate
from phasewise.trainer.base.errors import TrainingDiverged, VerdictError, WaitsForPerson
from phasewise.validations.accepted import accepted_in

REFUSALS = (VerdictError, TrainingDiverged)
"""What ends a phase and its descendants, and nothing else."""


@door(name="train-phase", flow_run_name="train {recipe}/{phase} ({scale})")
@asking_people
def train_phase(
    recipe: str, phase: str, scale: Scale = "proxy", home: str | None = None, retrain: bool = False, settings: Settings = ()
) -> None:
    """Train a phase, once its parent is trained. What is done already is not done again.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file. Code is refused here: a Python file runs from the command line alone.
        phase: Name of one of its phases.
        scale: `proxy`, `full`, or `own` for a recipe that is run as it is written.
        home: Folder of everything; PHASEWISE_HOME if not given.
        settings: Changes of the recipe for a trial, each PHASE.FIELD=VALUE: what `--set` takes.
        retrain: It may be trained again though it is trained: its data or settings changed. Without it that is refused, except for less
            than ten minutes of training at proxy scale.
    """
    resolved, chosen = resolve_phase(recipe, phase, scale, home)
    resolved.check([chosen])
    resolved.home.make_ready()
    or_wait(check_verdicts, resolved, chosen)
    take_answers(resolved, [chosen])
    with resolved.held(this_run(), on_wait=say_waiting):
        or_wait(check_ancestors_passed, resolved, chosen)
        preflight(resolved.name, phase, scale, home, resolved.settings)
        if not resolved.is_prepared:
            prepare_data(resolved.name, scale, home, resolved.settings)
        if read_record(resolved, chosen).state == "done":
            say(f"{phase}: done already")
            refresh_report(resolved)
            return
        or_wait(check_ancestors_hold, resolved, chosen)
        if not retrain:
            replaced = find_replaced(resolved, [chosen])
            check_replaced(resolved, replaced, ())
            say_replaced(replaced)
        try:
            train_judged(resolved, chosen)
        except REFUSALS:
            write_recipe_report(resolved)
            wake_others(resolved.home)
            raise
        write_recipe_report(resolved)
        wake_others(resolved.home)


def train_judged(resolved: Resolved, phase: Phase) -> None:
    """Judge the data, train, judge the training, judge the model; the first verdict that fails ends it.

    Raises:
        ConfigError: the phase hides needles in texts that have no room for them.
        VerdictError: a verdict fails.
        WaitsForPerson: a verdict, or the training itself, asks a person.
        TrainingDiverged: the loss is no number any more; the verdict on the training says where.
    """
    recipe = resolved.recipe
    home = str(resolved.home.root)
    accepts, asks = accepted_in(phase.name, recipe.accepts), recipe.asks_people_in(phase)
    check_needles(resolved.plan, phase)
    validate_data(resolved.name, phase.name, recipe.scale, home, resolved.settings)
    planned = runs_on_slices(resolved, phase)
    run = planned[-1].run
    try:
        result = train(run, planned)
    except WaitsForPerson as waiting:
        question = ask_about_training(waiting.verdict)
        raise_unless_let_pass(question, waiting.verdict, approving_command(resolved, phase))
        raise
    except TrainingDiverged:
        health_gate(run, phase.gates.health, resolved.home, accepts=accepts, asks_people=asks)
        raise
    say(f"{phase.name}: trained to step {result['stop_step']:,}, final loss {result['final_loss']:.3f}")
    verdict = health_gate(run, phase.gates.health, resolved.home, accepts=accepts, asks_people=asks)
    path = resolved.home.verdict(recipe.run_name, phase.name, "health")
    raise_unless_let_pass(verdict, path, approving_command(resolved, phase))
    evaluate_checkpoint(resolved.name, phase.name, recipe.scale, home, resolved.settings)
    summary: dict[str, Any] = phase_summary(read_record(resolved, phase))
    table = [{"what": what, "value": str(value)} for what, value in summary.items()]
    create_table_artifact(table, key=f"{recipe.run_name}-{phase.name}-summary", description=f"{recipe.run_name} {phase.name}")
