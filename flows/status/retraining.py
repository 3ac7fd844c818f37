"""Checks of earlier phases, and of trained work that a change would replace."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from phasewise.flows.recipes.phase import GATES, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import Resolved, resolve_phase
from phasewise.flows.status.phase_status import read_record, why_not
from phasewise.tasks.phase_state import State
from phasewise.tasks.training import run_identity
from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, TrainingError, VerdictError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.wording import about, name_some
from phasewise.trainer.metrics import read_metrics
from phasewise.validations.verdict import read_verdict

MAX_SECONDS_UNASKED = 600.0  # except at full scale, shorter training is repeated without `--retrain`


class ParentNotDone(VerdictError):
    """A phase needs an ancestor that is untrained, unjudged, out of date, or waits for a person. No verdict rejects the ancestor."""

    def __init__(self, message: str, parent: str, why: str) -> None:
        super().__init__(message)
        self.parent = parent
        self.why = why


class WouldReplace(PhasewiseError):
    """A change would replace trained work without `--retrain`."""


class Replaced(NamedTuple):
    """A phase whose checkpoints would be replaced."""

    phase: str
    step: int  # of the newest complete checkpoint
    why: str
    tokens: int  # of training again
    seconds: float | None  # of training again at the measured speed, None without a measurement

    def __str__(self) -> str:
        duration = "duration unknown" if self.seconds is None else about(self.seconds)
        return f"{self.phase}, trained to step {self.step:,}: {self.why} ({self.tokens:,} tokens, {duration})"


def phases_to_train(recipe: Recipe, last: Phase | None) -> tuple[Phase, ...]:
    """All phases of the recipe, or one phase with its ancestors."""
    return (*recipe.ancestors(last), last) if last else recipe.phases


def check_ancestors_passed(resolved: Resolved, phase: Phase) -> None:
    """Check the verdicts of all ancestors before the data of a phase are prepared.

    Without a plan, the verdicts must also be current in the parent's plan, because the data of a branch may be missing. Raises
    ParentNotDone with the remedy if a verdict is missing or out of date, VerdictError if a verdict fails.
    """
    before = check_verdicts(resolved, phase)
    if before and "plan" not in vars(resolved):  # the plan is made once, on first use
        parents, _ = resolve_phase(resolved.recipe_name, before[-1].name, resolved.recipe.scale, str(resolved.home.root))
        check_ancestors_hold(parents, phase, before)


def check_verdicts(resolved: Resolved, phase: Phase) -> tuple[Phase, ...]:
    """Check that the verdicts of all ancestors exist and pass. Returns the ancestors, and raises as `check_ancestors_passed`."""
    before = resolved.recipe.ancestors(phase)
    for ancestor in before:
        for gate in GATES:
            path = resolved.home.verdict(resolved.recipe.run_name, ancestor.name, gate)
            what = "training" if gate == "health" else gate
            if not path.exists():
                raise _not_done(resolved, phase, ancestor, f"there is no verdict on its {what}")
            verdict, ruling = read_verdict(path), ruling_at(path)
            if ruling.lets_go_on:
                continue
            error = _not_done(resolved, phase, ancestor, f"the verdict on its {what} {why_not(verdict, ruling, path)}")
            raise error if ruling.state == "waits" else VerdictError(str(error))
    return before


def check_ancestors_hold(resolved: Resolved, phase: Phase, before: tuple[Phase, ...] | None = None) -> None:
    """Check that these ancestors, by default all, are done with the current plan. Raises ParentNotDone."""
    for ancestor in resolved.recipe.ancestors(phase) if before is None else before:
        record = read_record(resolved, ancestor)
        if record.state != State.DONE:
            raise _not_done(resolved, phase, ancestor, record.lacks[0])


def _not_done(resolved: Resolved, phase: Phase, ancestor: Phase, why: str) -> ParentNotDone:
    command = f"phasewise run {resolved.recipe_name}/{ancestor.name} {resolved.options}"
    message = (
        f"{resolved.recipe.run_name}/{phase.name} needs {ancestor.name}, which is not done: {why}.\n"
        f"  to do: `{command}` completes it and judges it again."
    )
    return ParentNotDone(message, ancestor.name, why)


def find_replaced(resolved: Resolved, phases: Iterable[Phase]) -> tuple[Replaced, ...]:
    """The phases with outdated checkpoints, and phases that start from them."""
    found: dict[str, Replaced] = {}
    for phase in phases:
        try:
            run = resolved.run(phase)
        except TrainingError:  # the parent is not trained, so the phase has no start to compare
            continue
        step = run_identity.last_saved_step(run)
        if step is None:
            continue
        before = [one.name for one in resolved.recipe.ancestors(phase) if one.name in found]
        if before:
            why = f"it starts from {before[-1]}, which is trained again"
        elif run_identity.finished_result(run, digests=resolved.digests) or run_identity.is_begun(run):
            continue
        else:
            why = name_some(run_identity.differences(run), 3, "; ") or "its folder does not record its settings"
            why += "" if run_identity.why_not_extended(run) else f"; --extend {phase.name} continues it"
        rows = [row for row in read_metrics(RunFolder(run.output).metrics) if row.get("step_seconds")]
        took = sum(row["step_seconds"] for row in rows)
        trained = sum(row["tokens"] for row in rows)
        found[phase.name] = Replaced(phase.name, step, why, phase.tokens, phase.tokens * took / trained if trained else None)
    return tuple(found.values())


def check_named(names: Collection[str], phases: Iterable[Phase], option: str) -> None:
    """Reject unknown phase names of `--retrain` or `--extend` with ConfigError."""
    known = [phase.name for phase in phases]
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(f"{option} names {', '.join(unknown)}: expected phases of this run ({', '.join(known)}).")


def extend_phases(resolved: Resolved, names: Iterable[str]) -> None:
    """Let the trained runs of these phases continue to the stop of the recipe. Raises ConfigError if a run cannot continue."""
    for name in names:
        run = resolved.run(resolved.recipe.phase(name))
        if run_identity.is_begun(run):
            continue
        if why := run_identity.why_not_extended(run):
            raise ConfigError(
                f"--extend {name}: {why}. Raise stop_step in the recipe's file and keep the rest, or train again with --retrain {name}."
            )
        run_identity.extend_run(run)


def check_replaced(resolved: Resolved, found: Sequence[Replaced], retrain: Collection[str]) -> None:
    """Raise WouldReplace for replaced work, except for phases in `retrain`, their descendants, and little work."""
    recipe = resolved.recipe
    ancestors = {one.phase: {before.name for before in recipe.ancestors(recipe.phase(one.phase))} for one in found}
    seconds = [one.seconds for one in found]
    is_little = recipe.scale != "full" and sum(second or 0.0 for second in seconds) < MAX_SECONDS_UNASKED and None not in seconds
    unasked = [one for one in found if one.phase not in retrain and ancestors[one.phase].isdisjoint(retrain)]
    if not unasked or is_little:
        return
    names = [one.phase for one in unasked]
    first = [name for name in names if ancestors[name].isdisjoint(names)]
    command = f"phasewise run {resolved.name} {resolved.options}"
    lines = "\n".join(f"  {one}" for one in unasked)
    raise WouldReplace(
        f"{recipe.run_name} differs from the trained recipe, and training it would replace work:\n{lines}\n"
        f"  to do: undo the change, or allow it: `{command} {' '.join(f'--retrain {name}' for name in first)}`. Replaced work is archived."
    )
