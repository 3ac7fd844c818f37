"""Work that a change would set aside: what changed, and what it costs to do it again. Nobody loses a run without having said so."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved, resolve_phase
from phasewise.flows.status.phase_status import read_record, why_not
from phasewise.tasks.progress import say
from phasewise.tasks.training.run_identity import differences, finished_result, is_begun, last_saved_step, name_differences
from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, TrainingError, VerdictError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.wording import about
from phasewise.trainer.metrics import read_metrics
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


MAX_SECONDS_UNASKED = 600.0
"""At any scale but full, less training than this is done again without being asked for."""


class WouldReplace(PhasewiseError):
    """A change would set trained work aside, and nobody said that it may."""


class Replaced(NamedTuple):
    """A phase whose checkpoints would be passed over.

    Attributes:
        step: the newest whole checkpoint that is there.
        why: what changed.
        tokens, seconds: what training it again takes, at the speed of before; None where that is not known.
    """

    phase: str
    step: int
    why: str
    tokens: int
    seconds: float | None

    def __str__(self) -> str:
        return f"{self.phase}, trained to step {self.step:,}: {self.why} ({self.tokens:,} tokens, {_time(self.seconds)})"


def find_replaced(resolved: Resolved, phases: Iterable[Phase]) -> tuple[Replaced, ...]:
    """The phases of which something is trained that does not hold any more, and those that start from them."""
    found: dict[str, Replaced] = {}
    for phase in phases:
        try:
            run = resolved.run(phase)
        except TrainingError:  # its parent is not trained: nothing is known of what it would start from
            continue
        step = last_saved_step(run)
        if step is None:
            continue
        before = [one.name for one in resolved.recipe.ancestors(phase) if one.name in found]
        if before:
            why = f"it starts from {before[-1]}, which is trained again"
        elif finished_result(run, digests=resolved.digests) or is_begun(run):
            continue
        else:
            why = name_differences(differences(run)) or "its folder does not say as what it was trained"
        rows = [row for row in read_metrics(RunFolder.at(run.output).metrics) if row.get("step_seconds")]
        took = sum(row["step_seconds"] for row in rows)
        trained = sum(row["tokens"] for row in rows)
        found[phase.name] = Replaced(phase.name, step, why, phase.tokens, phase.tokens * took / trained if trained else None)
    return tuple(found.values())


def check_retrain(retrain: Collection[str], phases: Iterable[Phase]) -> None:
    """Refuse names that are none of the phases.

    Raises:
        ConfigError: with the names that there are.
    """
    names = [phase.name for phase in phases]
    if unknown := sorted(set(retrain) - set(names)):
        raise ConfigError(f"--retrain names {', '.join(unknown)}, and what is trained here is {', '.join(names)}.")


def check_replaced(resolved: Resolved, found: Collection[Replaced], retrain: Collection[str]) -> None:
    """Refuse to set work aside, unless it is named, or it rests on what is named, or there is little of it.

    Args:
        retrain: the phases that may be trained again.

    Raises:
        WouldReplace: work would be set aside.
    """
    seconds = [one.seconds for one in found]
    is_little = resolved.recipe.scale != "full" and sum(second or 0.0 for second in seconds) < MAX_SECONDS_UNASKED and None not in seconds
    unasked = [one for one in found if not _is_named(resolved, one.phase, retrain)]
    if not unasked or is_little:
        return
    first = [one.phase for one in unasked if not any(_rests_on(resolved, one.phase, other.phase) for other in unasked)]
    command = f"phasewise run {resolved.name} {resolved.options}"
    lines = "\n".join(f"  {one}" for one in unasked)
    raise WouldReplace(
        f"{resolved.recipe.run_name} is not what was trained here, and to train it would set work aside:\n{lines}\n"
        f"  to do: take the change back, or say that it may: `{command} {' '.join(f'--retrain {name}' for name in first)}`. "
        "What was trained before is kept beside it."
    )


def say_replaced(found: Iterable[Replaced]) -> None:
    """One line about each phase that is trained again, before it is."""
    for one in found:
        say(f"trained again: {one}")


def _is_named(resolved: Resolved, phase: str, retrain: Collection[str]) -> bool:
    return phase in retrain or any(_rests_on(resolved, phase, name) for name in retrain)


def _rests_on(resolved: Resolved, phase: str, other: str) -> bool:
    return other in {one.name for one in resolved.recipe.ancestors(resolved.recipe.phase(phase))}


def _time(seconds: float | None) -> str:
    return "nobody measured how long" if seconds is None else about(seconds)
