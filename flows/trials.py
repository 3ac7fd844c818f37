"""The folders of a trial: a phase that `--set` changes trains beside the one of the recipe, and leaves that one as it is."""

from dataclasses import replace
from typing import Any

from phasewise.flows.recipes import at_scale, load_written, split_target
from phasewise.flows.recipes.assignments import assigned, settings_in_force
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.recipe import Recipe, Scale
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.config.identity import BIND_THE_RESULT, MAY_CHANGE, field_of

OF_DATA = {"tokenizer", "sources", "pins", "max_tokens", "length_bias"}
"""Fields of a recipe that decide its caches."""


def home_in_trial(home: Home, target: str, scale: Scale) -> Home:
    """The home with the folders of the trial that the settings in force make of a recipe; itself without settings.

    Raises:
        ConfigError: as `flows.recipes.load_record`.
    """
    if not settings_in_force():
        return home
    name, _ = split_target(target)
    recipe = at_scale(load_written(name), scale, name)
    return with_trial(home, recipe, assigned(recipe))


def with_trial(home: Home, recipe: Recipe, changed: Recipe) -> Home:
    """The home in which each phase that settings change has a folder named by what it and its ancestors train as.

    How a phase is executed, evaluated and judged makes no trial: it stays the same run.
    """
    keys = ((phase.name, _key(changed, phase)) for phase in changed.phases)
    before = {phase.name: _key(recipe, phase) for phase in recipe.phases}
    return replace(home, trials=tuple((name, f"{name}-trial-{key[:8]}") for name, key in keys if key != before[name]))


def _key(recipe: Recipe, phase: Phase) -> str:
    recipe = recipe.with_branch(phase.name)
    lineage = [_trained_as(one) for one in (*recipe.ancestors(phase), phase)]
    return digest_of_json([recipe.model_dump(mode="json", include=OF_DATA), recipe.components, lineage])


def _trained_as(phase: Phase) -> dict[str, Any]:
    """What of a phase binds its result, as it does in a run."""
    free = {field_of(path) for path in MAY_CHANGE} - {*BIND_THE_RESULT, "start"}
    settings = phase.model_dump(mode="json", include=RunConfig.model_fields.keys() - free)
    settings["start"].pop("declares", None)
    return {"name": phase.name, **settings}
