"""A whole recipe: data, then phase by phase, gate by gate, then the report."""

from collections.abc import Collection, Iterable

from phasewise.flows.prefect.approvals import asking_people, take_answers
from phasewise.flows.prefect.flow_decorator import door, say_waiting, this_run
from phasewise.flows.prepare_data import prepare_data
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import Resolved, resolve
from phasewise.flows.status.retraining import check_replaced, check_retrain, find_replaced, phases_to_train, say_replaced
from phasewise.flows.status.summary import write_recipe_report
from phasewise.flows.train_phase import REFUSALS, train_phase
from phasewise.tasks.evaluation.task import fit_baselines
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import PhasewiseError, WaitsForPerson


@door(name="train-recipe", flow_run_name="train {recipe} ({scale})")
@asking_people
def train_recipe(
    recipe: str = "marin-8b",
    scale: Scale = "proxy",
    home: str | None = None,
    up_to: str | None = None,
    retrain: tuple[str, ...] = (),
    settings: Settings = (),
) -> None:
    """Train every phase of a recipe in order. A phase that is refused stops its descendants, not its siblings.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file. Code is refused here: a Python file runs from the command line alone.
        scale: `proxy` runs on this machine in minutes; `own` is for a recipe that is run as it is written; `full` is the real thing.
        home: Folder of everything; PHASEWISE_HOME if not given.
        settings: Changes of the recipe for a trial, each PHASE.FIELD=VALUE: what `--set` takes.
        up_to: Train only this phase and its ancestors. A branch is trained only where it is named here.
        retrain: Phases that may be trained again, with those that start from them, though they are trained: their data or settings
            changed. Without it that is refused, except for less than ten minutes of training at proxy scale.
    """
    resolved, last = resolve(f"{recipe}/{up_to}" if up_to else recipe, scale, home)
    phases = phases_to_train(resolved.recipe, last)
    check_retrain(retrain, phases)
    resolved.check(phases)
    resolved.home.make_ready()
    take_answers(resolved, phases)
    with resolved.held(this_run(), on_wait=say_waiting):
        prepare_data(resolved.name, scale, home, resolved.settings)
        replaced = find_replaced(resolved, phases)
        check_replaced(resolved, replaced, retrain)
        say_replaced(replaced)
        refusals = train_phases(resolved, phases, home, {one.phase for one in replaced})
        fit_baselines(resolved.plan, resolved.home, resolved.recipe.phases[0].evaluation.held_out_tokens)
        write_recipe_report(resolved)
    if refusals:
        raise next((one for one in refusals.values() if isinstance(one, WaitsForPerson)), next(iter(refusals.values())))


def train_phases(resolved: Resolved, phases: Iterable[Phase], home: str | None, retrain: Collection[str]) -> dict[str, PhasewiseError]:
    """Train the phases whose ancestors passed, those in `retrain` again where need be; the refusal of each that did not."""
    recipe = resolved.recipe
    refusals: dict[str, PhasewiseError] = {}
    unreachable: set[str] = set()
    every = list(phases)
    for place, phase in enumerate(every, start=1):
        say(f"phase {place} of {len(every)}: {phase.name}, steps {phase.start_step:,} to {phase.stop_step:,}")
        if missing := [before.name for before in recipe.ancestors(phase) if before.name in unreachable]:
            unreachable.add(phase.name)
            say(f"{phase.name}: not trained, because {missing[-1]} is not there to start from")
            continue
        try:
            train_phase(resolved.name, phase.name, recipe.scale, home, retrain=phase.name in retrain, settings=resolved.settings)
        except REFUSALS as refusal:
            refusals[phase.name] = refusal
            unreachable.add(phase.name)
    return refusals
