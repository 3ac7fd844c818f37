"""A whole recipe: data, phases with gates, and the report."""

from collections.abc import Collection, Sequence

from phasewise.flows.prefect.approvals import asking_people, take_answers
from phasewise.flows.prefect.flow_decorator import at_stage, door, say_waiting, this_run
from phasewise.flows.prepare_data import prepare_data
from phasewise.flows.recipes.assignments import Settings
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Scale
from phasewise.flows.resolved import Resolved, resolve
from phasewise.flows.status.retraining import check_named, check_replaced, extend_phases, find_replaced, phases_to_train
from phasewise.flows.status.summary import write_recipe_report
from phasewise.flows.train_phase import REFUSALS, train_phase
from phasewise.tasks.evaluation.task import fit_baselines
from phasewise.tasks.phase_state import State
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import PhasewiseError, WaitsForPerson


@door(name="train-recipe")
@asking_people
def train_recipe(
    recipe: str = "marin-8b",
    scale: Scale = "proxy",
    home: str | None = None,
    up_to: str | None = None,
    retrain: tuple[str, ...] = (),
    settings: Settings = (),
    extend: tuple[str, ...] = (),
) -> None:
    """Train all phases of a recipe in order. A failed gate stops the descendants of its phase, not its siblings.

    Args:
        scale: `proxy` takes minutes on this machine, `full` is the published size, `own` is for a recipe with this scale.
        up_to: Train only this phase and its ancestors. A branch is trained only if it is named here.
        retrain: Trained phases whose data or settings changed, and that may be trained again with their descendants. Less than ten minutes
            of training at proxy scale need no permission.
        extend: Trained phases whose stop_step was raised. They continue from their last checkpoint.
    """
    resolved, last = resolve(f"{recipe}/{up_to}" if up_to else recipe, scale, home)
    phases = phases_to_train(resolved.recipe, last)
    check_named(retrain, phases, "--retrain")
    check_named(extend, phases, "--extend")
    resolved.check(phases)
    resolved.home.make_ready()
    take_answers(resolved, phases)
    with resolved.held(this_run(), queues=phases, on_wait=say_waiting):
        at_stage(resolved, phases[0], State.PREPARING)
        if not resolved.is_prepared:
            prepare_data(resolved.name, scale, home, resolved.settings)
        extend_phases(resolved, extend)
        replaced = find_replaced(resolved, phases)
        check_replaced(resolved, replaced, retrain)
        for one in replaced:
            say(f"trained again: {one}")
        refusals = train_phases(resolved, phases, home, {one.phase for one in replaced})
        fit_baselines(resolved.plan, resolved.home, resolved.recipe.phases[0].evaluation.held_out_tokens)
        write_recipe_report(resolved)
    if refusals:
        raise next((one for one in refusals.values() if isinstance(one, WaitsForPerson)), next(iter(refusals.values())))


def train_phases(resolved: Resolved, phases: Sequence[Phase], home: str | None, retrain: Collection[str]) -> dict[str, PhasewiseError]:
    """Train phases in order, without descendants of rejected phases. Returns phase → error of the rejected phases."""
    refusals: dict[str, PhasewiseError] = {}
    unreachable: set[str] = set()
    for number, phase in enumerate(phases, start=1):
        say(f"phase {number} of {len(phases)}: {phase.name}, steps {phase.start_step:,} to {phase.stop_step:,}")
        if missing := [before.name for before in resolved.recipe.ancestors(phase) if before.name in unreachable]:
            unreachable.add(phase.name)
            at_stage(resolved, phase, State.WAITS_FOR_PARENT, why=f"{missing[-1]} is missing")
            say(f"{phase.name}: not trained, because {missing[-1]} is missing")
            continue
        again = phase.name in retrain
        try:
            train_phase(resolved.name, phase.name, resolved.recipe.scale, home, retrain=again, settings=resolved.settings)
        except REFUSALS as refusal:
            refusals[phase.name] = refusal
            unreachable.add(phase.name)
    return refusals
