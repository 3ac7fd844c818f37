"""Whether a phase may be built: what it descends from, and takes parts from, must be done, and stay so."""

from flows.recipes.phase import Phase
from flows.recipes.recipe import Recipe
from flows.record import read_record
from flows.resolved import Resolved, resolve_phase
from trainer.base.errors import VerdictError
from validations.verdict import read_verdict

GATES = ("data", "health", "model")


def check_ancestors_passed(resolved: Resolved, phase: Phase) -> None:
    """Ask the verdicts of every phase that this one rests on, before anything is prepared for it.

    First whether they are there and pass, which takes no time; then, where nothing is planned yet, whether they hold for the data and the
    settings as they are now. A branch has data of its own that may not be there yet: its parent's plan does without.

    Raises:
        VerdictError: one is missing, fails, or is out of date; it says which command mends it.
    """
    before = resolved.recipe.ancestors(phase)
    for ancestor in before:
        for gate in GATES:
            _check_passes(resolved, phase, ancestor, gate)
    if before and not resolved.is_planned:
        parents, _ = resolve_phase(resolved.recipe_name, before[-1].name, resolved.recipe.scale, str(resolved.home.root))
        _check_hold(parents, phase, before)


def check_ancestors_hold(resolved: Resolved, phase: Phase) -> None:
    """The same of the data as it is planned.

    Raises:
        VerdictError: a phase that this one rests on is not done.
    """
    _check_hold(resolved, phase, resolved.recipe.ancestors(phase))


def phases_to_train(recipe: Recipe, last: Phase | None) -> tuple[Phase, ...]:
    """All of the recipe, or the last one with everything that it rests on."""
    return (*recipe.ancestors(last), last) if last else recipe.phases


def _check_hold(resolved: Resolved, phase: Phase, before: tuple[Phase, ...]) -> None:
    for ancestor in before:
        record = read_record(resolved, ancestor)
        if record.state != "done":
            raise _refusal(resolved, phase, ancestor, record.lacks[0])


def _check_passes(resolved: Resolved, phase: Phase, ancestor: Phase, gate: str) -> None:
    path = resolved.home.verdict(resolved.recipe.run_name, ancestor.name, gate)
    what = "training" if gate == "health" else gate
    if not path.exists():
        raise _refusal(resolved, phase, ancestor, f"there is no verdict on its {what}")
    verdict = read_verdict(path)
    if not verdict.passes:
        why = verdict.reasons[0].what if verdict.reasons else f"see {path}"
        raise _refusal(resolved, phase, ancestor, f"the verdict on its {what} fails: {why}")


def _refusal(resolved: Resolved, phase: Phase, ancestor: Phase, why: str) -> VerdictError:
    recipe = resolved.recipe
    command = f"phasewise run {resolved.recipe_name}/{ancestor.name} {resolved.options}"
    return VerdictError(
        f"{recipe.run_name}/{phase.name} rests on {ancestor.name}, which is not done: {why}.\n"
        f"  to do: `{command}` does what is missing of it and judges it again."
    )
