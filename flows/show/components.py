"""A component of a recipe: where its text is, at which revision, which files are read, and in which phases it trains."""

from typing import Any

from rich.console import Console

from phasewise.flows.recipes import load_record, split_target
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.recipe import Recipe, Scale, scale_in_words
from phasewise.flows.show.page import print_values
from phasewise.flows.show.words import bias_in_words
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.wording import in_words


def describe_component(target: str, scale: Scale, name: str) -> dict[str, Any]:
    """Its real data set, its stand-in, and its share of each phase that draws from it, stage by stage, in percent.

    Raises:
        ConfigError: no such recipe, or no phase of it draws from the component.
    """
    recipe = load_record(split_target(target)[0], scale)
    if name not in recipe.components:
        near = [other for other in recipe.components if name.replace("-", "_").lower() in other]
        hint = f"; did you mean {', '.join(near)}?" if near else f"; they draw from {', '.join(recipe.components)}."
        raise ConfigError(f"no phase of {recipe.name} draws from {name!r}{hint}")
    entry = CATALOGUE.get(name)
    own = recipe.sources.get(name)
    source = own or (entry.source if entry else None)
    return {
        "recipe": recipe.name,
        "scale": recipe.scale,
        "component": name,
        "source": source.model_dump(mode="json") if source else None,
        "own_source": own is not None,
        "is_public": bool(source) or entry is None,
        "stand_in": entry.stand_in.model_dump(mode="json") if entry and entry.stand_in else None,
        "length_bias": bias.model_dump(mode="json") if (bias := recipe.length_bias.get(name)) else None,
        "phases": _shares(recipe, name),
    }


def print_component(description: dict[str, Any]) -> None:
    """For people."""
    console = Console(highlight=False)
    console.print(
        f"{description['component']} of {description['recipe']} {scale_in_words(description['scale'])}", style="bold", markup=False
    )
    source = description["source"]
    values = {name.replace("_", " "): in_words(value) for name, value in source.items() if value not in (None, [], 0.0)} if source else {}
    if source and source.get("revision") is None:
        values["revision"] = "none is known: it is read as it is now"
    if not description["is_public"]:
        values["none"] = "its data are not public: at full scale a recipe of one's own must give it a source"
    print_values(console, "its source" if description["own_source"] else "its data set, which full scale reads", values)
    if description["stand_in"] and not description["own_source"]:
        stand_in = {name.replace("_", " "): in_words(value) for name, value in description["stand_in"].items()}
        print_values(console, "its stand-in at proxy scale", stand_in)
    if description["length_bias"]:
        print_values(console, "its documents by their length", {"are trained on": bias_in_words(description["length_bias"])})
    phases = {
        phase["name"]: ", ".join(f"{share:.2f} % from {step:,}" for step, share in phase["shares"]) for phase in description["phases"]
    }
    print_values(console, "its share", phases)


def _shares(recipe: Recipe, name: str) -> list[dict[str, Any]]:
    found = []
    for phase in recipe.phases:
        stages = phase.mixture.within(phase.start_step, phase.stop_step)
        if any(name in shares for _, shares in stages):
            found.append({"name": phase.name, "shares": [[step, shares.get(name, 0.0)] for step, shares in stages]})
    return found
