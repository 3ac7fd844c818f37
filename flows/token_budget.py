"""How much text a recipe draws from each component, what is therefore read of it, and whether what was read is enough."""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import BETWEEN, Recipe
from phasewise.tasks.data.listing import shared
from phasewise.tasks.data.plan import DataPlan
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.data.packing import DrawnRows, RowsOfTokens


def needed_tokens(recipe: Recipe, phases: Iterable[Phase] | None = None) -> dict[str, int]:
    """Component → tokens that are drawn from it, at most, since an order began: of a lineage whose order goes on, by all its phases.

    Args:
        phases: None is all of the recipe.
    """
    needs: dict[str, int] = {}
    for phase in recipe.phases if phases is None else phases:
        order = phase.order
        schedule = recipe.mixture_schedule(phase)
        for name, sequences in schedule.realised(order.first_step, phase.stop_step).items():
            needs[name] = max(needs.get(name, 0), sequences * phase.model.seq_len)
    return needs


def drawn_earlier(recipe: Recipe, phase: Phase) -> dict[str, tuple[DrawnRows, ...]]:
    """Component → the rows that the lineage drew from it before the order of a phase began; nothing where that is step 0."""
    drawn: dict[str, tuple[DrawnRows, ...]] = {}
    lineage = recipe.lineage(phase)
    for part, child in pairwise(lineage):
        stop = min(child.start_step, phase.order.first_step)
        if stop > part.start_step:
            schedule = recipe.mixture_schedule(part)
            for name, sequences in schedule.realised(part.start_step, stop).items():
                if sequences and name in phase.components:
                    drawn[name] = (*drawn.get(name, ()), DrawnRows(sequences, part.model.seq_len, part.packing))
    return dict(sorted(drawn.items()))


def budgets_of(recipe: Recipe) -> dict[str, int]:
    """Component → tokens of which a part of its files will do; nothing where everything is read.

    That is so where the recipe has a `max_tokens`, and at every scale between. One that is never drawn from has a budget of one token.
    """
    if recipe.max_tokens is None and recipe.scale not in BETWEEN:
        return {}
    needs = needed_tokens(recipe)
    return shared({name: needs.get(name, 0) for name in recipe.components}, recipe.max_tokens)


def check_enough(recipe: Recipe, plan: DataPlan, phases: Iterable[Phase]) -> None:
    """Refuse budgeted caches that hold less than is drawn: their text would be repeated, and the recipe does not say so.

    Of packed rows the rows are counted: some have padding, and what is longer than a row is cut. A component of which everything is read is
    repeated as the recipe has it: how often, its verdict says.

    Raises:
        DataError: with every such component, and the budget that would do.
    """
    phases = list(phases)
    full = needed_tokens(recipe, [phase for phase in phases if phase.packing == "chunk"])
    asked = [(name, Needed(need, "tokens", None)) for name, need in sorted(full.items())]
    asked += [one for phase in phases if phase.packing != "chunk" for one in _needed_rows(recipe, phase)]
    short, ratios = list[str](), list[float]()
    for name, needed in asked:
        component = plan.components[name]
        budget = component.listing.budget
        if budget is None or component.train.pin or not component.train.is_built:
            continue
        folder, phase = component.train.folder, needed.packed_in
        if phase is None:
            found = read_manifest(folder).tokens
        else:
            found = RowsOfTokens(TokenCache.open(folder), phase.packing, phase.model.seq_len).num_rows
        if found < needed.drawn:
            ratios.append(needed.drawn / max(found, 1))
            short.append(f"{name} has {found:,} {needed.unit} to train on, from {budget.words}, and {needed.drawn:,} are drawn")
    if short:
        enough = round(1.1 * max(ratios) * sum(budgets_of(recipe).values()))
        raise DataError(
            f"less was read than is trained on: {'; '.join(short)}. Its text would be repeated, which the recipe does not say. Prepare the "
            f"data with --max-tokens {enough}, and train with the same; what is there is kept."
        )


class Needed(NamedTuple):
    """How much is drawn of a component: tokens, or rows of the phase that packs them."""

    drawn: int
    unit: str
    packed_in: Phase | None


def _needed_rows(recipe: Recipe, phase: Phase) -> list[tuple[str, Needed]]:
    schedule = recipe.mixture_schedule(phase)
    drawn = schedule.realised(phase.order.first_step, phase.stop_step)
    return [(name, Needed(count, f"rows of {phase.name}", phase)) for name, count in sorted(drawn.items()) if name in phase.components]
