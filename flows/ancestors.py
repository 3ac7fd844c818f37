"""Whether a phase may be built: what it descends from, and takes parts from, must be done, and stay so."""

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.record import read_record
from phasewise.flows.resolved import Resolved, resolve_phase
from phasewise.flows.rulings import why_not
from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import VerdictError
from phasewise.validations.verdict import read_verdict

GATES = ("data", "health", "model")


class ParentNotDone(VerdictError):
    """A phase that another one rests on is not trained and judged yet, not as it would be now, or waits for a person; nothing refuses it.

    Attributes:
        parent: its name.
        why: what is missing of it.
    """

    def __init__(self, message: str, parent: str, why: str) -> None:
        super().__init__(message)
        self.parent = parent
        self.why = why


def check_ancestors_passed(resolved: Resolved, phase: Phase) -> None:
    """Ask the verdicts of every phase that this one rests on, before anything is prepared for it.

    First whether they are there and pass, which takes no time; then, where nothing is planned yet, whether they hold for the data and the
    settings as they are now. A branch has data of its own that may not be there yet: its parent's plan does without.

    Raises:
        ParentNotDone: one is missing, or is out of date; it says which command mends it.
        VerdictError: one fails.
    """
    before = check_verdicts(resolved, phase)
    if before and not resolved.is_planned:
        parents, _ = resolve_phase(resolved.recipe_name, before[-1].name, resolved.recipe.scale, str(resolved.home.root))
        _check_hold(parents, phase, before)


def check_verdicts(resolved: Resolved, phase: Phase) -> tuple[Phase, ...]:
    """Whether the verdicts on all that a phase rests on are there and pass; nothing but them is read. Those phases.

    Raises:
        ParentNotDone, VerdictError: as `check_ancestors_passed`.
    """
    before = resolved.recipe.ancestors(phase)
    for ancestor in before:
        for gate in GATES:
            _check_passes(resolved, phase, ancestor, gate)
    return before


def check_ancestors_hold(resolved: Resolved, phase: Phase) -> None:
    """The same of the data as it is planned.

    Raises:
        ParentNotDone: a phase that this one rests on is not done.
    """
    _check_hold(resolved, phase, resolved.recipe.ancestors(phase))


def phases_to_train(recipe: Recipe, last: Phase | None) -> tuple[Phase, ...]:
    """All of the recipe, or the last one with everything that it rests on."""
    return (*recipe.ancestors(last), last) if last else recipe.phases


def _check_hold(resolved: Resolved, phase: Phase, before: tuple[Phase, ...]) -> None:
    for ancestor in before:
        record = read_record(resolved, ancestor)
        if record.state != "done":
            raise _not_done(resolved, phase, ancestor, record.lacks[0])


def _check_passes(resolved: Resolved, phase: Phase, ancestor: Phase, gate: str) -> None:
    path = resolved.home.verdict(resolved.recipe.run_name, ancestor.name, gate)
    what = "training" if gate == "health" else gate
    if not path.exists():
        raise _not_done(resolved, phase, ancestor, f"there is no verdict on its {what}")
    verdict = read_verdict(path)
    ruling = ruling_at(path)
    if ruling.lets_go_on:
        return
    why = f"the verdict on its {what} {why_not(verdict, ruling, path)}"
    if ruling.state == "waits":
        raise _not_done(resolved, phase, ancestor, why)
    raise VerdictError(_words(resolved, phase, ancestor, why))


def _not_done(resolved: Resolved, phase: Phase, ancestor: Phase, why: str) -> ParentNotDone:
    return ParentNotDone(_words(resolved, phase, ancestor, why), ancestor.name, why)


def _words(resolved: Resolved, phase: Phase, ancestor: Phase, why: str) -> str:
    recipe = resolved.recipe
    command = f"phasewise run {resolved.recipe_name}/{ancestor.name} {resolved.options}"
    return (
        f"{recipe.run_name}/{phase.name} rests on {ancestor.name}, which is not done: {why}.\n"
        f"  to do: `{command}` does what is missing of it and judges it again."
    )
