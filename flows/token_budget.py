"""Token budgets: the text that a recipe draws from each component, the part of the files to read, and whether it was enough."""

from collections.abc import Iterable
from itertools import pairwise

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import BETWEEN, Recipe
from phasewise.tasks.data.listing import shared
from phasewise.tasks.data.plan import DataPlan
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import read_manifest
from phasewise.trainer.data.packing import ComponentRows, DrawnRows, RowRule


def needed_tokens(recipe: Recipe, phases: Iterable[Phase] | None = None) -> dict[str, int]:
    """Component → most tokens that an order draws from its start, over all phases with this order."""
    needs: dict[str, int] = {}
    for phase in recipe.phases if phases is None else phases:
        drawn = recipe.mixture_schedule(phase).realised(phase.order.first_step, phase.stop_step)
        for name, sequences in drawn.items():
            needs[name] = max(needs.get(name, 0), sequences * phase.model.seq_len)
    return needs


def drawn_earlier(recipe: Recipe, phase: Phase) -> dict[str, tuple[DrawnRows, ...]]:
    """Component → rows of the lineage before the start of the phase's order."""
    drawn: dict[str, tuple[DrawnRows, ...]] = {}
    for part, child in pairwise(recipe.lineage(phase)):
        stop = min(child.start_step, phase.order.first_step)
        if stop <= part.start_step:
            continue
        for name, sequences in recipe.mixture_schedule(part).realised(part.start_step, stop).items():
            if sequences and name in phase.components:
                drawn[name] = (*drawn.get(name, ()), DrawnRows(sequences, part.model.seq_len, part.packing))
    return dict(sorted(drawn.items()))


def budgets_of(recipe: Recipe) -> dict[str, int]:
    """Component → tokens to read, with `max_tokens` and at the scales between proxy and full. Otherwise empty: everything is read.

    A component without any draws has a budget of one token.
    """
    if recipe.max_tokens is None and recipe.scale not in BETWEEN:
        return {}
    needs = needed_tokens(recipe)
    return shared({name: needs.get(name, 0) for name in recipe.components}, recipe.max_tokens)


def check_enough(recipe: Recipe, plan: DataPlan, phases: Iterable[Phase]) -> None:
    """Reject budgeted caches with less text than the phases draw, because the text would be repeated against the recipe.

    Packed phases compare rows, because rows have padding and long documents are cut. Components without a budget may repeat, and the
    verdict on the data judges their epochs.
    """
    phases = list(phases)
    in_tokens = needed_tokens(recipe, [phase for phase in phases if phase.packing == "chunk"])
    draws: list[tuple[str, int, Phase | None]] = [(name, tokens, None) for name, tokens in sorted(in_tokens.items())]
    for phase in phases:
        if phase.packing != "chunk":
            drawn_rows = recipe.mixture_schedule(phase).realised(phase.order.first_step, phase.stop_step)
            draws += [(name, count, phase) for name, count in sorted(drawn_rows.items()) if name in phase.components]
    short, ratios = list[str](), list[float]()
    for name, drawn, packed in draws:
        component = plan.components[name]
        budget = component.listing.budget
        if budget is None or component.train.pin or not component.train.is_built:
            continue
        if packed is None:
            found, unit = read_manifest(component.train.folder).tokens, "tokens"
        else:
            rows = ComponentRows(TokenCache.open(component.train.folder), RowRule(packed.packing), packed.model.seq_len)
            found, unit = rows.num_rows, f"rows of {packed.name}"
        if found < drawn:
            ratios.append(drawn / max(found, 1))
            short.append(f"{name} has {found:,} {unit} to train on, from {budget.words}, and {drawn:,} are drawn")
    if short:
        enough = round(1.1 * max(ratios) * sum(budgets_of(recipe).values()))
        raise DataError(
            f"less was read than is trained on: {', '.join(short)}. The text would be repeated, against the recipe. Prepare the data with "
            f"--max-tokens {enough}, and train with the same option. Existing caches are kept."
        )
