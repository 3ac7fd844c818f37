"""Whether a phase may be built: what it descends from, and takes parts from, must be done, and stay so."""

from flows.plan import data_plan
from flows.recipes import load_recipe, name_with, split_target
from flows.recipes.phase import Phase
from flows.recipes.recipe import Recipe
from flows.record import read_record
from tasks.data.plan import DataPlan
from tasks.home import Home
from trainer.errors import VerdictError
from validations.verdict import read_verdict

GATES = ("data", "health", "model")


def check_ancestors_passed(name: str, recipe: Recipe, phase: Phase, home: Home) -> None:
    """Ask the verdicts of every phase that this one rests on, before anything is prepared for it.

    First whether they are there and pass, which takes no time; then whether they hold for the data and the settings as they are now.

    Args:
        name: what the recipe was asked for by.

    Raises:
        VerdictError: one is missing, fails, or is out of date; it says which command mends it.
    """
    before = recipe.ancestors(phase)
    for ancestor in before:
        for gate in GATES:
            _check_passes(name, recipe, phase, ancestor, home, gate)
    if before:
        parent = load_recipe(name_with(split_target(name)[0], before[-1].name, recipe.scale), recipe.scale)
        check_ancestors_hold(name, recipe, phase, home, data_plan(parent, home))


def check_ancestors_hold(name: str, recipe: Recipe, phase: Phase, home: Home, plan: DataPlan) -> None:
    """The same of the data as it is planned.

    Raises:
        VerdictError: a phase that this one rests on is not done.
    """
    for ancestor in recipe.ancestors(phase):
        record = read_record(recipe, ancestor, home, plan)
        if record.state != "done":
            raise _refusal(name, recipe, phase, ancestor, home, record.lacks[0])


def phases_to_train(recipe: Recipe, last: Phase | None) -> tuple[Phase, ...]:
    """All of the recipe, or the last one with everything that it rests on."""
    return (*recipe.ancestors(last), last) if last else recipe.phases


def _check_passes(name: str, recipe: Recipe, phase: Phase, ancestor: Phase, home: Home, gate: str) -> None:
    path = home.verdict(recipe.run_name, ancestor.name, gate)
    what = "training" if gate == "health" else gate
    if not path.exists():
        raise _refusal(name, recipe, phase, ancestor, home, f"there is no verdict on its {what}")
    verdict = read_verdict(path)
    if not verdict.passes:
        why = verdict.reasons[0].what if verdict.reasons else f"see {path}"
        raise _refusal(name, recipe, phase, ancestor, home, f"the verdict on its {what} fails: {why}")


def _refusal(name: str, recipe: Recipe, phase: Phase, ancestor: Phase, home: Home, why: str) -> VerdictError:
    command = f"phasewise run {split_target(name)[0]}/{ancestor.name} --scale {recipe.scale} --home {home.root}"
    return VerdictError(
        f"{recipe.run_name}/{phase.name} rests on {ancestor.name}, which is not done: {why}.\n"
        f"  to do: `{command}` does what is missing of it and judges it again."
    )
