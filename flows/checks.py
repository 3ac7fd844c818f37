"""What is refused before work starts: sources that cannot be read, slices that are not here, mixtures that blocks cannot express."""

from collections.abc import Iterable

from flows.plan import sources_of, stand_ins_of
from flows.recipes.phase import LOCAL_SLICE, Phase
from flows.recipes.recipe import Recipe
from tasks.data.conversations.template import template_of
from tasks.data.listing import expand
from tasks.data.standins import missing_stand_ins
from tasks.home import Home
from tasks.training.choice import chosen_kind
from trainer.base.errors import ConfigError, RecipeError
from trainer.data.mixture import MixtureSchedule, check_shares


def check_sources(recipe: Recipe, home: Home) -> None:
    """Refuse sources that cannot be read, and chat templates that fail at any conversation.

    Raises:
        RecipeError: as `flows.plan.sources_of`.
        ConfigError: a chat template cannot be used.
        DataError: a component has no files, or a chat template fails at a conversation that is made up.
    """
    sources = sources_of(recipe, home)
    for source in sources.values():
        if source.conversation:
            template_of(source.conversation).probe()
    to_collect = missing_stand_ins(stand_ins_of(recipe), home.sources)
    for name, source in sources.items():
        if name not in to_collect:
            expand(source)


def check_conversations(recipe: Recipe, phases: Iterable[Phase], home: Home) -> None:
    """Refuse phases that predict answers of what is no conversation, or whose chat template does not say what an answer is.

    Of a pinned cache its manifest says, when the cache is read.

    Raises:
        RecipeError: with the components; or as `flows.plan.sources_of`.
        ConfigError: a chat template cannot be used.
    """
    pinned = {pin.component for pin in recipe.pins if pin.split == "train"}
    for phase in phases:
        if phase.loss_on == "all":
            continue
        sources = sources_of(recipe, home)
        if plain := [name for name in phase.components if name not in pinned and sources[name].conversation is None]:
            raise RecipeError(
                f"phase {phase.name} of {recipe.run_name} has loss_on answers, so all it draws from must be conversations, and "
                f"{', '.join(plain)} {'is' if len(plain) == 1 else 'are'} plain text: give each a source with a `conversation` under "
                "`sources` in the recipe's file, or set loss_on to all."
            )
        told = {name: how for name in phase.components if name not in pinned and (how := sources[name].conversation)}
        if silent := [name for name, how in told.items() if not template_of(how).marks_answers]:
            raise RecipeError(
                f"phase {phase.name} of {recipe.run_name} has loss_on answers, and the chat template of {', '.join(silent)} does not say "
                "what an answer is: put {% generation %} … {% endgeneration %} around what the assistant writes, with the token that ends "
                "its turn."
            )


def check_slice_name(name: str) -> None:
    """Refuse a name that is no slice.

    Raises:
        ConfigError: as `tasks.preflight.slices.find_slice`.
    """
    if name != LOCAL_SLICE:
        from tasks.preflight.slices import find_slice  # it imports jax

        find_slice(name)


def check_slices(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Refuse phases that cannot be trained from here.

    Raises:
        RecipeError: a phase needs a slice that is not here, and no launcher for one is chosen.
        ConfigError: there is no such launcher.
    """
    has_slices = chosen_kind() != LOCAL_SLICE
    for phase in phases:
        names = [name for _, name in phase.slice.within(phase.start_step, phase.stop_step)]
        for name in () if has_slices else names:
            if name != LOCAL_SLICE and not _is_here(name):
                instead = f'give it the slice "{LOCAL_SLICE}"' if recipe.scale == "own" else "use --scale proxy"
                raise RecipeError(
                    f"phase {phase.name} of {recipe.run_name} needs the slice {name}, and so far only this machine can be trained on: "
                    f"{instead}."
                )


def _is_here(name: str) -> bool:
    """Whether this machine has the devices of a slice; those of a CPU are made where they are needed."""
    from tasks.preflight.slices import find_slice
    from tasks.training.machine import machine_here

    where = find_slice(name)
    if where.count > 1:
        return False
    if where.chip.platform == "cpu":
        return True
    machine = machine_here()
    return machine.platform == where.chip.platform and machine.kind.startswith(where.chip.device_kind) and machine.devices >= where.devices


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
