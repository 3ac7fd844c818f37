"""What is refused before work starts: sources that cannot be read, slices that are not here, mixtures that blocks cannot express."""

from collections.abc import Iterable

from flows.plan import sources_of, stand_ins_of
from flows.recipes.phase import LOCAL_SLICE, Phase
from flows.recipes.recipe import Recipe
from tasks.data.listing import expand
from tasks.data.standins import missing_stand_ins
from tasks.home import Home
from trainer.base.errors import ConfigError
from trainer.data.mixture import MixtureSchedule, check_shares


def check_sources(recipe: Recipe, home: Home) -> None:
    """Refuse sources that cannot be read.

    Raises:
        ConfigError: as `flows.plan.sources_of`.
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
        ConfigError: a phase needs a slice.
    """
    for phase in phases:
        for _, name in phase.slice.within(phase.start_step, phase.stop_step):
            if name != LOCAL_SLICE:
                raise ConfigError(
                    f"phase {phase.name} of {recipe.run_name} needs the slice {name}, and so far only this machine can be trained on: "
                    "use --scale proxy."
                )


def check_mixtures(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Refuse mixtures that blocks cannot express.

    Raises:
        ConfigError: a component with a share has no sequence in a block, a block is further from a share than the phase's limit allows,
            or a mixture starts off the block grid without a word.
    """
    for phase in phases:
        MixtureSchedule(batch=recipe.batch_of_lineage(phase), mixture=recipe.mixture_of_lineage(phase), order=phase.order)
        for step, shares in phase.mixture.within(phase.start_step, phase.stop_step):
            limits = phase.gates.data
            points, percent = limits.max_share_error_points, limits.max_share_error_percent
            check_shares(shares, phase.order, step=step, max_error_points=points, max_error_percent=percent)
