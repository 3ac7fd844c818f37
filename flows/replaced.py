"""Work that a change would set aside: what changed, and what it costs to do it again. Nobody loses a run without having said so."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.resolved import Resolved
from phasewise.tasks.progress import say
from phasewise.tasks.training.run_identity import differences, finished_result, is_begun, last_saved_step, name_differences
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, TrainingError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.wording import about
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import read_metrics

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
        found[phase.name] = Replaced(phase.name, step, why, phase.tokens, _seconds(run, phase.tokens))
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


def _seconds(run: RunConfig, tokens: int) -> float | None:
    """How long the phase would train at the speed of what is in its folder; None where that has no rows."""
    rows = [row for row in read_metrics(RunFolder.at(run.output).metrics) if row.get("step_seconds")]
    took = sum(row["step_seconds"] for row in rows)
    trained = sum(row["tokens"] for row in rows)
    return tokens * took / trained if trained else None


def _time(seconds: float | None) -> str:
    return "nobody measured how long" if seconds is None else about(seconds)
