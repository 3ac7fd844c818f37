"""A phase that is trained, for what begins where its training ended: evaluation and export."""

from typing import Any

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import scale_in_words
from phasewise.flows.record import why_not_trained
from phasewise.flows.resolved import Resolved
from phasewise.tasks.training.run_identity import finished_result
from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.config import RunConfig


def named_phase(resolved: Resolved, phase: Phase | None, needed_by: str) -> Phase:
    """The phase that was named.

    Raises:
        ConfigError: none was.
    """
    if phase is None:
        recipe = resolved.recipe
        names = ", ".join(f"{recipe.name}/{one.name}" for one in recipe.phases)
        raise ConfigError(f"{needed_by} needs a phase, found the recipe {resolved.name}; there are {names}.")
    return phase


def trained_run(resolved: Resolved, phase: Phase) -> tuple[RunConfig, dict[str, Any]]:
    """The run of a phase and its result. The home is made ready to be written to, unless it is only read.

    Raises:
        ConfigError: as `Resolved.run`.
        TrainingError: it is not trained on what the recipe gives now.
    """
    if not resolved.home.reads_only:
        resolved.home.make_ready()
    run = resolved.run(phase)
    result = finished_result(run, digests=resolved.digests)
    if result is None:
        recipe = resolved.recipe
        raise TrainingError(
            f"{resolved.recipe_name}/{phase.name} is not trained {scale_in_words(recipe.scale)} under {resolved.home.root}: "
            f"{why_not_trained(run, resolved.digests)}. Run `phasewise run {resolved.recipe_name}/{phase.name} {resolved.options}` first."
        )
    return run, result
