"""A whole recipe: data, then phase by phase, gate by gate, then the report."""

from flows.ancestors import phases_to_train
from flows.door import door, say_waiting, this_run
from flows.plan import data_plan
from flows.prepare_data import prepare_data
from flows.recipes import load_target
from flows.recipes.phase import Phase
from flows.recipes.recipe import Recipe, Scale
from flows.summary import write_recipe_report
from flows.train_phase import REFUSALS, train_phase
from tasks.evaluation.task import fit_baselines
from tasks.home import Home
from tasks.progress import say
from trainer.errors import PhasewiseError


@door(name="train_recipe", flow_run_name="train {recipe} ({scale})")
def train_recipe(recipe: str = "marin-8b", scale: Scale = "proxy", home: str | None = None, up_to: str | None = None) -> None:
    """Train every phase of a recipe in order. A phase that is refused stops its descendants, not its siblings.

    Args:
        recipe: Name of a recipe, or path of a recipe's JSON file.
        scale: `proxy` runs on this machine in minutes; `full` is the real thing.
        home: Folder of everything; PHASEWISE_HOME if not given.
        up_to: Train only this phase and its ancestors. A branch is trained only where it is named here.
    """
    wanted, last = load_target(f"{recipe}/{up_to}" if up_to else recipe, scale)
    place = Home.open(home, local_for="training")
    name = f"{recipe}/{last.name}" if last and last.branch else recipe
    with place.held(this_run(), on_wait=say_waiting):
        prepare_data(name, scale, home)
        refusals = train_phases(name, wanted, home, phases_to_train(wanted, last))
        plan = data_plan(wanted, place)
        fit_baselines(plan, place, wanted.phases[0].evaluation.held_out_tokens)
        write_recipe_report(wanted, place, plan)
    if refusals:
        raise next(iter(refusals.values()))


def train_phases(name: str, recipe: Recipe, home: str | None, phases: tuple[Phase, ...]) -> dict[str, PhasewiseError]:
    """Train the phases whose ancestors passed; the refusal of each that did not."""
    refusals: dict[str, PhasewiseError] = {}
    unreachable: set[str] = set()
    for phase in phases:
        if missing := [before.name for before in recipe.ancestors(phase) if before.name in unreachable]:
            unreachable.add(phase.name)
            say(f"{phase.name}: not trained, because {missing[-1]} is not there to start from")
            continue
        try:
            train_phase(name, phase.name, recipe.scale, home)
        except REFUSALS as refusal:
            refusals[phase.name] = refusal
            unreachable.add(phase.name)
    return refusals
