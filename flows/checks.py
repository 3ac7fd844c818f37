"""What this machine and the source files refuse before work starts. What the recipe alone refuses is in `flows.recipes.feasibility`."""

from collections.abc import Iterable

from phasewise.flows.plan import sources_of, stand_ins_of
from phasewise.flows.recipes.phase import LOCAL_SLICE, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.listing import expand
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.stand_ins import missing_stand_ins
from phasewise.tasks.data.template import template_of
from phasewise.tasks.evaluation.settings import check_renderings, needles_of, real_of
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.training.select_launcher import chosen_kind
from phasewise.trainer.base.errors import ConfigError, DataError, RecipeError


def check_declared(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Refuse phases that ask for something that would not happen.

    Raises:
        RecipeError: a phase names a benchmark whose items are not here, or items of two renderings that are not there or tell nothing.
    """
    for phase in phases:
        check_benchmarks(recipe, phase)
        _check_renderings(recipe, phase)


def check_benchmarks(recipe: Recipe, phase: Phase) -> None:
    """Refuse a phase whose gate would have to do without a benchmark that it names.

    Raises:
        RecipeError: no folder of benchmarks is named, or it lacks what one needs.
    """
    if not (labels := real_of(phase.evaluation.benchmarks)):
        return
    from phasewise.tasks.evaluation.gate_benchmarks import gate_key  # a third of a second, which the made ones do without

    try:
        gate_key(labels)
    except ConfigError as error:
        instead = "" if recipe.uses_stand_ins else " Or use --scale proxy, whose benchmarks are made from held-out text."
        raise RecipeError(f"phase {phase.name} of {recipe.run_name} cannot be judged by its gate: {error}{instead}") from None


def check_needles(plan: DataPlan, phase: Phase) -> None:
    """Refuse needles in texts that have no room for them, once the phase's tokenizer is there.

    Raises:
        ConfigError: with the least length.
    """
    if labels := needles_of(phase.evaluation.benchmarks):
        from phasewise.tasks.data.tokenizer import load_tokenizer
        from phasewise.tasks.evaluation.gate_benchmarks import check_room

        check_room(phase.name, labels, load_tokenizer(plan.tokenizer))


def _check_renderings(recipe: Recipe, phase: Phase) -> None:
    if phase.evaluation.renderings is None:
        return
    try:
        check_renderings(phase.evaluation.renderings)
    except DataError as error:
        raise RecipeError(f"phase {phase.name} of {recipe.run_name} cannot be judged by its gate: {error}") from None


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
    from phasewise.tasks.training.execution import machine_here

    where = find_slice(name)
    if where.count > 1:
        return False
    if where.chip.platform == "cpu":
        return True
    machine = machine_here()
    return machine.platform == where.chip.platform and machine.kind.startswith(where.chip.device_kind) and machine.devices >= where.devices
