"""What is refused before work starts: sources that cannot be read, slices that are not here, mixtures that blocks cannot express."""

from collections.abc import Iterable

from flows.plan import sources_of, stand_ins_of
from flows.recipes.phase import LOCAL_SLICE, Phase
from flows.recipes.recipe import Recipe
from tasks.data.listing import expand
from tasks.data.standins import missing_stand_ins
from tasks.home import Home
from trainer.base.errors import ConfigError, RecipeError
from trainer.data.mixture import MixtureSchedule, check_shares


def check_sources(recipe: Recipe, home: Home) -> None:
    """Refuse sources that cannot be read.

    Raises:
        RecipeError: as `flows.plan.sources_of`.
        DataError: a component has no files.
    """
    sources = sources_of(recipe, home)
    to_collect = missing_stand_ins(stand_ins_of(recipe), home.sources)
    for name, source in sources.items():
        if name not in to_collect:
            expand(source)


def check_slices(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Refuse phases that this machine cannot train.

    Raises:
        RecipeError: a phase needs a slice.
    """
    for phase in phases:
        for _, name in phase.slice.within(phase.start_step, phase.stop_step):
            if name != LOCAL_SLICE:
                instead = f'give it the slice "{LOCAL_SLICE}"' if recipe.scale == "own" else "use --scale proxy"
                raise RecipeError(
                    f"phase {phase.name} of {recipe.run_name} needs the slice {name}, and so far only this machine can be trained on: "
                    f"{instead}."
                )


def check_mixtures(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Refuse mixtures that blocks cannot express.

    Raises:
        RecipeError: a component with a share has no sequence in a block, a block is further from a share than the phase's limit allows,
            or a mixture starts off the block grid without a word.
    """
    for phase in phases:
        try:
            _check_mixture(recipe, phase)
        except ConfigError as error:
            raise RecipeError(str(error)) from None


def _check_mixture(recipe: Recipe, phase: Phase) -> None:
    MixtureSchedule(batch=recipe.batch_of_lineage(phase), mixture=recipe.mixture_of_lineage(phase), order=phase.order)
    for step, shares in phase.mixture.within(phase.start_step, phase.stop_step):
        limits = phase.gates.data
        points, percent = limits.max_share_error_points, limits.max_share_error_percent
        check_shares(shares, phase.order, step=step, max_error_points=points, max_error_percent=percent)
