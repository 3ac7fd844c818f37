"""What a recipe declares and cannot be carried out here is refused before work starts, with the reason and what to do."""

from collections.abc import Iterable

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.evaluation.measured import needles_of, real_of
from phasewise.tasks.evaluation.renderings import check_renderings
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
    from phasewise.tasks.evaluation.suites.gated import gate_key  # a third of a second, which the made ones do without

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
        from phasewise.tasks.evaluation.suites.gated_needles import check_room

        check_room(phase.name, labels, load_tokenizer(plan.tokenizer))


def _check_renderings(recipe: Recipe, phase: Phase) -> None:
    if phase.evaluation.renderings is None:
        return
    try:
        check_renderings(phase.evaluation.renderings)
    except DataError as error:
        raise RecipeError(f"phase {phase.name} of {recipe.run_name} cannot be judged by its gate: {error}") from None
