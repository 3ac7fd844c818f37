"""From a recipe to what the rooms below need: sources for the data, a run for the trainer."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from flows.recipes.catalogue import CATALOGUE
from flows.recipes.recipe import LOCAL_SLICE, FromScratch, HandOff, Phase, Recipe
from tasks.data.plan import DataPlan, plan_data
from tasks.data.source import Source, expand
from tasks.data.standins import StandIn, missing_stand_ins, stand_in_source
from tasks.home import Home
from trainer.checkpoint_path import checkpoint_path
from trainer.config import RunConfig, StartFrom
from trainer.errors import ConfigError, TrainingError
from trainer.storage import read_json


def sources_of(recipe: Recipe, home: Home) -> dict[str, Source]:
    """Each component's source: the stand-in at proxy scale, the real data set at full scale.

    Raises:
        ConfigError: a component is not in the catalogue.
    """
    if unknown := sorted(set(recipe.components) - set(CATALOGUE)):
        raise ConfigError(f"{recipe.name} draws from {', '.join(unknown)}, which flows/recipes/catalogue.py does not name.")
    if recipe.scale == "proxy":
        return {name: stand_in_source(home.sources / name) for name in recipe.components}
    return {name: CATALOGUE[name].source for name in recipe.components}


def stand_ins_of(recipe: Recipe) -> dict[str, StandIn]:
    """What must be collected from this installation first; nothing at full scale."""
    return {name: CATALOGUE[name].stand_in for name in recipe.components} if recipe.scale == "proxy" else {}


def check_sources(recipe: Recipe, home: Home) -> None:
    """Refuse sources that cannot be read, before anything is started.

    Raises:
        ConfigError: a component is not in the catalogue.
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


def data_plan(recipe: Recipe, home: Home) -> DataPlan:
    """Every cache that the recipe needs, from its sources as they are now."""
    return plan_data(sources_of(recipe, home), home, vocab_size=recipe.tokenizer.vocab_size, tokenizer_name=recipe.tokenizer.name)


def build_run(recipe: Recipe, phase: Phase, home: Home, caches: Mapping[str, Path]) -> RunConfig:
    """The phase as the trainer wants it, with the schedules of its whole lineage.

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
        start=_start(recipe, phase, home),
        caches={name: str(caches[name]) for name in phase.components},
        verdict=str(home.verdict(recipe.run_name, phase.name, "data")),
        output=str(home.run(recipe.run_name, phase.name)),
    )


def _start(recipe: Recipe, phase: Phase, home: Home) -> StartFrom | None:
    if not isinstance(phase.start, HandOff):
        return None
    parent = home.run(recipe.run_name, phase.start.parent)
    result = parent / "result.json"
    if not result.exists():
        raise TrainingError(f"phase {phase.name} starts from {phase.start.parent}, which is not trained yet: run {recipe.name} first.")
    checkpoint = checkpoint_path(parent, phase.start.step)
    return StartFrom(checkpoint=str(checkpoint), params_digest=read_json(result)["params_digest"], fresh=phase.start.fresh)
