"""What a recipe declares and nothing carries out yet is refused before work starts, with the reason and what to do."""

from collections.abc import Iterable

from flows.recipes.benchmarks import MADE_BENCHMARKS, unmeasured
from flows.recipes.phase import Phase
from flows.recipes.recipe import Recipe
from trainer.base.errors import RecipeError


def check_declared(recipe: Recipe, phases: Iterable[Phase]) -> None:
    """Refuse phases that ask for something that would not happen.

    Raises:
        RecipeError: a phase names a benchmark that no gate asks.
    """
    for phase in phases:
        check_benchmarks(recipe, phase)


def check_benchmarks(recipe: Recipe, phase: Phase) -> None:
    """Refuse a phase whose gate would have to do without a benchmark that it names.

    Raises:
        RecipeError: it names a benchmark that no gate asks.
    """
    if names := unmeasured(phase.evaluation.benchmarks):
        instead = "" if recipe.scale == "own" else ", or use --scale proxy"
        raise RecipeError(
            f"phase {phase.name} of {recipe.run_name} names the benchmarks {', '.join(names)}, which are lm-eval's and are not measured "
            f"by its gate yet (`phasewise evaluate --suite` measures them): name {' or '.join(MADE_BENCHMARKS)} in its "
            f"evaluation.benchmarks{instead}."
        )
