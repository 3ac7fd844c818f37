"""From a recipe to what the rooms below need: sources for the data, a run for the trainer."""

from collections.abc import Mapping
from pathlib import Path

from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.feasibility import check_components
from phasewise.flows.recipes.phase import FromScratch, GraftFrom, HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe, scale_in_words
from phasewise.flows.token_budget import budgets_of
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.stand_ins import StandIn, stand_in_source
from phasewise.tasks.home import Home
from phasewise.tasks.training.execution import ONE_DEVICE
from phasewise.trainer.base.errors import RecipeError, TrainingError
from phasewise.trainer.base.run_folder import read_result
from phasewise.trainer.checkpoints.files import checkpoint_path
from phasewise.trainer.config import Graft, LossEvaluation, RunConfig, StartFrom


def sources_of(recipe: Recipe, home: Home) -> dict[str, Source]:
    """Each component's source: the recipe's own if it has one, else its stand-in where the scale has stand-ins, else the real data set.

    Raises:
        RecipeError: a component has no source, or its real data are not public.
    """
    check_components(recipe)
    without_own = [name for name in recipe.components if name not in recipe.sources]
    if not recipe.uses_stand_ins and (closed := [name for name in without_own if CATALOGUE[name].source is None]):
        raise RecipeError(
            f"{recipe.name} {scale_in_words(recipe.scale)} draws from {', '.join(closed)}, whose data are not public: there is nothing "
            "to read. Give each a source of its own under `sources` in a recipe's file, or use --scale proxy, which has small stand-ins."
        )
    found = {name: CATALOGUE[name].source for name in recipe.components if name not in recipe.sources}
    others = {name: source for name, source in found.items() if source is not None}
    if recipe.uses_stand_ins:
        others = {name: stand_in_source(stand_in, home.sources / name) for name, stand_in in stand_ins_of(recipe).items()}
    return {**others, **recipe.sources}


def stand_ins_of(recipe: Recipe) -> dict[str, StandIn]:
    """What must be collected from this installation first. Nothing that the recipe has a source for; nothing where real data are read."""
    if not recipe.uses_stand_ins:
        return {}
    found = {name: CATALOGUE[name].stand_in for name in recipe.components if name not in recipe.sources}
    return {name: stand_in for name, stand_in in found.items() if stand_in is not None}


def data_plan(recipe: Recipe, home: Home, *, digests: KnownDigests | None = None) -> DataPlan:
    """Every cache that the recipe needs, from its sources as they are now.

    Args:
        digests: the contents of files as this command knows them; None is what the home keeps of earlier commands.
    """
    sources = sources_of(recipe, home)
    tokenizer = recipe.tokenizer
    return plan_data(
        sources,
        home,
        vocab_size=tokenizer.vocab_size,
        tokenizer_name=tokenizer.name,
        tokenizer_components=tokenizer.components,
        special_tokens=tokenizer.special_tokens,
        benchmark_components=recipe.main_components,
        pins=recipe.pins,
        digests=digests,
        budgets=budgets_of(recipe),
        length_bias=recipe.length_bias,
    )


def build_run(
    recipe: Recipe,
    phase: Phase,
    home: Home,
    caches: Mapping[str, Path],
    *,
    held_out: Mapping[str, Path] | None = None,
    needs_parent: bool = True,
) -> RunConfig:
    """The phase as the trainer wants it, with the schedules of its whole lineage.

    Args:
        caches: component → folder of its training cache.
        held_out: component → folder of its held-out cache; None measures no loss on held-out text while the phase trains.
        needs_parent: without it the run says nothing of the weights that it starts from, and can be read, but not trained.

    Raises:
        TrainingError: its parent is not trained yet.
    """
    root = recipe.lineage(phase)[0].start
    assert isinstance(root, FromScratch)
    return RunConfig(
        recipe=recipe.name,
        scale=recipe.scale,
        phase=phase.name,
        start_step=phase.start_step,
        stop_step=phase.stop_step,
        seed=root.seed,
        model=phase.model,
        optimizer=phase.optimizer,
        learning_rate=phase.learning_rate,
        stability=phase.stability,
        batch=recipe.batch_of_lineage(phase),
        mixture=recipe.mixture_of_lineage(phase),
        order=phase.order,
        checkpoints=phase.checkpoints,
        recovery=phase.recovery,
        packing=phase.packing,
        loss_on=phase.loss_on,
        start=start_of(recipe, phase, home) if needs_parent else None,
        caches={name: str(caches[name]) for name in phase.components},
        cache_digests={pin.component: pin.digest for pin in recipe.pins if pin.split == "train" and pin.component in phase.components},
        verdict=str(home.verdict(recipe.run_name, phase.name, "data")),
        output=str(home.run(recipe.run_name, phase.name)),
        execution=ONE_DEVICE,
        instrumentation=phase.instrumentation,
        evaluation=_loss_evaluation(phase, held_out),
    )


def _loss_evaluation(phase: Phase, held_out: Mapping[str, Path] | None) -> LossEvaluation | None:
    every = phase.evaluation.loss_every_steps
    if held_out is None or every is None:
        return None
    caches = {name: str(held_out[name]) for name in phase.components}
    return LossEvaluation(every_steps=every, sequences=phase.evaluation.loss_sequences, caches=caches)


def start_of(recipe: Recipe, phase: Phase, home: Home) -> StartFrom | None:
    """The weights that the phase starts from, as they are now; None where it starts from scratch.

    Raises:
        TrainingError: its parent is not trained yet.
    """
    if not isinstance(phase.start, HandOff):
        return None
    checkpoint, digest = _checkpoint_of(recipe, phase, phase.start.parent, phase.start.step, home)
    grafts = tuple(_graft(recipe, phase, graft, home) for graft in phase.start.graft)
    return StartFrom(checkpoint=checkpoint, params_digest=digest, fresh=phase.start.fresh, graft=grafts)


def _graft(recipe: Recipe, phase: Phase, graft: GraftFrom, home: Home) -> Graft:
    checkpoint, digest = _checkpoint_of(recipe, phase, graft.phase, graft.step, home)
    return Graft(part=graft.part, checkpoint=checkpoint, params_digest=digest)


def _checkpoint_of(recipe: Recipe, phase: Phase, parent: str, step: int, home: Home) -> tuple[str, str]:
    folder = home.run(recipe.run_name, parent)
    result = read_result(folder)
    if result is None:
        raise TrainingError(f"phase {phase.name} starts from {parent}, which is not trained yet: run {recipe.name} first.")
    checkpoint = checkpoint_path(folder, step)
    if step == recipe.phase(parent).stop_step:
        return str(checkpoint), result["params_digest"]
    from phasewise.trainer.checkpoints.state import saved_params_digest  # it imports JAX

    return str(checkpoint), saved_params_digest(checkpoint)
